//! Where hooks print.

use std::io::Write;
#[cfg(test)]
use std::sync::{Arc, Mutex};

/// The terminal, or a buffer in tests.
#[derive(Clone, Default)]
pub(crate) enum Console {
    /// Standard error: standard output belongs to results.
    #[default]
    Stderr,
    #[cfg(test)]
    Buffer(Arc<Mutex<String>>),
}

impl Console {
    /// Prints a line. A closed terminal must not fail training: errors are ignored.
    pub(crate) fn line(&self, text: &str) {
        match self {
            Console::Stderr => drop(writeln!(std::io::stderr(), "{text}")),
            #[cfg(test)]
            Console::Buffer(lines) => {
                let mut lines = lines.lock().unwrap();
                lines.push_str(text);
                lines.push('\n');
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn buffer() -> (Self, Arc<Mutex<String>>) {
        let lines = Arc::new(Mutex::new(String::new()));
        (Self::Buffer(lines.clone()), lines)
    }
}
