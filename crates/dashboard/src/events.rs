//! Streams of events to clients.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_stream::Stream;
use tokio_stream::wrappers::BroadcastStream;

use crate::error::Refusal;
use crate::follow::Event;
use crate::runs::Runs;

/// More streams than these are refused.
const MOST: usize = 256;
/// Between two comments that keep a stream alive, at most.
const COMMENTS: Duration = Duration::from_secs(15);
/// Between two looks at the list of runs.
const BETWEEN_LISTS: Duration = Duration::from_secs(2);

/// The room for streams.
pub(crate) struct Streams {
    free: Arc<Semaphore>,
    comments: Duration,
}

/// Room for one stream.
pub(crate) struct Room {
    comments: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Streams {
    /// On connections that are closed when they are idle for so long.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(MOST)), comments: COMMENTS.min(patience / 2) }
    }

    /// Room for one more.
    pub(crate) fn room(&self) -> Result<Room, Refusal> {
        let busy = |_| Refusal::busy("too many pages listen already; close some");
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(busy)?;
        Ok(Room { comments: self.comments, _permit: permit })
    }
}

/// A stream as an answer.
pub(crate) fn answer(first: Event, receiver: Receiver<Event>, room: Room) -> Response {
    let mut comments = tokio::time::interval_at(tokio::time::Instant::now() + room.comments, room.comments);
    comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = EventStream {
        first: Some(first),
        events: BroadcastStream::new(receiver),
        comments,
        is_over: false,
        _room: room,
    };
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

/// What one client gets. One that is too slow is sent away, and asks for everything when it comes again.
struct EventStream {
    first: Option<Event>,
    events: BroadcastStream<Event>,
    comments: Interval,
    is_over: bool,
    _room: Room,
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(first) = self.first.take() {
            self.is_over = first.is_last;
            return Poll::Ready(Some(Ok(first.bytes)));
        }
        match Pin::new(&mut self.events).poll_next(cx) {
            Poll::Ready(Some(Ok(event))) => {
                self.is_over = event.is_last;
                return Poll::Ready(Some(Ok(event.bytes)));
            }
            Poll::Ready(_) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        match self.comments.poll_tick(cx) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Bytes::from_static(b": still here\n\n")))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The list of runs, to all who listen.
pub(crate) struct ListEvents {
    events: broadcast::Sender<Event>,
    is_sending: std::sync::Mutex<bool>,
}

impl ListEvents {
    pub(crate) fn new() -> Self {
        Self { events: broadcast::Sender::new(4), is_sending: std::sync::Mutex::new(false) }
    }

    pub(crate) fn listen(&self) -> Receiver<Event> {
        self.events.subscribe()
    }

    /// Sends the list when it has changed, as long as somebody listens. One of these runs at a time.
    pub(crate) async fn send(self: Arc<Self>, runs: Arc<Runs>) {
        let lock = || self.is_sending.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *lock(), true) {
            return;
        }
        let mut sent = Value::Null;
        loop {
            {
                let mut is_sending = lock();
                if self.events.receiver_count() == 0 {
                    *is_sending = false;
                    return;
                }
            }
            let runs = Arc::clone(&runs);
            if let Ok(list) = tokio::task::spawn_blocking(move || runs.list()).await
                && without_seconds(&list) != sent
            {
                sent = without_seconds(&list);
                // Nobody may be left to hear it.
                let _ = self.events.send(Event::new("runs", &list));
            }
            tokio::time::sleep(BETWEEN_LISTS).await;
        }
    }
}

/// That time goes on is no news.
fn without_seconds(list: &Value) -> Value {
    let mut list = list.clone();
    for run in list["runs"].as_array_mut().into_iter().flatten() {
        run["seconds"] = Value::Null;
    }
    list
}
