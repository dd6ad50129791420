//! Many metrics at once, and histograms: what becomes a heat map.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;

use super::App;
use super::query::Pairs;
use crate::captures::natural;
use crate::error::Refusal;
use crate::follow::Series;

/// The most rows and columns of a heat map.
const MOST_ROWS: usize = 512;
const MOST_STEPS: usize = 400;

pub(super) async fn heatmap(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    let pattern = pairs.needed("pattern")?.to_string();
    app.answer(move |app| {
        let (before, after) = match pattern.split_once('*') {
            Some((before, after)) if !after.contains('*') => (before, after),
            _ => return Err(Refusal::bad_request("`pattern` needs one `*`")),
        };
        let follower = app.followers.get(&id)?;
        let mut rows: Vec<(String, Series)> = {
            let reading = follower.look();
            let star = |name: &str| Some(name.strip_prefix(before)?.strip_suffix(after)?.to_string());
            let found = reading.log.iter().filter_map(|(name, series)| Some((star(name)?, series)));
            found.take(MOST_ROWS).map(|(name, series)| (name, series.part(0, u64::MAX, MOST_STEPS))).collect()
        };
        rows.sort_by(|a, b| natural(&a.0, &b.0));
        let steps = steps_of(&rows);
        let z: Vec<Vec<f64>> = rows.iter().map(|(_, series)| along(series, &steps)).collect();
        let names: Vec<&String> = rows.iter().map(|(name, _)| name).collect();
        app.bodies.json(&json!({ "pattern": pattern, "rows": names, "steps": steps, "z": z }))
    })
    .await
}

/// The steps at which columns end: those of all rows, or every so many of them.
fn steps_of(rows: &[(String, Series)]) -> Vec<u64> {
    let steps = rows.iter().flat_map(|(_, series)| series.buckets().iter().map(|bucket| (bucket.step, ())));
    let steps: Vec<u64> = steps.collect::<BTreeMap<u64, ()>>().into_keys().collect();
    let stride = steps.len().div_ceil(MOST_STEPS).max(1);
    steps.chunks(stride).filter_map(|chunk| chunk.last().copied()).collect()
}

/// The means of a series in the columns that end at these steps; NaN where it has none.
fn along(series: &Series, steps: &[u64]) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u32); steps.len()];
    for bucket in series.buckets().iter().filter(|bucket| bucket.mean().is_finite()) {
        let column = steps.partition_point(|step| *step < bucket.step);
        if let Some((sum, count)) = sums.get_mut(column) {
            *sum += bucket.mean();
            *count += 1;
        }
    }
    sums.into_iter().map(|(sum, count)| sum / f64::from(count)).collect()
}

pub(super) async fn histograms(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Result<Response, Refusal> {
    let name = pairs.needed("name")?.to_string();
    app.answer(move |app| {
        let follower = app.followers.get(&id)?;
        let found = follower.look().histograms.get(&name);
        app.bodies.json(&found.ok_or_else(|| Refusal::not_found("the run has no such histogram"))?)
    })
    .await
}
