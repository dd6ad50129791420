//! What clients are told while they look at a run: made once, sent to all.

use std::fmt::Write;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::Receiver;

use super::Follower;
use super::follower::Reading;

/// Between two looks at a run.
const BETWEEN: Duration = Duration::from_secs(1);
/// Between two events that tell everything about a run.
const BETWEEN_RUNS: Duration = Duration::from_secs(2);

/// An event, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) bytes: Bytes,
    /// Whether nothing comes after it.
    pub(crate) is_last: bool,
}

impl Event {
    pub(crate) fn new(name: &str, data: &impl Serialize) -> Self {
        let mut text = String::new();
        let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_string());
        // Writing to a string does not fail, and JSON has no line ends.
        let _ = write!(text, "event: {name}\ndata: {data}\n\n");
        Self { bytes: text.into(), is_last: false }
    }
}

/// What was sent already.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    about: u64,
    about_at: Option<Instant>,
    series: u64,
    /// Whether the log was not read to its end at the last look.
    was_loading: bool,
}

impl Follower {
    /// Listens to the events of a run; the first one says where it stands. Looks at the run as long as anybody listens.
    pub(crate) fn listen(self: &Arc<Self>) -> (Event, Receiver<Event>) {
        let receiver = self.events.subscribe();
        let reading = self.look();
        let hello = Event::new(
            "hello",
            &json!({ "version": reading.log.version, "live": reading.account.is_live() }),
        );
        drop(reading);
        (hello, receiver)
    }

    /// Sends events until nobody listens or the run is over. One of these runs at a time.
    pub(crate) async fn send_events(self: Arc<Self>) {
        if std::mem::replace(&mut *self.is_sending.lock().unwrap_or_else(PoisonError::into_inner), true) {
            return;
        }
        self.reading().sent = Sent { was_loading: true, ..Sent::default() };
        loop {
            {
                let mut is_sending = self.is_sending.lock().unwrap_or_else(PoisonError::into_inner);
                if !self.is_watched() {
                    *is_sending = false;
                    break;
                }
            }
            let this = Arc::clone(&self);
            let look = tokio::task::spawn_blocking(move || this.news());
            let (events, is_loading) = match look.await {
                Ok(news) => news,
                Err(error) => {
                    tracing::warn!("the dashboard cannot follow {}: {error}", self.dir().id());
                    (Vec::new(), false)
                }
            };
            for event in events {
                // Nobody may be left to hear it.
                let _ = self.events.send(event);
            }
            let pause = if is_loading { Duration::from_millis(5) } else { BETWEEN };
            tokio::time::sleep(pause).await;
        }
        self.reading().log.keep_fresh(false);
    }

    /// Looks at the run; what is new since the last time, and whether there is more to read at once.
    fn news(&self) -> (Vec<Event>, bool) {
        let mut reading = self.reading();
        let reading = &mut *reading;
        reading.advance();
        let mut events = Vec::new();
        reading.add_points(&mut events);
        let is_loading = reading.account.loading.is_some();
        let live = reading.account.is_live();
        let is_due = |at: Instant| at.elapsed() >= BETWEEN_RUNS;
        let version = reading.account.version + reading.about.version;
        let is_new = reading.sent.about != version;
        if is_new && !is_loading && (!live || reading.sent.about_at.is_none_or(is_due)) {
            reading.sent.about = version;
            reading.sent.about_at = Some(Instant::now());
            events.push(Event::new("run", &reading.about_json()));
        }
        if !live && !is_loading {
            let last = Event::new("end", &json!({ "status": reading.account.status() }));
            events.push(Event { is_last: true, ..last });
        }
        (events, is_loading)
    }
}

impl Reading {
    /// New points, or the word that all have to be asked for again.
    fn add_points(&mut self, events: &mut Vec<Event>) {
        let version = self.log.version;
        if self.account.loading.is_some() {
            self.log.keep_fresh(false);
            self.sent.was_loading = true;
            return;
        }
        if std::mem::take(&mut self.sent.was_loading) || self.sent.series != version {
            self.sent.series = version;
            self.log.keep_fresh(false);
            events.push(Event::new("refetch", &json!({ "version": version })));
        } else {
            let points = |(name, series): (&str, super::Series)| {
                let columns = series.columns();
                let told = json!({ "step": columns.step, "value": columns.value, "time": columns.time });
                (name.to_string(), told)
            };
            let fresh: Map<String, Value> = self.log.take_fresh().into_iter().map(points).collect();
            if !fresh.is_empty() {
                events.push(Event::new("rows", &json!({ "version": version, "series": fresh })));
            }
        }
        self.log.keep_fresh(true);
    }
}
