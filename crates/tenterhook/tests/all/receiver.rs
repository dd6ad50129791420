//! A server on this machine that webhooks can be sent to.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it does with a request.
#[derive(Clone)]
pub(crate) enum Answer {
    Status(u16),
    Redirect(String),
    /// The same as 200, but only after a while.
    Late(Duration),
    Never,
}

pub(crate) struct Receiver {
    pub(crate) port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// Answers every request alike, for as long as this process lives.
    pub(crate) fn new(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let list = heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, list, answer) = (stream.unwrap(), list.clone(), answer.clone());
                std::thread::spawn(move || drop(serve(stream, &answer, &list)));
            }
        });
        Self { port, heard }
    }

    /// `POST /path {"text":...}` of every request.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, answer: &Answer, heard: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let what = first.trim().trim_end_matches(" HTTP/1.1").to_string();
    heard.lock().unwrap().push(format!("{what} {}", String::from_utf8_lossy(&body)));
    let (status, more) = match answer {
        Answer::Status(status) => (*status, String::new()),
        Answer::Redirect(to) => (302, format!("location: {to}\r\n")),
        Answer::Late(pause) => {
            std::thread::sleep(*pause);
            (200, String::new())
        }
        Answer::Never => {
            std::thread::sleep(Duration::from_secs(600));
            return Ok(());
        }
    };
    (&stream).write_all(format!("HTTP/1.1 {status} X\r\n{more}content-length: 0\r\n\r\n").as_bytes())
}
