//! A process that is caught at work.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::Ran;

/// Longer than anything takes; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that is running. Dropped before its end, it is killed.
pub(crate) struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (heard, stderr) = (said.clone(), child.stderr.take().unwrap());
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let mut heard = heard.lock().unwrap();
                heard.push_str(&line.unwrap());
                heard.push('\n');
            }
        });
        Self { child, said, reader: Some(reader) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said this on standard error.
    pub(crate) fn wait_for(&mut self, words: &str) {
        let said = self.said.clone();
        self.wait_until(words, || said.lock().unwrap().contains(words));
    }

    /// Waits until something is so.
    pub(crate) fn wait_until(&mut self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before `{what}`: {}", self.said());
            assert!(began.elapsed() < PATIENCE, "never `{what}`: {}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal, and waits until the process has taken it.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
        let waits = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let mut masks = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:"));
            masks.any(|mask| mask.trim().contains(|digit| digit != '0'))
        };
        let began = Instant::now();
        while waits() && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Ran {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        Ran { code: status.code(), stdout: String::new(), stderr: self.said() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
