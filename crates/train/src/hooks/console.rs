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
    /// Prints a line. A closed terminal must not fail training: errors are ignored. Control characters, which names of metrics may
    /// hold, never reach the terminal.
    pub(crate) fn line(&self, text: &str) {
        let printable = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
        let line: String = text.chars().map(printable).chain(['\n']).collect();
        match self {
            // In one piece, so that lines of several threads do not mix.
            Console::Stderr => drop(std::io::stderr().lock().write_all(line.as_bytes())),
            #[cfg(test)]
            Console::Buffer(lines) => lines.lock().unwrap().push_str(&line),
        }
    }

    #[cfg(test)]
    pub(crate) fn buffer() -> (Self, Arc<Mutex<String>>) {
        let lines = Arc::new(Mutex::new(String::new()));
        (Self::Buffer(lines.clone()), lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_write_to_one_buffer_and_control_characters_are_shown() {
        let (console, lines) = Console::buffer();
        console.clone().line("a\u{1b}[2Jb\r");
        console.line("c\td");
        assert_eq!(*lines.lock().unwrap(), "a\u{fffd}[2Jb\u{fffd}\nc\td\n");
    }
}
