//! Which layers see only a window of keys.

use super::keys::{Keys, LARGEST_SIZE};

type Windows = Vec<Option<usize>>;

/// Mistral and Phi-3: one window for all layers, or none.
pub(super) fn on_every_layer(keys: &mut Keys<'_>, layers: usize, default: Option<usize>) -> Windows {
    vec![size(keys, default); layers]
}

/// Qwen: the layers from `max_window_layers` on, once windows are switched on.
pub(super) fn on_late_layers(keys: &mut Keys<'_>, layers: usize) -> Windows {
    let window = if keys.flag("use_sliding_window", false) { size(keys, Some(4096)) } else { None };
    let expected = "a whole number of layers";
    let first = keys.number(&["max_window_layers"], 28.0, expected, |n| n >= 0.0 && n.fract() == 0.0);
    by_layer(keys, layers, window, |layer| window.is_some() && layer as f64 >= first)
}

/// Gemma 2: every other layer, beginning with the first.
pub(super) fn on_even_layers(keys: &mut Keys<'_>, layers: usize) -> Windows {
    let window = size(keys, Some(4096));
    by_layer(keys, layers, window, |layer| layer % 2 == 0)
}

fn size(keys: &mut Keys<'_>, default: Option<usize>) -> Option<usize> {
    match default {
        _ if keys.is_null("sliding_window") => None,
        None if keys.value(&["sliding_window"]).is_none() => None,
        default => Some(keys.size(&["sliding_window"], default.unwrap_or(LARGEST_SIZE))),
    }
}

/// `layer_types` where the file has it, otherwise the family's habit.
fn by_layer(
    keys: &mut Keys<'_>,
    layers: usize,
    window: Option<usize>,
    habit: impl Fn(usize) -> bool,
) -> Windows {
    let kind = |value: &serde_json::Value| match value.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let listed = keys.list("layer_types", "`full_attention` and `sliding_attention`", kind);
    let slides = listed.unwrap_or_else(|| (0..layers).map(habit).collect());
    if slides.len() != layers && layers > 0 {
        keys.problem(|| format!("`layer_types` has {} entries for {layers} layers", slides.len()));
    }
    if window.is_none() && slides.contains(&true) {
        keys.problem(|| {
            "`layer_types` asks for sliding attention, but there is no `sliding_window`".to_string()
        });
    }
    slides.into_iter().map(|slides| window.filter(|_| slides)).collect()
}
