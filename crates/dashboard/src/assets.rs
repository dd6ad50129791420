//! The page: files of the `ui` folder, built into the program.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::error::Refusal;

/// Every file of the page but plotly.
const FILES: &[(&str, &str)] = &[
    ("index.html", include_str!("../ui/index.html")),
    ("style.css", include_str!("../ui/style.css")),
    ("icon.svg", include_str!("../ui/icon.svg")),
    ("api.js", include_str!("../ui/api.js")),
    ("captures.js", include_str!("../ui/captures.js")),
    ("card.js", include_str!("../ui/card.js")),
    ("checkpoints.js", include_str!("../ui/checkpoints.js")),
    ("config.js", include_str!("../ui/config.js")),
    ("dom.js", include_str!("../ui/dom.js")),
    ("format.js", include_str!("../ui/format.js")),
    ("heatmap.js", include_str!("../ui/heatmap.js")),
    ("heatmaps.js", include_str!("../ui/heatmaps.js")),
    ("histograms.js", include_str!("../ui/histograms.js")),
    ("hooks.js", include_str!("../ui/hooks.js")),
    ("list.js", include_str!("../ui/list.js")),
    ("live.js", include_str!("../ui/live.js")),
    ("main.js", include_str!("../ui/main.js")),
    ("metrics.js", include_str!("../ui/metrics.js")),
    ("model.js", include_str!("../ui/model.js")),
    ("notice.js", include_str!("../ui/notice.js")),
    ("others.js", include_str!("../ui/others.js")),
    ("plot.js", include_str!("../ui/plot.js")),
    ("record.js", include_str!("../ui/record.js")),
    ("router.js", include_str!("../ui/router.js")),
    ("run.js", include_str!("../ui/run.js")),
    ("series.js", include_str!("../ui/series.js")),
    ("status.js", include_str!("../ui/status.js")),
    ("tabs.js", include_str!("../ui/tabs.js")),
    ("tensor.js", include_str!("../ui/tensor.js")),
    ("theme.js", include_str!("../ui/theme.js")),
    ("thumbnails.js", include_str!("../ui/thumbnails.js")),
];

pub(crate) async fn index(headers: HeaderMap) -> Response {
    answer("index.html", &headers)
}

pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&name, &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Response {
    let text = match name {
        "plotly.js" => plotly_js(),
        _ => match FILES.iter().find(|(file, _)| *file == name) {
            Some((_, text)) => text,
            None => return Refusal::not_found("there is no such file").into_response(),
        },
    };
    let tag = tag(text);
    let fresh = [(ETAG, tag.clone()), (CACHE_CONTROL, "no-cache".to_string())];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    (fresh, [(CONTENT_TYPE, content_type(name))], text).into_response()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// Plotly's code, from between the first tags of what the `plotly` crate puts into pages. What is behind them, MathJax, would take the dollar
/// signs of tokens for formulas.
pub fn plotly_js() -> &'static str {
    static CODE: OnceLock<String> = OnceLock::new();
    CODE.get_or_init(|| {
        let page = plotly::Plot::offline_js_sources();
        let code = page.split_once('>').and_then(|(_, rest)| rest.split_once("</script>\n"));
        code.map(|(code, _)| code.to_string()).unwrap_or_default()
    })
}

/// Other contents have another tag.
fn tag(text: &str) -> String {
    let mut sum = DefaultHasher::new();
    text.hash(&mut sum);
    format!("\"{:x}-{:x}\"", text.len(), sum.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_built_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ui");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut built_in: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_string()).collect();
        there.sort();
        built_in.sort();
        assert_eq!(built_in, there);
    }

    #[test]
    fn p36_the_page_makes_no_markup_of_texts_and_asks_no_other_machine() {
        for (name, text) in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "https://",
            ] {
                assert!(!text.contains(word), "{name} has `{word}`");
            }
            let own = text.matches("http://").count() == text.matches("http://www.w3.org/2000/svg").count();
            assert!(own, "{name} names another machine");
        }
    }
}
