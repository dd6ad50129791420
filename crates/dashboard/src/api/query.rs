//! The part of an address behind the `?`.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use crate::error::Refusal;

/// The pairs of a query, in order.
pub(super) struct Pairs(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let pairs = Query::try_from_uri(&parts.uri);
        pairs.map(|Query(pairs)| Self(pairs)).map_err(|_| Refusal::bad_request("the query cannot be read"))
    }
}

impl Pairs {
    /// All values of a key.
    pub(super) fn all(&self, key: &str) -> Vec<String> {
        self.0.iter().filter(|(found, _)| found == key).map(|(_, value)| value.clone()).collect()
    }

    /// The value of a key.
    pub(super) fn one(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key that must be there.
    pub(super) fn needed(&self, key: &str) -> Result<&str, Refusal> {
        self.one(key).ok_or_else(|| Refusal::bad_request(format!("`{key}` is missing")))
    }

    /// The value of a key as a number.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Refusal> {
        let parse = |text: &str| text.parse();
        let number = self.one(key).map(parse).transpose();
        number.map_err(|_| Refusal::bad_request(format!("`{key}` is not a whole number")))
    }
}
