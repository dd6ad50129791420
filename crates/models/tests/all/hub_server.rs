//! A hub on this machine: as much of it as a download asks for.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Manner {
    #[default]
    Right,
    /// With this status, whatever is asked.
    Status(u16),
    /// Never.
    Silent,
    /// Each file comes by half, and the connection ends.
    Half,
    /// Files are called this.
    Etag(&'static str),
}

pub(crate) struct HubServer {
    pub(crate) address: String,
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

struct Shelf {
    repo: String,
    files: BTreeMap<String, Vec<u8>>,
    manner: Manner,
    asked: Arc<Mutex<Vec<String>>>,
}

impl HubServer {
    /// With one model. It ends with the test's process.
    pub(crate) fn start(repo: &str, files: BTreeMap<String, Vec<u8>>, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let shelf = Arc::new(Shelf { repo: repo.to_string(), files, manner, asked: asked.clone() });
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shelf = shelf.clone();
                thread::spawn(move || shelf.serve(stream.unwrap()));
            }
        });
        Self { address, asked }
    }

    /// The lines it was asked with, and the headers that matter.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Shelf {
    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                match line.trim() {
                    "" => break,
                    line => head.push(line.to_string()),
                }
            }
            let header = |name: &str| {
                let line = head.iter().find(|line| line.to_ascii_lowercase().starts_with(name));
                line.map(|line| line.split_once(':').unwrap().1.trim().to_string())
            };
            let path = head[0].split(' ').nth(1).unwrap().to_string();
            let who = header("authorization").unwrap_or_default();
            self.asked.lock().unwrap().push(format!("{path} {who}").trim().to_string());
            if self.manner == Manner::Silent {
                thread::park();
            }
            let range = header("range").unwrap_or_default();
            if self.answer(&path, &range, &mut stream).is_err() {
                return;
            }
        }
    }

    fn answer(&self, path: &str, range: &str, to: &mut TcpStream) -> std::io::Result<()> {
        if let Manner::Status(code) = self.manner {
            return write!(to, "HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n");
        }
        if path.starts_with(&format!("/api/models/{}/revision/", self.repo)) {
            let siblings: Vec<_> = self.files.keys().map(|name| json!({ "rfilename": name })).collect();
            let body = json!({ "siblings": siblings, "sha": COMMIT }).to_string();
            return write!(
                to,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        let file = path
            .strip_prefix(&format!("/{}/resolve/{COMMIT}/", self.repo))
            .and_then(|name| self.files.get_key_value(name));
        let Some((name, bytes)) = file else {
            return write!(to, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        };
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(bytes.len() - 1);
        let etag = if let Manner::Etag(etag) = self.manner {
            etag.to_string()
        } else {
            format!("etag_{}", name.replace('.', "_"))
        };
        let part = &bytes[first..=last];
        write!(
            to,
            "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\nContent-Range: bytes {first}-{last}/{}\r\nContent-Length: {}\r\n\r\n",
            bytes.len(),
            part.len()
        )?;
        if self.manner == Manner::Half && part.len() > 1 {
            to.write_all(&part[..part.len() / 2])?;
            return Err(std::io::Error::other("enough"));
        }
        to.write_all(part)
    }
}
