//! A dashboard of made-up runs, and a client that sends what it is told to, byte by byte.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tenterhook_dashboard::{Options, Server};
use tenterhook_record::run::{RunDir, RunRecord, Status};

/// A dashboard of a directory of its own.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: Server,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.head, self.body))
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With other options.
    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options { port: Some(0), ..Options::new(&dir.path().join("runs")) };
        fs::create_dir(&options.runs_dir).unwrap();
        change(&mut options);
        Self { server: Server::start(options).unwrap(), dir }
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    /// A run with this record.
    pub(crate) fn run(&self, id: &str, change: impl FnOnce(&mut RunRecord)) -> RunDir {
        let dir = RunDir::create(&self.runs(), Some(id)).unwrap();
        let mut record = RunRecord::new(id);
        record.status = Status::Completed;
        change(&mut record);
        record.write(&dir).unwrap();
        dir
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let port = self.server.address().port();
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// Asks until the log is read to its end.
    pub(crate) fn loaded(&self, path: &str) -> Value {
        loop {
            let told = self.json(path);
            if told["loading"].is_null() {
                return told;
            }
        }
    }

    /// Sends these bytes and reads the answer to its end.
    pub(crate) fn send(&self, request: &str) -> Answer {
        send(self.address(), request.as_bytes())
    }
}

pub(crate) fn send(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may answer and leave before it has read everything.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let body = bytes.get(end + 4..).unwrap_or_default();
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_vec() };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    whole
}

/// Writes a log of so many rows, with the value of every metric as a function of the step.
pub(crate) fn write_log(
    run: &RunDir,
    steps: std::ops::Range<u64>,
    names: &[&str],
    value: impl Fn(u64, usize) -> f64,
) {
    let file = OpenOptions::new().create(true).append(true).open(run.metrics_path()).unwrap();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    for step in steps {
        write!(file, "{{\"step\":{step},\"epoch\":0,\"time\":{}.5", 1_000_000 + step).unwrap();
        for (i, name) in names.iter().enumerate() {
            write!(file, ",{}:{}", json!(name), value(step, i)).unwrap();
        }
        file.write_all(b"}\n").unwrap();
    }
    file.flush().unwrap();
}

/// A text as one segment of a path, with everything that could mean something escaped.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// A safetensors file with these tensors of f32.
pub(crate) fn write_tensors(path: &Path, tensors: &[(&str, &[usize], Vec<f32>)]) {
    let views: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape, values)| {
            (name.to_string(), shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = views.iter().map(|(name, shape, bytes)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
