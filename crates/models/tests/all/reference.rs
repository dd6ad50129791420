//! Numbers of PyTorch, transformers and TransformerLens, on every family.

use candle_core::Tensor;
use tenterhook_hooks::{Gradients, PassSetup, Retention, hook_fn};
use tenterhook_nn::{GradBuffers, backward, check_coverage};

use crate::support::*;

#[test]
fn logits_and_loss_are_those_of_transformers() {
    for name in families() {
        let reference = Reference::load(&name);
        let logits = reference.model.forward(&reference.ids, &Default::default()).unwrap();
        assert_close(&format!("{name} logits"), &logits, &reference.tensors["logits"], 5e-5);
        let loss = reference.model.next_token_loss(&reference.ids, &Default::default()).unwrap();
        assert_close(&format!("{name} loss"), &loss, &reference.tensors["loss"], 5e-5);
    }
}

#[test]
fn p21_points_have_the_values_of_transformer_lens() {
    let mut compared = 0;
    for name in families() {
        let reference = Reference::load(&name);
        let points: Vec<&str> = reference.with_prefix("point.").map(|(point, _)| point).collect();
        let hooks = reference.model.hook_manager();
        capture(&hooks, &points);
        let pass = hooks.pass(eval());
        reference.model.forward(&reference.ids, &pass).unwrap();
        assert_eq!(pass.report().never_fired().count(), 0);
        let captured = captured(&hooks, "observe_fn");
        for (point, want) in reference.with_prefix("point.") {
            let got = captured.get(point).unwrap_or_else(|| panic!("{name}: `{point}` did not fire"));
            assert_close(&format!("{name} {point}"), got, want, 5e-5);
            compared += 1;
        }
    }
    assert!(compared > 500, "only {compared} points were compared");
}

/// GPT-2's and NeoX's key bias shifts all scores of a query alike: its true gradient is zero and what is there is noise.
fn is_noise(name: &str, want: &Tensor) -> bool {
    values(want).iter().all(|x| x.abs() < 1e-6) && name.contains("bias")
}

#[test]
fn p15_gradients_of_parameters_and_activations_are_those_of_pytorch() {
    for name in families() {
        let reference = Reference::load(&name);
        let model = &reference.model;
        let hooks = model.hook_manager();
        let points: Vec<&str> = reference.with_prefix("grad.").map(|(point, _)| point).collect();
        let keep = hook_fn::observe_gradient(points, |at, x, cx| cx.keep(at, x, Retention::All, None));
        let id = hooks.register(keep).unwrap();
        let buffers = GradBuffers::new(model.params());
        let pass = hooks.pass(eval().gradients(Gradients::Parameters).with(buffers.clone()));
        let loss = model.next_token_loss(&reference.ids, &pass).unwrap();
        let grads = backward(&loss, model.params(), Some(&buffers)).unwrap();
        check_coverage(&grads, model.params()).unwrap();
        let wanted: Vec<(&str, &Tensor)> = reference.with_prefix("param_grad.").collect();
        assert_eq!(wanted.len(), model.params().len(), "{name}: parameters");
        for (param, want) in wanted {
            let got = grads.get(param).unwrap_or_else(|| panic!("{name}: no gradient for `{param}`"));
            if !is_noise(param, want) {
                assert_close_to_largest(&format!("{name} {param}"), got, want, 1e-4);
            }
        }
        let captured = captured(&hooks, &id);
        for (point, want) in reference.with_prefix("grad.") {
            let got = captured.get(point).unwrap_or_else(|| panic!("{name}: no gradient at `{point}`"));
            assert_close_to_largest(&format!("{name} gradient at {point}"), got, want, 1e-4);
        }
    }
}

/// PyTorch's tensor hook replaced the gradient g at block 0's output by 0.5 g + 0.01.
#[test]
fn an_edited_gradient_changes_what_is_upstream_as_in_pytorch() {
    let mut compared = 0;
    for name in families() {
        let reference = Reference::load(&name);
        let model = &reference.model;
        if reference.with_prefix("edited_param_grad.").next().is_none() {
            continue;
        }
        let hooks = model.hook_manager();
        hooks
            .register(hook_fn::edit_gradient("blocks.0.hook_resid_post", |_, g, _| {
                Ok(Some(g.affine(0.5, 0.01)?))
            }))
            .unwrap();
        let run = |pass| {
            let loss = model.next_token_loss(&reference.ids, &pass).unwrap();
            backward(&loss, model.params(), None).unwrap()
        };
        let edited = run(hooks.pass(PassSetup { gradients: Gradients::Parameters, ..eval() }));
        for (param, want) in reference.with_prefix("edited_param_grad.") {
            assert_close_to_largest(&format!("{name} {param}"), edited.get(param).unwrap(), want, 1e-4);
            compared += 1;
        }
        // What lies downstream of the edit is untouched.
        let plain =
            run(tenterhook_hooks::Pass::silent(PassSetup { gradients: Gradients::Parameters, ..eval() }));
        for (param, grad) in edited
            .iter()
            .filter(|(param, _)| !reference.tensors.contains_key(&format!("edited_param_grad.{param}")))
        {
            assert_eq!(bits(grad), bits(plain.get(param).unwrap()), "{name} {param}");
        }
    }
    assert!(compared > 50);
}
