//! Where a webhook may send, and how its address is shown.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use url::{Host, Url};

/// An address whose path, query and user are secrets: whoever knows them can write to the channel. It is only ever shown as
/// `https://host/<redacted>`, also when it is serialized.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// An address, in clear.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The address, if it is one that may be used; else what is wrong with it, without a word of it.
    pub(super) fn parse(&self, allow_local: bool) -> Result<Url, String> {
        if self.0 == "<redacted>" {
            return Err("the address is secret and was left out when this file was recorded; write it in again, or give \
                        `url_env`"
                .to_string());
        }
        let url = Url::parse(self.0.trim()).map_err(|error| format!("the address is not a URL: {error}"))?;
        match url.scheme() {
            "https" => {}
            "http" if allow_local => {}
            "http" => {
                return Err("the address must begin with https; http is only for local addresses, with \
                            `allow_local = true`"
                    .to_string());
            }
            _ => return Err("the address must begin with https://".to_string()),
        }
        if let Some(ip) = literal(&url)
            && !may_reach(&url, ip, allow_local)
        {
            return Err(REFUSED.to_string());
        }
        Ok(url)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Url::parse(self.0.trim()) {
            Ok(url) => f.write_str(&shown(&url)),
            Err(_) => f.write_str("<redacted>"),
        }
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for SecretUrl {
    fn schema_name() -> Cow<'static, str> {
        "SecretUrl".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// What may be shown of an address.
pub(super) fn shown(url: &Url) -> String {
    match (url.scheme(), url.host()) {
        ("https" | "http", Some(host)) => format!("{}://{host}/<redacted>", url.scheme()),
        _ => "<redacted>".to_string(),
    }
}

pub(super) const REFUSED: &str = "the host is at an address that webhooks may not reach: public ones need https, local ones \
                                  `allow_local = true`";

/// Who can be behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Anybody.
    Public,
    /// This machine, this network, or the cloud's metadata service.
    Local,
    /// Nobody in particular.
    Never,
}

fn reach(ip: IpAddr) -> Reach {
    match ip {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        [0, ..] | [224..=255, ..] => Reach::Never, // unspecified, multicast, reserved, broadcast
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Reach::Never, // documentation
        [198, 18..=19, ..] => Reach::Never,        // benchmarks
        [127, ..] | [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Reach::Local,
        [169, 254, ..] => Reach::Local, // link-local, where clouds have their metadata
        [100, 64..=127, ..] | [192, 0, 0, _] => Reach::Local, // carriers' and protocols' own, metadata of other clouds
        _ => Reach::Public,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    if let Some(inner) = ip.to_ipv4_mapped() {
        // A name for an IPv4 address that an honest host does not use.
        return if reach_v4(inner) == Reach::Local { Reach::Local } else { Reach::Never };
    }
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Local,
        [0xfc00..=0xfdff, ..] | [0xfe80..=0xfeff, ..] => Reach::Local, // unique local, link-local, site-local
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] => Reach::Never, // protocols (Teredo), documentation
        [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Never, // 6to4 hides an IPv4 address; documentation
        [0x2000..=0x3fff, ..] => Reach::Public,
        _ => Reach::Never,
    }
}

/// Public addresses need https; local ones must be allowed.
fn may_reach(url: &Url, ip: IpAddr, allow_local: bool) -> bool {
    match reach(ip) {
        Reach::Public => url.scheme() == "https",
        Reach::Local => allow_local && matches!(url.scheme(), "https" | "http"),
        Reach::Never => false,
    }
}

fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
        Host::Domain(_) => None,
    }
}

/// How names become addresses.
pub(super) type Lookup = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// The system's way.
pub(super) fn system_lookup() -> Lookup {
    Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
}

/// Addresses that were checked. The connection goes to these very ones: a second lookup could give others.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) addresses: Vec<SocketAddr>,
    /// Whether all of them are local.
    pub(super) local: bool,
}

/// Why there is no address.
#[derive(Debug, PartialEq)]
pub(super) enum NoAddress {
    NotFound,
    Refused,
}

/// Looks the host up and keeps the addresses that may be reached.
pub(super) fn resolve(url: &Url, allow_local: bool, lookup: &Lookup) -> Result<Checked, NoAddress> {
    let port = url.port_or_known_default().ok_or(NoAddress::NotFound)?;
    let found = match (literal(url), url.host_str()) {
        (Some(ip), _) => vec![SocketAddr::new(ip, port)],
        (None, Some(host)) => lookup(host, port).map_err(|_| NoAddress::NotFound)?,
        (None, None) => Vec::new(),
    };
    if found.is_empty() {
        return Err(NoAddress::NotFound);
    }
    let addresses: Vec<SocketAddr> =
        found.into_iter().filter(|address| may_reach(url, address.ip(), allow_local)).collect();
    match addresses.is_empty() {
        true => Err(NoAddress::Refused),
        false => {
            let local = addresses.iter().all(|address| reach(address.ip()) == Reach::Local);
            Ok(Checked { addresses, local })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p35_addresses_are_sorted_by_who_is_behind() {
        let public = ["8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111"];
        let local = [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.0.0.192",
            "::1",
            "fd00:ec2::254",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ];
        let never = [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "203.0.113.1",
            "198.18.0.1",
            "::",
            "ff02::1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
        ];
        let check = |list: &[&str], want| {
            list.iter().for_each(|ip| assert_eq!(reach(ip.parse().unwrap()), want, "{ip}"));
        };
        check(&public, Reach::Public);
        check(&local, Reach::Local);
        check(&never, Reach::Never);
    }

    #[test]
    fn p35_literal_addresses_are_seen_through() {
        for url in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/latest",
            "https://0.0.0.0/",
            "http://8.8.8.8/",
            "http://hooks.example/",
            "ftp://hooks.example/",
            "file:///etc/passwd",
            "hooks.example",
            "",
        ] {
            assert!(SecretUrl::new(url).parse(false).is_err(), "{url}");
        }
        assert!(SecretUrl::new("https://hooks.example/T/B").parse(false).is_ok());
        assert!(SecretUrl::new("https://8.8.8.8/").parse(false).is_ok());
        for (url, good) in [
            ("http://127.0.0.1:1/", true),
            ("https://10.0.0.1/", true),
            ("http://hooks.example/", true), // decided once its addresses are known
            ("http://8.8.8.8/", false),
            ("https://0.0.0.0/", false),
            ("https://224.0.0.1/", false),
        ] {
            assert_eq!(SecretUrl::new(url).parse(true).is_ok(), good, "{url}");
        }
    }

    fn told(
        url: &str,
        allow_local: bool,
        answers: &'static [&'static str],
    ) -> Result<(usize, bool), NoAddress> {
        let lookup: Lookup = Arc::new(|_, port| {
            Ok(answers.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect())
        });
        resolve(&Url::parse(url).unwrap(), allow_local, &lookup).map(|it| (it.addresses.len(), it.local))
    }

    #[test]
    fn p35_names_are_judged_by_their_addresses() {
        let (https, http) = ("https://a.example/", "http://a.example/");
        assert_eq!(told(https, false, &["8.8.8.8"]), Ok((1, false)));
        assert_eq!(told(https, false, &["10.0.0.1"]), Err(NoAddress::Refused));
        assert_eq!(
            told(https, false, &["10.0.0.1", "8.8.8.8", "::1"]),
            Ok((1, false)),
            "only the public one"
        );
        assert_eq!(told(https, true, &["10.0.0.1"]), Ok((1, true)));
        assert_eq!(told(https, true, &["10.0.0.1", "8.8.8.8"]), Ok((2, false)));
        assert_eq!(told(http, true, &["8.8.8.8"]), Err(NoAddress::Refused));
        assert_eq!(told(http, true, &["8.8.8.8", "127.0.0.1"]), Ok((1, true)));
        assert_eq!(told(https, true, &["0.0.0.0"]), Err(NoAddress::Refused));
        assert_eq!(told(https, false, &[]), Err(NoAddress::NotFound));
    }

    #[test]
    fn p34_only_scheme_and_host_are_shown() {
        let secret = SecretUrl::new("https://user:hunter2@hooks.example:8443/T0/hunter2?key=hunter2#hunter2");
        let shown = [
            format!("{secret}"),
            format!("{secret:?}"),
            serde_json::to_string(&secret).unwrap(),
            format!("{:?}", Some(&secret)),
        ];
        for text in &shown {
            assert!(text.contains("https://hooks.example/<redacted>") && !text.contains("hunter2"), "{text}");
        }
        for broken in ["hunter2", "hunter2://x", "https://", "data:hunter2", "https://hunter2 hunter2/"] {
            assert_eq!(SecretUrl::new(broken).to_string(), "<redacted>");
            let error = SecretUrl::new(broken).parse(true).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
