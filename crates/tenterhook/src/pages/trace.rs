//! Plots that say more than the plotly crate has fields for.

use plotly::Trace;
use serde::Serialize;
use serde_json::Value;

/// A trace as plotly.js reads it.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub(super) struct RawTrace(pub(super) Value);

impl Trace for RawTrace {
    fn to_json(&self) -> String {
        self.0.to_string()
    }
}

/// A number, or nothing where it is not finite: JSON has no word for that.
pub(super) fn finite(value: f64) -> Value {
    if value.is_finite() { value.into() } else { Value::Null }
}

/// Text as plotly shows it. It reads some HTML in its texts, but does not know `&quot;`.
pub(super) fn shown_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\n', "<br>")
}
