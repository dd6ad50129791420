//! Small charts of characters.

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters that a chart is wide, and lines that it is high.
pub(super) const WIDTH: usize = 32;
const HEIGHT: usize = 5;

/// A column per share of a run, filled as high as its value reaches from 0 to `top`; `None` where there is none yet.
pub(super) struct Chart {
    title: &'static str,
    top: f64,
    columns: Vec<Option<f64>>,
}

impl Chart {
    pub(super) fn new(title: &'static str, top: f64) -> Self {
        Self { title, top, columns: vec![None; WIDTH] }
    }

    /// Puts a value at a share of the run, from 0 to 1. Of several in a column the last is seen.
    pub(super) fn put(&mut self, share: f64, value: f64) {
        let column = (share * WIDTH as f64).ceil() as usize;
        self.columns[column.clamp(1, WIDTH) - 1] = Some(value);
    }

    /// The title and the lines, all of the same width.
    fn lines(&self) -> Vec<String> {
        let height =
            |value: f64| (value / self.top * (HEIGHT * 8) as f64).round().clamp(1.0, (HEIGHT * 8) as f64);
        // What is not measured yet between two columns that are is as high as the one before.
        let mut before = None;
        let last = self.columns.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let filled: Vec<f64> = self.columns[..last]
            .iter()
            .map(|value| {
                before = value.or(before);
                before.map_or(0.0, height)
            })
            .collect();
        let row = |row: usize| -> String {
            let floor = ((HEIGHT - 1 - row) * 8) as f64;
            let label = match row {
                0 => format!("{:4.1}", self.top),
                _ if row == HEIGHT - 1 => " 0.0".to_string(),
                _ => "    ".to_string(),
            };
            let bars: String =
                filled.iter().map(|eighths| EIGHTHS[(eighths - floor).clamp(0.0, 8.0) as usize]).collect();
            format!("{label} {bars:WIDTH$}")
        };
        let title = format!("     {:WIDTH$}", self.title);
        std::iter::once(title).chain((0..HEIGHT).map(row)).collect()
    }
}

/// Charts side by side.
pub(super) fn beside(left: &Chart, right: &Chart) -> String {
    let lines = left.lines().into_iter().zip(right.lines());
    lines
        .map(|(left, right)| format!("{left}  {right}").trim_end().to_string())
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_high_as_their_values() {
        let mut chart = Chart::new("loss", 4.0);
        chart.put(0.0, 4.0);
        chart.put(0.5, 2.0);
        let lines = chart.lines();
        assert_eq!((lines.len(), lines[0].trim()), (6, "loss"));
        assert!(lines.iter().all(|line| line.chars().count() == 5 + WIDTH), "{lines:?}");
        let column = |at: usize| -> String {
            lines[1..].iter().map(|line| line.chars().nth(5 + at).unwrap()).collect()
        };
        assert_eq!(column(0), "█████");
        assert_eq!(column(WIDTH / 2 - 2), "█████", "nothing is known there, so it is as before");
        assert_eq!(column(WIDTH / 2 - 1), "  ▄██");
        assert_eq!(column(WIDTH / 2), "     ", "not there yet");
        assert!(lines[1].starts_with(" 4.0 ") && lines[5].starts_with(" 0.0 "), "{lines:?}");
    }

    #[test]
    fn values_out_of_range_stay_inside() {
        let mut chart = Chart::new("score", 1.0);
        for (share, value) in [(0.0, -1.0), (0.5, f64::NAN), (1.0, 9.0), (7.0, 9.0)] {
            chart.put(share, value);
        }
        assert!(beside(&chart, &chart).lines().all(|line| line.chars().count() <= 2 * (5 + WIDTH) + 2));
    }
}
