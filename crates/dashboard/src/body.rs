//! Answers that wait to be sent, and how much memory they take together.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;

use crate::error::Refusal;

/// What all answers that are not sent yet may take, in units of [`UNIT`] bytes.
const UNITS: usize = 4096;
const UNIT: usize = 16 << 10;
/// What the connection gets at a time.
const CHUNK: usize = 64 << 10;

/// Limits the answers that wait for slow readers.
#[derive(Clone)]
pub(crate) struct Bodies(Arc<Semaphore>);

impl Bodies {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(UNITS)))
    }

    /// Data as JSON, when there is room for it.
    pub(crate) fn json(&self, data: &impl Serialize) -> Result<Response, Refusal> {
        let bytes = serde_json::to_vec(data)
            .map_err(|error| Refusal::unreadable(format!("the answer cannot be JSON: {error}")))?;
        let kind = [(CONTENT_TYPE, "application/json")];
        if bytes.len() <= CHUNK {
            return Ok((kind, bytes).into_response());
        }
        let units = u32::try_from(bytes.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.0).try_acquire_many_owned(units);
        let permit =
            permit.map_err(|_| Refusal::busy("too many answers wait to be read; try again in a moment"))?;
        Ok((kind, Body::from_stream(Waiting { bytes, sent: 0, _permit: permit })).into_response())
    }
}

/// An answer that goes out in chunks. They are copies, so that the whole is gone as soon as the last one is taken.
struct Waiting {
    bytes: Vec<u8>,
    sent: usize,
    _permit: OwnedSemaphorePermit,
}

impl Stream for Waiting {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let end = (self.sent + CHUNK).min(self.bytes.len());
        if self.sent == end {
            return Poll::Ready(None);
        }
        let chunk = Bytes::copy_from_slice(&self.bytes[self.sent..end]);
        self.sent = end;
        Poll::Ready(Some(Ok(chunk)))
    }
}
