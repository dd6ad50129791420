//! Rotary parameters, which have been spelt in four ways.

use serde_json::{Map, Value, json};
use tenterhook_nn::ops::{RopeScaling, RopeSpec};

use super::Family;
use super::keys::Keys;
use crate::error::shown;

const DEFAULT_THETA: f64 = 10_000.0;

/// What the family and the sizes have to say about rotation.
pub(super) struct Head {
    pub(super) family: Family,
    pub(super) head_dim: usize,
    pub(super) context: usize,
}

pub(super) fn read(keys: &mut Keys<'_>, head: &Head) -> RopeSpec {
    let empty = Map::new();
    // As in transformers, the old name wins where both are given and it says anything.
    let scaling = keys.object("rope_scaling").filter(|scaling| !scaling.is_empty());
    let (object, path) = match scaling {
        Some(scaling) => (scaling, "rope_scaling."),
        None => (keys.object("rope_parameters").unwrap_or(&empty), "rope_parameters."),
    };
    let mut nested = Keys::new(object, path);

    let theta = match head.family {
        Family::NeoX => keys.positive(&["rotary_emb_base"], DEFAULT_THETA),
        _ => keys.positive(&["rope_theta"], DEFAULT_THETA),
    };
    let theta = nested.positive(&["rope_theta"], theta);
    let dim = rotated_part(keys, &mut nested, head);
    let scaling = read_scaling(keys, &mut nested, head, dim);
    if theta <= 1.0 && matches!(scaling, RopeScaling::Yarn { .. }) {
        nested.problem(|| format!("`rope_theta` {theta} must be above 1 for yarn scaling"));
    }
    if object.contains_key("full_attention") || object.contains_key("sliding_attention") {
        nested.problem(|| format!("`{path}*`: one rotation per kind of layer is not supported"));
    }
    keys.absorb(nested);
    RopeSpec { dim, theta, scaling }
}

/// How many dimensions of each head are rotated.
fn rotated_part(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head) -> usize {
    let (outer_name, default) = match head.family {
        Family::NeoX => ("rotary_pct", 0.25),
        _ => ("partial_rotary_factor", 1.0),
    };
    let in_range = |fraction: f64| fraction > 0.0 && fraction <= 1.0;
    let expected = "a number above 0 and at most 1";
    let outer = keys.number(&[outer_name], default, expected, in_range);
    let fraction = nested.number(&["partial_rotary_factor"], outer, expected, in_range);
    let dim = (head.head_dim as f64 * fraction) as usize;
    if fraction < 1.0 && !matches!(head.family, Family::NeoX | Family::Phi3) {
        let family = head.family.model_type();
        keys.problem(|| {
            format!(
                "`partial_rotary_factor` {fraction} is not supported for {family}, which rotates whole heads"
            )
        });
    } else if head.head_dim > 0 && (dim == 0 || dim % 2 == 1) {
        keys.problem(|| {
            format!(
                "{dim} of the {} dimensions of a head would be rotated: it must be an even number above 0",
                head.head_dim
            )
        });
    }
    dim
}

fn read_scaling(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head, dim: usize) -> RopeScaling {
    let Some(kind) = nested.text(&["rope_type", "type"], "default") else { return RopeScaling::None };
    // The first Phi-3 files called the same thing by other names.
    let kind = if head.family == Family::Phi3 && matches!(kind, "su" | "yarn") { "longrope" } else { kind };
    if head.family == Family::Phi3 && !matches!(kind, "default" | "longrope") {
        nested.problem(|| {
            format!("rotary scaling {} is not supported for phi3 (default and longrope are)", shown(kind))
        });
        return RopeScaling::None;
    }
    match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: required(nested, "factor", "linear") },
        "llama3" => llama3(keys, nested, head),
        "yarn" => yarn(keys, nested, head),
        "longrope" => longrope(keys, nested, head, dim),
        other => {
            nested.problem(|| {
                format!(
                    "rotary scaling {} is not supported (default, linear, llama3, yarn and longrope are)",
                    shown(other)
                )
            });
            RopeScaling::None
        }
    }
}

/// A positive number that a kind of scaling cannot do without.
fn required(nested: &mut Keys<'_>, name: &'static str, kind: &'static str) -> f64 {
    if nested.value(&[name]).is_none() {
        nested.problem(|| {
            format!("`{name}` is missing from the rotary parameters, which {kind} scaling needs")
        });
    }
    nested.positive(&[name], 1.0)
}

/// The context before it was stretched. The outer key, where there is one, wins in transformers too.
fn original_context(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head) -> usize {
    const NAME: &str = "original_max_position_embeddings";
    let inner = nested.size(&[NAME], head.context);
    match head.family {
        Family::Phi3 => keys.size(&[NAME], 4096),
        _ => keys.size(&[NAME], inner),
    }
}

fn llama3(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head) -> RopeScaling {
    const KIND: &str = "llama3";
    let (low, high) = (required(nested, "low_freq_factor", KIND), required(nested, "high_freq_factor", KIND));
    if high <= low
        && nested.value(&["low_freq_factor"]).is_some()
        && nested.value(&["high_freq_factor"]).is_some()
    {
        nested.problem(|| format!("`high_freq_factor` {high} must be above `low_freq_factor` {low}"));
    }
    RopeScaling::Llama3 {
        factor: required(nested, "factor", KIND),
        low_freq_factor: low,
        high_freq_factor: high,
        original_context: original_context(keys, nested, head),
    }
}

fn yarn(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head) -> RopeScaling {
    let original_context = original_context(keys, nested, head);
    let ratio = head.context.max(1) as f64 / original_context.max(1) as f64;
    RopeScaling::Yarn {
        factor: nested.positive(&["factor"], ratio),
        original_context,
        beta_fast: nested.positive(&["beta_fast"], 32.0),
        beta_slow: nested.positive(&["beta_slow"], 1.0),
        mscale: nested.optional_positive("mscale", None),
        mscale_all_dim: nested.optional_positive("mscale_all_dim", None),
        attention_factor: nested.optional_positive("attention_factor", None),
        truncate: nested.flag("truncate", true),
    }
}

fn longrope(keys: &mut Keys<'_>, nested: &mut Keys<'_>, head: &Head, dim: usize) -> RopeScaling {
    let original_context = original_context(keys, nested, head);
    if original_context == 1 {
        nested.problem(|| {
            "`original_max_position_embeddings` must be above 1 for longrope scaling".to_string()
        });
    }
    RopeScaling::LongRope {
        short_factor: factors(nested, "short_factor", dim),
        long_factor: factors(nested, "long_factor", dim),
        original_context,
        max_context: head.context,
        attention_factor: nested.optional_positive("attention_factor", None),
        factor: nested.optional_positive("factor", None),
    }
}

/// One factor per rotated pair.
fn factors(nested: &mut Keys<'_>, name: &'static str, dim: usize) -> Vec<f64> {
    let positive = |value: &Value| value.as_f64().filter(|factor| factor.is_finite() && *factor > 0.0);
    let given = nested.value(&[name]).is_some();
    let factors = nested.list(name, "positive numbers", positive);
    match &factors {
        Some(factors) if factors.len() != dim / 2 => nested.problem(|| {
            format!(
                "`{name}` has {} entries; there are {} pairs of rotated dimensions",
                factors.len(),
                dim / 2
            )
        }),
        None if !given => nested.problem(|| format!("`{name}` is missing from the rotary parameters")),
        _ => {}
    }
    factors.unwrap_or_default()
}

/// The same parameters as transformers 5 writes them.
pub(super) fn write(rope: &RopeSpec, family: Family, head_dim: usize) -> Value {
    let mut parameters = match &rope.scaling {
        RopeScaling::None => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            mscale,
            mscale_all_dim,
            attention_factor,
            truncate,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original_context,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "mscale": mscale,
            "mscale_all_dim": mscale_all_dim,
            "attention_factor": attention_factor,
            "truncate": truncate,
        }),
        // `max_context` is the model's own context, which stands outside.
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_context,
            max_context: _,
            attention_factor,
            factor,
        } => json!({
            "rope_type": "longrope",
            "short_factor": short_factor,
            "long_factor": long_factor,
            "original_max_position_embeddings": original_context,
            "attention_factor": attention_factor,
            "factor": factor,
        }),
    };
    if let Value::Object(parameters) = &mut parameters {
        parameters.retain(|_, value| !value.is_null());
    }
    parameters["rope_theta"] = json!(rope.theta);
    if matches!(family, Family::NeoX | Family::Phi3) {
        parameters["partial_rotary_factor"] = json!(fraction(rope.dim, head_dim));
    }
    parameters
}

/// A fraction that gives back `dim` when readers multiply and cut off.
fn fraction(dim: usize, head_dim: usize) -> f64 {
    let exact = dim as f64 / head_dim.max(1) as f64;
    if (head_dim as f64 * exact) as usize == dim { exact } else { exact.next_up() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_survive_rounding_down() {
        for head_dim in 1..300usize {
            for dim in (2..=head_dim).step_by(2) {
                assert_eq!((head_dim as f64 * fraction(dim, head_dim)) as usize, dim);
            }
        }
    }
}
