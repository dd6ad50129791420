//! Sending a message.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use url::Url;

use super::address::{Lookup, NoAddress, REFUSED, resolve};

/// How often a message is tried.
pub(super) const TRIES: u32 = 3;
/// Characters of a message; chats cut longer ones or refuse them.
const LONGEST: usize = 4000;
/// How many redirects from one local address to another are followed.
const HOPS: u32 = 3;
/// As many addresses as the client has room for.
const ADDRESSES: usize = 16;

/// Where and how messages are sent. It has no `Debug`: its address is a secret.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) url: Url,
    pub(super) allow_local: bool,
    pub(super) timeout: Duration,
    /// The pause before the second try; each further one is twice as long.
    pub(super) pause: Duration,
    pub(super) lookup: Lookup,
}

/// Why a message did not arrive. The words are ours: those of a library may hold the address.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    /// It may do another time.
    Again(String),
    /// It will not.
    Final(String),
}

impl Post {
    /// Sends `{"text": ...}` once.
    pub(super) fn send(&self, text: &str) -> Result<(), Failure> {
        let text: String = text.chars().take(LONGEST).collect();
        let body = serde_json::json!({ "text": text }).to_string();
        let deadline = Instant::now() + self.timeout;
        let mut url = self.url.clone();
        for hop in 0..=HOPS {
            let checked = resolve(&url, self.allow_local, &self.lookup).map_err(|problem| match problem {
                NoAddress::NotFound => Failure::Again("the host was not found".to_string()),
                NoAddress::Refused => Failure::Final(REFUSED.to_string()),
            })?;
            // From a local address only to another.
            if hop > 0 && !checked.local {
                return Err(refused_redirect());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let agent = agent(checked.addresses, left);
            let request = agent.post(url.as_str()).header("content-type", "application/json");
            // What the other side answers does not matter beyond its status: the body is never read.
            let response = unheard(|| request.send(body.as_bytes())).map_err(in_our_words)?;
            let status = response.status().as_u16();
            match status {
                200..=299 => return Ok(()),
                // These ask for the same message at another place.
                301 | 302 | 307 | 308 => {
                    let location = response.headers().get("location").and_then(|to| to.to_str().ok());
                    url = self.next(&url, checked.local, location)?;
                }
                300..=399 => return Err(refused_redirect()),
                408 | 429 | 500.. => return Err(Failure::Again(format!("the answer was {status}"))),
                _ => return Err(Failure::Final(format!("the answer was {status}"))),
            }
        }
        Err(Failure::Final(format!("refused redirect: there are more than {HOPS}")))
    }

    /// Where a redirect leads. Elsewhere than between local addresses it would be a way inward, and is refused.
    pub(super) fn next(&self, from: &Url, local: bool, location: Option<&str>) -> Result<Url, Failure> {
        let to = location.filter(|_| local && self.allow_local).and_then(|to| from.join(to).ok());
        to.filter(|to| matches!(to.scheme(), "http" | "https")).ok_or_else(refused_redirect)
    }
}

/// Does something that nobody hears of: the client's own log has the address in it, and every byte that it sends.
fn unheard<T>(work: impl FnOnce() -> T) -> T {
    tracing::dispatcher::with_default(&tracing::Dispatch::none(), work)
}

fn refused_redirect() -> Failure {
    Failure::Final("refused redirect: give the address that the message is meant for".to_string())
}

/// A client that knows these addresses and no others: no lookup, no proxy, no redirects, no connection kept.
fn agent(mut addresses: Vec<SocketAddr>, timeout: Duration) -> Agent {
    addresses.truncate(ADDRESSES);
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .timeout_global(Some(timeout))
        .build();
    Agent::with_parts(config, DefaultConnector::default(), Fixed(addresses))
}

#[derive(Debug)]
struct Fixed(Vec<SocketAddr>);

impl Resolver for Fixed {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        self.0.iter().for_each(|address| addresses.push(*address));
        Ok(addresses)
    }
}

fn in_our_words(error: ureq::Error) -> Failure {
    let what = match error {
        ureq::Error::Timeout(_) => "no answer in time".to_string(),
        ureq::Error::Io(error) => format!("the connection failed ({:?})", error.kind()),
        ureq::Error::ConnectionFailed => "the connection failed".to_string(),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
            "the encryption failed, or the certificate is not trusted".to_string()
        }
        ureq::Error::Protocol(_) => "the answer is not HTTP".to_string(),
        _ => "the message could not be sent".to_string(),
    };
    Failure::Again(what)
}
