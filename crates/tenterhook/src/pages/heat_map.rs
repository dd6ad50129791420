//! A table of numbers as colours.

use plotly::common::{TickMode, Title};
use plotly::layout::Axis;
use plotly::{Layout, Plot};
use serde_json::{Value, json};

use super::trace::{RawTrace, finite, shown_text};

/// A table of numbers as colours, with a label for every row and column. The first row is on top.
///
/// ```
/// use tenterhook::pages::{HeatMap, Page};
///
/// let labels = |name: &str| (0..2).map(|i| format!("{name} {i}")).collect();
/// let map = HeatMap::new("Attention", labels("query"), labels("key"), vec![vec![1.0, 0.0], vec![0.3, 0.7]])
///     .axes("from", "to")
///     .range(0.0, 1.0);
/// let page = Page::new("A head").plot(map.plot()).to_html();
/// assert!(page.contains("query 1"));
/// ```
#[derive(Clone, Debug)]
pub struct HeatMap {
    title: String,
    rows: Vec<String>,
    columns: Vec<String>,
    values: Vec<Vec<f64>>,
    row_axis: String,
    column_axis: String,
    cells: Option<Vec<Vec<String>>>,
    hover: Option<Vec<Vec<String>>>,
    diverging: bool,
    range: Option<(f64, f64)>,
}

impl HeatMap {
    /// `values[row][column]`. What is not finite stays empty.
    pub fn new(
        title: impl Into<String>,
        rows: Vec<String>,
        columns: Vec<String>,
        values: Vec<Vec<f64>>,
    ) -> Self {
        Self {
            title: title.into(),
            rows,
            columns,
            values,
            row_axis: String::new(),
            column_axis: String::new(),
            cells: None,
            hover: None,
            diverging: false,
            range: None,
        }
    }

    /// What rows and columns are.
    pub fn axes(mut self, rows: &str, columns: &str) -> Self {
        (self.row_axis, self.column_axis) = (rows.to_string(), columns.to_string());
        self
    }

    /// Text in every cell.
    pub fn cells(mut self, cells: Vec<Vec<String>>) -> Self {
        self.cells = Some(cells);
        self
    }

    /// What is shown when the pointer rests on a cell; lines end with `\n`. By default row, column and value.
    pub fn hover(mut self, hover: Vec<Vec<String>>) -> Self {
        self.hover = Some(hover);
        self
    }

    /// Blue below zero, white at zero, red above.
    pub fn diverging(mut self) -> Self {
        self.diverging = true;
        self
    }

    /// The values of the two ends of the colours; by default the smallest and the largest.
    pub fn range(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
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
        let numbers = |count: usize| (0..count).collect::<Vec<_>>();
        let values: Vec<Vec<Value>> =
            self.values.iter().map(|row| row.iter().map(|value| finite(*value)).collect()).collect();
        let mut trace = json!({
            "type": "heatmap",
            "x": numbers(self.columns.len()),
            "y": numbers(self.rows.len()),
            "z": values,
            "colorscale": if self.diverging { DIVERGING } else { SEQUENTIAL },
            "xgap": 1,
            "ygap": 1,
        });
        match &self.hover {
            Some(hover) => {
                trace["hovertext"] = json!(each(hover, |text| shown_text(text)));
                trace["hoverinfo"] = "text".into();
            }
            // The axes know the labels.
            None => trace["hovertemplate"] = "%{y}<br>%{x}<br>%{z:.4f}<extra></extra>".into(),
        }
        if let Some(cells) = &self.cells {
            trace["text"] = json!(each(cells, |text| shown_text(text)));
            trace["texttemplate"] = "%{text}".into();
        }
        let (low, high) = self.ends();
        trace["zmin"] = finite(low);
        trace["zmax"] = finite(high);
        trace
    }

    /// Zero is in the middle of diverging colours.
    fn ends(&self) -> (f64, f64) {
        let all = || self.values.iter().flatten().copied().filter(|value| value.is_finite());
        let (low, high) = self.range.unwrap_or_else(|| {
            (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
        });
        match self.diverging {
            true => {
                let most = low.abs().max(high.abs()).max(f64::MIN_POSITIVE);
                (-most, most)
            }
            false => (low, high),
        }
    }

    fn layout(&self) -> Layout {
        // Labels may repeat (two equal tokens): places are numbers, and labels only their names.
        let axis = |name: &str, labels: &[String]| {
            Axis::new()
                .title(Title::with_text(shown_text(name)))
                .tick_mode(TickMode::Array)
                .tick_values((0..labels.len()).map(|i| i as f64).collect())
                .tick_text(labels.iter().map(|label| shown_text(label)).collect())
                .auto_margin(true)
        };
        let last = self.rows.len() as f64 - 0.5;
        Layout::new()
            .title(Title::with_text(shown_text(&self.title)))
            .x_axis(axis(&self.column_axis, &self.columns))
            .y_axis(axis(&self.row_axis, &self.rows).range(vec![last, -0.5]))
            .height((170 + 26 * self.rows.len()).max(480))
    }
}

const SEQUENTIAL: [(f64, &str); 5] =
    [(0.0, "#f7fbff"), (0.25, "#c6dbef"), (0.5, "#6baed6"), (0.75, "#2171b5"), (1.0, "#08306b")];
const DIVERGING: [(f64, &str); 5] =
    [(0.0, "#2166ac"), (0.25, "#92c5de"), (0.5, "#f7f7f7"), (0.75, "#f4a582"), (1.0, "#b2182b")];

fn each(texts: &[Vec<String>], shown: impl Fn(&String) -> String) -> Vec<Vec<String>> {
    texts.iter().map(|row| row.iter().map(&shown).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> HeatMap {
        let labels = vec!["<b>a".to_string(), "same".to_string()];
        HeatMap::new("t", labels.clone(), labels, vec![vec![-1.0, f64::NAN], vec![0.5, 0.25]])
    }

    #[test]
    fn labels_are_text_and_holes_are_empty() {
        let trace = map().trace();
        assert_eq!(trace["z"], json!([[-1.0, null], [0.5, 0.25]]));
        assert!(trace["hovertemplate"].is_string() && trace["hovertext"].is_null());
        assert_eq!((&trace["zmin"], &trace["zmax"]), (&json!(-1.0), &json!(0.5)));
        let layout = serde_json::to_value(map().layout()).unwrap_or_default();
        assert_eq!(layout["yaxis"]["ticktext"], json!(["&lt;b&gt;a", "same"]));
        assert_eq!(layout["yaxis"]["range"], json!([1.5, -0.5]), "the first row is on top");
    }

    #[test]
    fn zero_is_white_where_colours_diverge() {
        let trace = map().diverging().trace();
        assert_eq!((&trace["zmin"], &trace["zmax"]), (&json!(-1.0), &json!(1.0)));
        let trace = map().cells(vec![vec!["x\ny".to_string(); 2]; 2]).range(0.0, 4.0).trace();
        assert_eq!(trace["text"][0][0], "x<br>y");
        let trace = map().hover(vec![vec!["<i>".to_string(); 2]; 2]).trace();
        assert_eq!((&trace["hovertext"][1][1], &trace["hoverinfo"]), (&json!("&lt;i&gt;"), &json!("text")));
        let trace = map().range(0.0, 4.0).trace();
        assert_eq!((&trace["zmin"], &trace["zmax"]), (&json!(0.0), &json!(4.0)));
    }
}
