//! Devices without our kernels run ops composed of candle's: the same model, within rounding.

use tenterhook_hooks::{Gradients, Pass, Retention, hook_fn};
use tenterhook_nn::backward;
use tenterhook_nn::ops::composed_only;

use crate::support::*;

#[test]
fn composed_ops_give_the_numbers_of_pytorch_too() {
    for name in families() {
        let reference = Reference::load(&name);
        let model = &reference.model;
        let hooks = model.hook_manager();
        let points: Vec<&str> = reference.with_prefix("point.").map(|(point, _)| point).collect();
        let keep = hook_fn::observe(points, |at, x, cx| cx.keep(at, x, Retention::All, None));
        let id = hooks.register(keep).unwrap();
        composed_only(|| {
            let logits = model.forward(&reference.ids, &hooks.pass(eval())).unwrap();
            assert_close(&format!("{name} logits"), &logits, &reference.tensors["logits"], 1e-4);
            let pass = Pass::silent(eval().gradients(Gradients::Parameters));
            let loss = model.next_token_loss(&reference.ids, &pass).unwrap();
            let grads = backward(&loss, model.params(), None).unwrap();
            for (param, want) in reference.with_prefix("param_grad.") {
                if values(want).iter().any(|x| x.abs() > 1e-6) {
                    assert_close_to_largest(
                        &format!("{name} {param}"),
                        grads.get(param).unwrap(),
                        want,
                        2e-4,
                    );
                }
            }
        });
        let captured = captured(&hooks, &id);
        for (point, want) in reference.with_prefix("point.") {
            assert_close(&format!("{name} {point}"), &captured[point], want, 1e-4);
        }
    }
}
