//! Metrics over time.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;

use super::App;
use super::query::Pairs;
use crate::error::Refusal;
use crate::follow::{Columns, MOST_POINTS, Series};

/// The most series in one answer, and the most points of all of them.
const MOST_SERIES: usize = 200;
const ALL_POINTS: usize = 100_000;

#[derive(Serialize)]
struct Told {
    version: u64,
    loading: Option<f64>,
    series: BTreeMap<String, Columns>,
}

pub(super) async fn series(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    let mut names = pairs.all("name");
    names.sort();
    names.dedup();
    if names.len() > MOST_SERIES {
        return Err(Refusal::bad_request(format!("at most {MOST_SERIES} series can be asked for at once")));
    }
    let (from, to) = (pairs.number("from")?, pairs.number("to")?);
    let asked = pairs.number("points")?.map_or(MOST_POINTS, |points| points.min(MOST_POINTS as u64) as usize);
    let points = asked.min(ALL_POINTS / names.len().max(1)).max(2);
    app.answer(move |app| {
        let follower = app.followers.get(&id)?;
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        let (version, loading, mut found) = {
            let reading = follower.look();
            let known = |name: String| {
                let part = reading.log.get(&name)?.part(from, to, points);
                Some((name, part))
            };
            let found: Vec<(String, Series)> = names.into_iter().filter_map(known).collect();
            (reading.log.version, reading.account.loading, found)
        };
        // Of a part of the run there may be more to see than what was kept of the whole.
        let is_part = from > 0 || to < u64::MAX;
        if is_part && found.iter().any(|(_, series)| series.width > 1) {
            let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
            if let Some(closer) = follower.closer(&names, from, to, points) {
                found = names.into_iter().zip(closer).collect();
            }
        }
        let series = found.into_iter().map(|(name, series)| (name, series.columns())).collect();
        app.bodies.json(&Told { version, loading, series })
    })
    .await
}
