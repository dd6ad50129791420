//! Captured tensors: of a run, or of the directory that the dashboard was started with.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;

use super::App;
use super::query::Pairs;
use crate::captures::{self, CaptureFile, picture};
use crate::error::Refusal;
use crate::places::{self, is_plain_dir};

impl App {
    /// The directory of a run's captures, or of those that belong to none.
    fn captures_of(&self, run: Option<&str>) -> Result<PathBuf, Refusal> {
        let Some(id) = run else {
            let none = || Refusal::not_found("this dashboard was started without --captures");
            return self.options.captures.clone().ok_or_else(none);
        };
        let dir = places::run_dir(&self.options.runs_dir, id)?.captures();
        is_plain_dir(&dir).then_some(dir).ok_or_else(|| Refusal::not_found("this run has no captures"))
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.answer(|app| app.bodies.json(&json!({ "captures": captures::list_all(&app.captures_of(None)?) })))
        .await
}

pub(super) async fn file(
    State(app): State<Arc<App>>,
    Path((run, name)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    show_file(app, Some(run), name).await
}

pub(super) async fn loose_file(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    show_file(app, None, name).await
}

pub(super) async fn tensor(
    State(app): State<Arc<App>>,
    Path((run, name)): Path<(String, String)>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    show_tensor(app, Some(run), name, pairs).await
}

pub(super) async fn loose_tensor(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    show_tensor(app, None, name, pairs).await
}

async fn show_file(app: Arc<App>, run: Option<String>, name: String) -> Result<Response, Refusal> {
    app.answer(move |app| {
        let path = captures::find(&app.captures_of(run.as_deref())?, &name)?;
        app.bodies.json(&CaptureFile::open(&path)?.to_json(&name))
    })
    .await
}

async fn show_tensor(
    app: Arc<App>,
    run: Option<String>,
    name: String,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    let tensor = pairs.needed("name")?.to_string();
    let index = pairs.one("index").unwrap_or_default().split(',').filter(|part| !part.is_empty());
    let index: Result<Vec<usize>, _> = index.map(|part| part.trim().parse()).collect();
    let index =
        index.map_err(|_| Refusal::bad_request("`index` is not whole numbers with commas between them"))?;
    app.answer(move |app| {
        let path = captures::find(&app.captures_of(run.as_deref())?, &name)?;
        app.bodies.json(&picture(&mut CaptureFile::open(&path)?, &tensor, &index)?)
    })
    .await
}
