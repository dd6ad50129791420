//! What can go wrong: before the server starts, and while it answers.

use std::io;
use std::net::{IpAddr, SocketAddr};

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why a dashboard did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address that others can reach, and no token.
    #[error(
        "the dashboard is not served at {address} without a token, because other machines reach it there; give one with --token"
    )]
    NoToken {
        /// The address.
        address: IpAddr,
    },
    /// A token that could be guessed or does not survive a cookie.
    #[error("the token must be 16 to 256 letters, digits, `-` and `_`")]
    WeakToken,
    /// The system has no random numbers.
    #[error("no token can be made: the system gives no random numbers: {0}")]
    NoRandomness(String),
    /// The address cannot be listened at.
    #[error(
        "the dashboard cannot listen at {address}: {source}; another --port may be free, and 0 takes any that is"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// There is no thread for it.
    #[error("the dashboard has nothing to run on: {0}")]
    NoThread(io::Error),
    /// The directory of captures is none.
    #[error("{}: is not a directory of captures: {problem}", path.display())]
    Captures {
        /// The path.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// An answer that says no, with one sentence why.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// Something on the disk is not as it should be.
    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}
