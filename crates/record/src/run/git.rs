//! Which commit the code is at.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long git may take before its answer is given up.
const LIMIT: Duration = Duration::from_secs(2);

/// The commit of the repository a directory is in, or `unknown`, and whether tracked files differ from it. Files that
/// git does not track do not count: a run's own output would be among them.
///
/// Git is asked for two seconds at most per question, and changes nothing.
pub fn git_state(dir: &Path) -> (String, Option<bool>) {
    let commit = git(dir, &["rev-parse", "--verify", "--quiet", "HEAD"]);
    match commit.map(|commit| commit.trim().to_string()).filter(|commit| !commit.is_empty()) {
        None => ("unknown".to_string(), None),
        Some(commit) => {
            let changes = git(dir, &["status", "--porcelain", "--untracked-files=no"]);
            (commit, changes.map(|changes| !changes.trim().is_empty()))
        }
    }
}

/// What git prints, when it is there, succeeds and is quick enough.
fn git(dir: &Path, args: &[&str]) -> Option<String> {
    let mut child = Command::new("git")
        .arg("-C")
        .arg(dir)
        // A repository's configuration may name a program to ask for changes; it is not run.
        .args(["-c", "core.fsmonitor=false"])
        .args(args)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = child.stdout.take()?;
    let (send, receive) = mpsc::channel();
    // Reading happens apart, so that it can be given up.
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = output.read_to_end(&mut text).map(|_| text);
        let _ = send.send(read);
    });
    let text = receive.recv_timeout(LIMIT);
    if text.is_err() {
        let _ = child.kill();
    }
    let succeeded = child.wait().is_ok_and(|status| status.success());
    let text = text.ok()?.ok()?;
    succeeded.then(|| String::from_utf8_lossy(&text).into_owned())
}
