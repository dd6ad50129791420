//! Numbers as bars below each other.

use plotly::common::{TickMode, Title};
use plotly::layout::Axis;
use plotly::{Layout, Plot};
use serde_json::{Value, json};

use super::trace::{RawTrace, finite, shown_text};

/// A bar per number, with its label beside it. The first is on top; what is below zero is blue, what is above is red.
///
/// ```
/// use tenterhook::pages::{Bars, Page};
///
/// let bars = Bars::new("Who did it", vec!["L0 attn".to_string(), "L0 mlp".to_string()], vec![1.5, -0.5]).axis("logits");
/// assert!(Page::new("Attribution").plot(bars.plot()).to_html().contains("L0 mlp"));
/// ```
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    labels: Vec<String>,
    values: Vec<f64>,
    axis: String,
}

impl Bars {
    /// A bar for every label. What is not finite has none.
    pub fn new(title: impl Into<String>, labels: Vec<String>, values: Vec<f64>) -> Self {
        Self { title: title.into(), labels, values, axis: String::new() }
    }

    /// What the numbers are.
    pub fn axis(mut self, name: &str) -> Self {
        self.axis = name.to_string();
        self
    }

    /// The plot, for a [`Page`](super::Page).
    pub fn plot(&self) -> Plot {
        let mut plot = Plot::new();
        plot.add_trace(Box::new(RawTrace(self.trace())));
        plot.set_layout(self.layout());
        plot
    }

    fn trace(&self) -> Value {
        let color = |value: &f64| if *value < 0.0 { "#2166ac" } else { "#b2182b" };
        let hover = |(label, value): (&String, &f64)| format!("{}<br>{value:.4}", shown_text(label));
        json!({
            "type": "bar",
            "orientation": "h",
            "x": self.values.iter().map(|value| finite(*value)).collect::<Vec<_>>(),
            "y": (0..self.values.len()).collect::<Vec<_>>(),
            "marker": { "color": self.values.iter().map(color).collect::<Vec<_>>() },
            "hovertext": self.labels.iter().zip(&self.values).map(hover).collect::<Vec<_>>(),
            "hoverinfo": "text",
        })
    }

    fn layout(&self) -> Layout {
        let last = self.labels.len() as f64 - 0.5;
        let places = Axis::new()
            .tick_mode(TickMode::Array)
            .tick_values((0..self.labels.len()).map(|i| i as f64).collect())
            .tick_text(self.labels.iter().map(|label| shown_text(label)).collect())
            .auto_margin(true)
            .range(vec![last, -0.5]);
        Layout::new()
            .title(Title::with_text(shown_text(&self.title)))
            .x_axis(Axis::new().title(Title::with_text(shown_text(&self.axis))))
            .y_axis(places)
            .height((170 + 22 * self.labels.len()).max(480))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_have_bars_of_their_own() {
        let bars = Bars::new("t", vec!["the".to_string(), "the".to_string()], vec![1.0, -2.0]);
        let trace = bars.trace();
        assert_eq!(trace["y"], json!([0, 1]));
        assert_ne!(trace["marker"]["color"][0], trace["marker"]["color"][1]);
    }
}
