use candle_core::{DType, Device, Result, Tensor, Var};

use super::*;
use crate::ops::check::{assert_same_bits, check_gradients, gradients, max_difference, random};
use crate::ops::composed_only;

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    q_len: usize,
    k_len: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    window: Option<usize>,
    soft_cap: Option<f64>,
}

/// Plain causal attention; the cases below vary it.
const PLAIN: Case =
    Case { batch: 2, q_len: 150, k_len: 150, heads: 4, kv_heads: 4, width: 32, window: None, soft_cap: None };

/// Several blocks, odd sizes, windows, caps, grouped heads, and queries behind a cache.
const CASES: [Case; 14] = [
    PLAIN,
    Case { q_len: 64, k_len: 64, width: 64, ..PLAIN },
    Case { q_len: 257, k_len: 257, width: 64, batch: 1, ..PLAIN },
    Case { q_len: 37, k_len: 37, heads: 3, kv_heads: 3, width: 17, ..PLAIN },
    Case { heads: 6, kv_heads: 2, width: 9, ..PLAIN },
    Case { window: Some(1), ..PLAIN },
    Case { window: Some(20), kv_heads: 1, ..PLAIN },
    Case { window: Some(97), soft_cap: Some(0.7), kv_heads: 2, ..PLAIN },
    Case { soft_cap: Some(5.0), width: 8, ..PLAIN },
    Case { q_len: 1, k_len: 70, kv_heads: 2, ..PLAIN },
    Case { q_len: 3, k_len: 70, window: Some(33), soft_cap: Some(2.0), ..PLAIN },
    Case { q_len: 100, k_len: 171, window: Some(40), kv_heads: 1, ..PLAIN },
    Case { q_len: 1, k_len: 1, width: 5, ..PLAIN },
    Case { q_len: 70, k_len: 70, heads: 1, kv_heads: 1, width: 1, batch: 1, ..PLAIN },
];

impl Case {
    fn spec(&self) -> AttentionSpec {
        AttentionSpec { scale: 1.0, soft_cap: self.soft_cap, window: self.window }
    }

    /// Queries, keys and values of their own.
    fn separate(&self, dtype: DType) -> Vec<Tensor> {
        let keys = (self.batch, self.k_len, self.kv_heads, self.width);
        vec![
            random((self.batch, self.q_len, self.heads, self.width), 1, dtype),
            random(keys, 2, dtype),
            random(keys, 3, dtype),
        ]
    }

    /// One tensor that holds all three, as a fused projection makes it.
    fn joint(&self, dtype: DType) -> Vec<Tensor> {
        vec![random((self.batch, self.k_len, self.heads + 2 * self.kv_heads, self.width), 4, dtype)]
    }

    /// The three, as views where they come from one tensor.
    fn views(&self, inputs: &[Var]) -> Result<[Tensor; 3]> {
        if let [q, k, v] = inputs {
            return Ok([q, k, v].map(|x| x.as_tensor().clone()));
        }
        let all = inputs[0].as_tensor();
        let q = all.narrow(2, 0, self.heads)?.narrow(1, self.k_len - self.q_len, self.q_len)?;
        let k = all.narrow(2, self.heads, self.kv_heads)?;
        let v = all.narrow(2, self.heads + self.kv_heads, self.kv_heads)?;
        Ok([q, k, v])
    }

    fn one_op(&self, inputs: &[Var]) -> Result<Tensor> {
        let [q, k, v] = self.views(inputs)?;
        attention(&q, &k, &v, &self.spec())
    }

    fn three_ops(&self, inputs: &[Var]) -> Result<Tensor> {
        let [q, k, v] = self.views(inputs)?;
        let pattern = attention_pattern(&attention_scores(&q, &k, &self.spec())?)?;
        attention_apply(&pattern, &v, &self.spec())
    }
}

fn small_cases() -> [Case; 5] {
    let small = Case { batch: 2, q_len: 5, k_len: 5, heads: 2, kv_heads: 2, width: 3, ..PLAIN };
    [
        small,
        Case { heads: 4, kv_heads: 2, q_len: 3, k_len: 7, ..small },
        Case { window: Some(2), soft_cap: Some(0.8), k_len: 6, kv_heads: 1, ..small },
        Case { batch: 1, q_len: 70, k_len: 75, width: 2, window: Some(30), heads: 2, kv_heads: 1, ..small },
        Case { q_len: 1, k_len: 20, window: Some(19), width: 1, ..small },
    ]
}

#[test]
fn one_op_and_three_ops_have_the_same_bits() {
    for case in CASES {
        for inputs in [case.separate(DType::F32), case.joint(DType::F32)] {
            let (z, grads) = gradients(&inputs, |x| case.one_op(x)).unwrap();
            let (split_z, split_grads) = gradients(&inputs, |x| case.three_ops(x)).unwrap();
            assert!(z.is_contiguous());
            assert_same_bits(&format!("z of {case:?}"), &z, &split_z);
            for (i, (a, b)) in grads.iter().zip(&split_grads).enumerate() {
                assert_same_bits(&format!("gradient {i} of {case:?}"), a, b);
            }
        }
    }
}

#[test]
fn views_and_copies_have_the_same_bits() {
    // Not with one head of one element: a copy's rows lie side by side then, which `gemm` takes for a vector.
    for case in CASES.into_iter().filter(|case| case.width > 1) {
        let joint = Var::from_tensor(&case.joint(DType::F32)[0]).unwrap();
        let views = case.views(&[joint]).unwrap();
        let copies = views.each_ref().map(|x| x.force_contiguous().unwrap());
        let run = |[q, k, v]: &[Tensor; 3]| attention(q, k, v, &case.spec()).unwrap();
        assert_same_bits(&format!("{case:?}"), &run(&views), &run(&copies));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let case = Case { soft_cap: Some(3.0), window: Some(80), kv_heads: 2, ..PLAIN };
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let inputs = case.joint(DType::F32);
            [
                gradients(&inputs, |x| case.one_op(x)).unwrap(),
                gradients(&inputs, |x| case.three_ops(x)).unwrap(),
            ]
        })
    };
    let one = run(1);
    for threads in [2, 4] {
        for ((z, grads), (other_z, other_grads)) in one.iter().zip(&run(threads)) {
            assert_same_bits("z", z, other_z);
            assert_same_bits("gradient", &grads[0], &other_grads[0]);
        }
    }
}

#[test]
fn backward_agrees_with_differences() {
    for case in small_cases() {
        let name = format!("{case:?}");
        check_gradients(&name, &case.separate(DType::F64), |x| case.one_op(x));
        check_gradients(&name, &case.joint(DType::F64), |x| case.one_op(x));
        check_gradients(&name, &case.joint(DType::F64), |x| case.three_ops(x));
        composed_only(|| check_gradients(&name, &case.joint(DType::F64), |x| case.one_op(x)));
    }
}

#[test]
fn backward_of_each_part_agrees_with_differences() {
    for case in small_cases() {
        let (name, spec) = (format!("{case:?}"), case.spec());
        let qkv = case.separate(DType::F64);
        check_gradients(&name, &qkv[..2], |x| {
            // Finite differences cannot take minus infinity.
            let scores = attention_scores(&x[0], &x[1], &spec)?;
            scores.gt(f64::NEG_INFINITY)?.where_cond(&scores, &scores.zeros_like()?)
        });
        // A pattern that is nowhere zero: its gradient is wanted at the masked places too.
        let pattern = random((case.batch, case.heads, case.q_len, case.k_len), 5, DType::F64);
        check_gradients(&name, &[pattern, qkv[2].clone()], |x| attention_apply(&x[0], &x[1], &spec));
    }
}

#[test]
fn fused_and_composed_agree() {
    for case in CASES {
        let inputs = case.joint(DType::F32);
        let (z, grads) = gradients(&inputs, |x| case.one_op(x)).unwrap();
        for three in [false, true] {
            let run = || gradients(&inputs, |x| if three { case.three_ops(x) } else { case.one_op(x) });
            let (other_z, other_grads) = composed_only(run).unwrap();
            assert!(max_difference(&z, &other_z) < 1e-5, "z of {case:?}");
            assert!(max_difference(&grads[0], &other_grads[0]) < 1e-5, "gradient of {case:?}");
        }
    }
}

#[test]
fn scores_and_patterns_agree_with_the_composed_ones() {
    for case in CASES {
        let qkv = case.separate(DType::F32);
        let run = || {
            let scores = attention_scores(&qkv[0], &qkv[1], &case.spec()).unwrap();
            (attention_pattern(&scores).unwrap(), scores)
        };
        let ((pattern, scores), (other_pattern, other_scores)) = (run(), composed_only(run));
        assert!(max_difference(&scores, &other_scores) < 1e-5, "scores of {case:?}");
        assert!(max_difference(&pattern, &other_pattern) < 1e-5, "pattern of {case:?}");
    }
}

#[test]
fn an_edited_pattern_may_reach_masked_keys() {
    let case = Case { window: Some(20), kv_heads: 2, ..PLAIN };
    let pattern = random((case.batch, case.heads, case.q_len, case.k_len), 6, DType::F32);
    let inputs = [pattern, case.separate(DType::F32)[2].clone()];
    let run = || gradients(&inputs, |x| attention_apply(&x[0], &x[1], &case.spec())).unwrap();
    let ((z, grads), (other_z, other_grads)) = (run(), composed_only(run));
    assert!(max_difference(&z, &other_z) < 2e-5);
    for (a, b) in grads.iter().zip(&other_grads) {
        assert!(max_difference(a, b) < 2e-5);
    }
}

#[test]
fn a_query_sees_its_window_and_nothing_later() {
    let case =
        Case { batch: 1, q_len: 90, k_len: 100, heads: 1, kv_heads: 1, width: 4, window: Some(30), ..PLAIN };
    let qkv = case.separate(DType::F32);
    let run = |k: &Tensor, v: &Tensor| attention(&qkv[0], k, v, &case.spec()).unwrap();
    let before = run(&qkv[1], &qkv[2]);
    for changed in [0, 9, 10, 50, 99] {
        let bump = |x: &Tensor| {
            let one_key = Tensor::full(7f32, (1, 1, 1, 4), &Device::Cpu).unwrap();
            x.slice_assign(&[0..1, changed..changed + 1, 0..1, 0..4], &one_key).unwrap()
        };
        let after = run(&bump(&qkv[1]), &bump(&qkv[2]));
        for query in 0..case.q_len {
            let row = |z: &Tensor| z.narrow(1, query, 1).unwrap();
            let position = query + 10;
            let sees = changed <= position && changed + 30 > position;
            let same = max_difference(&row(&before), &row(&after)) == 0.0;
            assert_eq!(same, !sees, "query at {position}, key {changed}");
        }
    }
}

#[test]
fn values_may_have_another_width() {
    let inputs = [(4, 3), (2, 3), (2, 5)].map(|(heads, width)| random((1, 6, heads, width), 8, DType::F64));
    check_gradients("wide values", &inputs, |x| attention(&x[0], &x[1], &x[2], &AttentionSpec::causal(3)));
}

#[test]
fn a_transposed_last_axis_is_copied() {
    let inputs = [random((1, 6, 4, 2), 9, DType::F64)];
    check_gradients("transposed", &inputs, |x| {
        let x = x[0].transpose(2, 3)?;
        attention(&x, &x, &x, &AttentionSpec::causal(4))
    });
}

#[test]
fn wrong_shapes_are_named() {
    let check = |q: [usize; 4], k: [usize; 4], v: [usize; 4], window, expected: &str| {
        let [q, k, v] = [q, k, v].map(|dims| random(&dims[..], 0, DType::F32));
        let spec = AttentionSpec { window, ..AttentionSpec::causal(4) };
        let error = attention(&q, &k, &v, &spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    };
    let qkv = [1, 3, 4, 8];
    check(qkv, [1, 3, 3, 8], [1, 3, 3, 8], None, "4 query heads cannot share 3 key-value heads");
    check(qkv, [1, 3, 4, 6], qkv, None, "differ in batch or head size");
    check(qkv, [2, 3, 4, 8], qkv, None, "differ in batch or head size");
    check(qkv, [1, 2, 4, 8], [1, 2, 4, 8], None, "3 queries but only 2 keys");
    check(qkv, qkv, [1, 2, 4, 8], None, "[1, 3, 4, d_v] is needed");
    check(qkv, qkv, qkv, Some(0), "a window of 0");
    check([1, 0, 4, 8], qkv, qkv, None, "an axis of size 0");
}

#[test]
fn a_stack_is_like_its_parts() {
    let spec = AttentionSpec { window: Some(50), soft_cap: Some(3.0), ..AttentionSpec::causal(8) };
    let of_parts = |all: &Tensor| {
        let part = |first, count| all.narrow(2, first, count);
        attention(&part(0, 4)?, &part(4, 2)?, &part(6, 2)?, &spec)?.flatten_from(2)
    };
    let all = [random((2, 70, 8, 8), 1, DType::F32)];
    let (z, gradient) = gradients(&all, |v| attention_of_stack(&v[0], 2, &spec)).unwrap();
    let (parts, gradient_of_parts) = gradients(&all, |v| of_parts(&v[0])).unwrap();
    assert_same_bits("z", &z, &parts);
    assert_same_bits("gradient", &gradient[0], &gradient_of_parts[0]);
    let composed = composed_only(|| attention_of_stack(&all[0], 2, &spec)).unwrap();
    assert!(max_difference(&z, &composed) < 1e-5);
    check_gradients("stack", &[random((2, 5, 4, 3), 2, DType::F64)], |v| {
        attention_of_stack(&v[0], 1, &AttentionSpec::causal(3))
    });
    assert!(attention_of_stack(&all[0], 5, &spec).is_err());
}
