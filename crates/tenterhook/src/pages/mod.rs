//! Pages that show what an analysis found: one HTML file with its plots, which needs no network and no other file.

mod bars;
mod heat_map;
mod trace;

use std::fmt::Write;
use std::io;
use std::path::Path;

use plotly::Plot;
use tenterhook_dashboard::plotly_js;
use tenterhook_record::disk;

pub use bars::Bars;
pub use heat_map::HeatMap;

/// A page with plots below each other.
///
/// ```
/// use plotly::{HeatMap, Plot};
/// use tenterhook::pages::Page;
///
/// let mut plot = Plot::new();
/// plot.add_trace(HeatMap::new_z(vec![vec![0.0, 1.0], vec![1.0, 0.0]]));
/// let page = Page::new("Two heads").text("Who attends to whom").plot(plot).to_html();
/// assert!(page.contains("<h1>Two heads</h1>") && !page.contains("<script src"));
/// ```
pub struct Page {
    title: String,
    body: String,
    plots: usize,
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new(), plots: 0 }
    }

    /// A paragraph. Whatever stands in it is shown as text.
    pub fn text(mut self, text: &str) -> Self {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text)); // a string takes everything
        self
    }

    /// A plot.
    pub fn plot(mut self, plot: Plot) -> Self {
        self.plots += 1;
        let plot = plot.to_inline_html(Some(&format!("plot-{}", self.plots)));
        let _ = writeln!(self.body, "<div class=\"plot\">{plot}</div>");
        self
    }

    /// The page as it is written.
    pub fn to_html(&self) -> String {
        let (title, body) = (escape(&self.title), &self.body);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<script>{}</script>\n</head>\n\
             <body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n",
            plotly_js()
        )
    }

    /// Writes the page: the whole of it, or nothing.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        disk::atomic_write(path, |file| file.write_all(self.to_html().as_bytes()))
    }
}

const STYLE: &str = "body{font-family:system-ui,sans-serif;margin:1.5rem;color:#222;background:#fff} \
                     h1{font-size:1.3rem} .plot{min-height:480px}";

/// Text as it has to stand in HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotly::{Bar, Layout};

    #[test]
    fn what_users_write_stays_text() {
        let mut plot = Plot::new();
        plot.add_trace(Bar::new(vec!["</script><script>alert(1)"], vec![1.0]));
        plot.set_layout(Layout::new().title("<img src=x>"));
        let page = Page::new("a < b & \"c\"").text("<b>bold</b>").plot(plot).to_html();
        assert!(page.contains("<h1>a &lt; b &amp; &quot;c&quot;</h1>"));
        assert!(page.contains("<p>&lt;b&gt;bold&lt;/b&gt;</p>"));
        assert!(!page.contains("</script><script>alert(1)"));
        assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    }

    #[test]
    fn a_page_needs_nothing_from_elsewhere() {
        let mut plot = Plot::new();
        plot.add_trace(Bar::new(vec!["a"], vec![1.0]));
        let page = Page::new("x").plot(plot).to_html();
        for outside in ["<script src", "<link", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("Plotly.newPlot(\"plot-1\""));
    }
}
