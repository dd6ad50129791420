//! Who may ask for what: looked at before any request is.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;

use crate::error::Refusal;
use crate::listen::Busy;

/// The longest path and query.
const LONGEST_URI: usize = 8 << 10;
/// The header that carries the token with a request that changes something.
pub(crate) const TOKEN_HEADER: &str = "x-tenterhook-token";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is needed to let a request in.
pub(crate) struct Guard {
    address: SocketAddr,
    token: Option<String>,
    /// Whether the token is needed to see anything.
    is_open: bool,
    control: bool,
}

impl Guard {
    pub(crate) fn new(address: SocketAddr, token: Option<String>, is_open: bool, control: bool) -> Self {
        Self { address, token, is_open, control }
    }

    /// Looks at everything that does not depend on what is asked for.
    fn admit(&self, request: &Request) -> Result<(), Refusal> {
        let (headers, uri) = (request.headers(), request.uri());
        if uri.path().len() + uri.query().map_or(0, str::len) > LONGEST_URI {
            return Err(Refusal::new(StatusCode::URI_TOO_LONG, "the address is too long"));
        }
        let knows_token = self.is_open && self.has_token(headers);
        if !knows_token && !self.is_own_host(headers, uri) {
            return Err(Refusal::forbidden(
                "this Host is not served here; open the dashboard by the address it printed",
            ));
        }
        if self.is_open && !knows_token {
            let message = "this dashboard needs its token: open the address it printed, with `?token=`";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if uri.path().starts_with("/api") && matches!(site, Some(b"cross-site" | b"same-site")) {
            return Err(Refusal::forbidden("other sites cannot ask for this"));
        }
        match *request.method() {
            Method::GET | Method::HEAD => Ok(()),
            Method::POST => self.admit_change(headers),
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are known here")),
        }
    }

    fn admit_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !self.control {
            return Err(Refusal::forbidden(
                "this dashboard only shows; start it with --control to change hooks",
            ));
        }
        let given = headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes);
        if !given.is_some_and(|given| self.is_token(given)) {
            return Err(Refusal::forbidden(
                "the control token is missing or wrong: it goes into the header x-tenterhook-token, and the terminal shows it",
            ));
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
            if origin.as_bytes().strip_prefix(b"http://") != Some(host) {
                return Err(Refusal::forbidden("other sites cannot change anything"));
            }
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be application/json",
            ));
        }
        Ok(())
    }

    /// A name that another site could have made up for this machine's address is not answered to.
    fn is_own_host(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let named = |host: &str| self.is_own_name(without_port(host));
        host.to_str().is_ok_and(named) && uri.authority().is_none_or(|authority| named(authority.as_str()))
    }

    fn is_own_name(&self, host: &str) -> bool {
        let ip = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match ip.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || ip == self.address.ip(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        }
    }

    fn is_token(&self, given: &[u8]) -> bool {
        self.token.as_ref().is_some_and(|token| token.as_bytes().ct_eq(given).into())
    }

    /// Whether a request for reading carries the token: as a cookie, or in a header for programs.
    fn has_token(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let cookie = cookies.flat_map(|cookies| cookies.split(';')).any(|cookie| {
            let cookie = cookie.trim().split_once('=');
            cookie.is_some_and(|(key, value)| key == name && self.is_token(value.as_bytes()))
        });
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let header = headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes).or(bearer);
        cookie || header.is_some_and(|given| self.is_token(given))
    }

    /// Cookies do not know ports, so their name does.
    fn cookie_name(&self) -> String {
        format!("tenterhook_{}", self.address.port())
    }

    /// `/?token=...`: the token becomes a cookie and leaves the address bar.
    fn sign_in(&self, request: &Request) -> Option<Response> {
        if !self.is_open || request.uri().path() != "/" || request.method() != Method::GET {
            return None;
        }
        let given = request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("token="))?;
        if !self.is_token(given.as_bytes()) {
            return Some(Refusal::forbidden("the token is wrong; the terminal shows it").into_response());
        }
        let cookie = format!("{}={given}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name());
        Some(([(SET_COOKIE, cookie)], Redirect::to("/")).into_response())
    }
}

/// The host of `host:port`, with its brackets where it has some.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Lets a request in or refuses it, and puts the headers on every answer that keep a browser from being talked into something.
pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    ConnectInfo(busy): ConnectInfo<Busy>,
    request: Request,
    next: Next,
) -> Response {
    let is_api = request.uri().path().starts_with("/api");
    let mut response = match guard.sign_in(&request) {
        Some(response) => response,
        None => match guard.admit(&request) {
            Ok(()) => {
                busy.set(true);
                let response = next.run(request).await;
                busy.set(false);
                response
            }
            Err(refusal) => refusal.into_response(),
        },
    };
    let always = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let headers = response.headers_mut();
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_api || !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p36_only_names_of_this_machine_are_answered_to() {
        let guard = Guard::new("127.0.0.1:7878".parse().unwrap(), None, false, false);
        for host in ["localhost", "LOCALHOST:7878", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80"] {
            assert!(guard.is_own_name(without_port(host)), "{host}");
        }
        let foreign = [
            "",
            ":7878",
            "evil.example",
            "evil.example:7878",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:80:80",
            "localhost:x",
            "localhost.",
            "[::1",
            "[::1]x",
            "0.0.0.0",
            "192.168.0.1",
            "user@localhost",
            "2130706433",
            "[::ffff:1.2.3.4]",
        ];
        for host in foreign {
            assert!(!guard.is_own_name(without_port(host)), "{host}");
        }
    }

    #[test]
    fn p36_only_the_very_token_is_the_token() {
        let token = "0123456789abcdef";
        let guard = Guard::new("127.0.0.1:1".parse().unwrap(), Some(token.to_string()), true, true);
        assert!(guard.is_token(token.as_bytes()));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF", " 0123456789abcdef"] {
            assert!(!guard.is_token(wrong.as_bytes()), "{wrong}");
        }
        let none = Guard::new("127.0.0.1:1".parse().unwrap(), None, false, true);
        assert!(!none.is_token(b""));
    }
}
