//! What can be asked for, and where.

mod captures;
mod control;
mod diff;
mod grids;
mod query;
mod run;
mod series;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};
use serde_json::json;

use crate::body::Bodies;
use crate::error::Refusal;
use crate::events::{ListEvents, Streams};
use crate::follow::Followers;
use crate::guard::{Guard, guard};
use crate::runs::Runs;
use crate::{Options, assets, events};

/// The largest body of a request.
const LARGEST_BODY: usize = 4 << 10;

/// What all answers are made from.
pub(crate) struct App {
    options: Options,
    runs: Arc<Runs>,
    followers: Followers,
    bodies: Bodies,
    streams: Streams,
    list_events: Arc<ListEvents>,
}

/// All addresses there are, behind the guard.
pub(crate) fn router(options: Options, address: SocketAddr, token: Option<String>) -> Router {
    let at_the_door = Arc::new(Guard::new(address, token, options.is_open(), options.control));
    let app = Arc::new(App {
        runs: Arc::new(Runs::new(&options.runs_dir)),
        followers: Followers::new(&options.runs_dir),
        bodies: Bodies::new(),
        streams: Streams::new(options.patience),
        list_events: Arc::new(ListEvents::new()),
        options,
    });
    Router::new()
        .route("/", get(assets::index))
        .route("/assets/{name}", get(assets::asset))
        .route("/api/about", get(about))
        .route("/api/runs", get(runs))
        .route("/api/events", get(list_events))
        .route("/api/runs/{id}", get(run::about))
        .route("/api/runs/{id}/series", get(series::series))
        .route("/api/runs/{id}/events", get(run::events))
        .route("/api/runs/{id}/heatmap", get(grids::heatmap))
        .route("/api/runs/{id}/histograms", get(grids::histograms))
        .route("/api/runs/{id}/diff", get(diff::diff))
        .route("/api/runs/{id}/captures/{file}", get(captures::file))
        .route("/api/runs/{id}/captures/{file}/tensor", get(captures::tensor))
        .route("/api/runs/{id}/hooks/{hook}", post(control::switch))
        .route("/api/captures", get(captures::list))
        .route("/api/captures/{file}", get(captures::loose_file))
        .route("/api/captures/{file}/tensor", get(captures::loose_tensor))
        .fallback(async || Refusal::not_found("there is nothing here"))
        .method_not_allowed_fallback(async || {
            Refusal::new(axum::http::StatusCode::METHOD_NOT_ALLOWED, "this cannot be done here")
        })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(middleware::from_fn_with_state(at_the_door, guard))
        .with_state(app)
}

impl App {
    /// Makes an answer on a thread that may wait for the disk.
    async fn answer(
        self: Arc<Self>,
        make: impl FnOnce(&Self) -> Result<Response, Refusal> + Send + 'static,
    ) -> Result<Response, Refusal> {
        let made = tokio::task::spawn_blocking(move || make(&self)).await;
        made.unwrap_or_else(|error| {
            tracing::warn!("the dashboard has a bug: {error}");
            Err(Refusal::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "the dashboard has a bug here"))
        })
    }
}

async fn about(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.bodies.json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "runs_dir": app.options.runs_dir.display().to_string(),
        "control": app.options.control,
        "captures": app.options.captures.is_some(),
    }))
}

async fn runs(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.answer(|app| app.bodies.json(&app.runs.list())).await
}

async fn list_events(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let room = app.streams.room()?;
    let receiver = app.list_events.listen();
    let runs = Arc::clone(&app.runs);
    let list = tokio::task::spawn_blocking(move || runs.list()).await;
    let first = crate::follow::Event::new("runs", &list.unwrap_or_default());
    tokio::spawn(Arc::clone(&app.list_events).send(Arc::clone(&app.runs)));
    Ok(events::answer(first, receiver, room))
}
