//! What commands print.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::error::CliError;

/// Prints text to standard output. A reader that went away (`| head`) is no failure, a full disk is.
pub(super) fn text(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::failed(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints data as JSON to standard output.
pub(super) fn json(data: &impl Serialize) -> Result<(), CliError> {
    let json = serde_json::to_string_pretty(data).map_err(|error| CliError::failed(error.to_string()))?;
    text(&json)
}

/// Tells the user something on standard error, where it does not get into data.
pub(super) fn note(text: &str) {
    // Nowhere is left to say that standard error is gone.
    let _ = writeln!(io::stderr().lock(), "{}", fit(text));
}

/// Warns of checkpoints that cannot be used, each with its problem, and says which one is used instead.
pub(super) fn damaged_checkpoints<'a>(
    skipped: impl Iterator<Item = (&'a str, &'a str)>,
    used: Option<(&str, u64)>,
) {
    let mut any = false;
    for (name, problem) in skipped {
        note(&format!("WARNING: the checkpoint {name} is damaged and is not used: {problem}"));
        any = true;
    }
    if let (true, Some((name, step))) = (any, used) {
        note(&format!("WARNING: an older checkpoint is used in its place: {name}, step {step}"));
    }
}

/// Prints an error to standard error. Messages may quote files, so they are made fit for a terminal: no control characters,
/// no endless lines.
pub(super) fn error(message: &str) {
    // Nowhere is left to say that standard error is gone.
    let _ = writeln!(io::stderr().lock(), "error: {}", fit(message));
}

/// Text from a file or the file system, made fit for a line on a terminal: no control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Words as they are typed in a shell.
pub(super) fn shell_words<S: AsRef<str>>(words: &[S]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    let quoted = |word: &S| match word.as_ref() {
        word if !word.is_empty() && word.chars().all(plain) => word.to_string(),
        word => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A time as people say it.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
    }
}

fn fit(message: &str) -> String {
    const LONGEST_LINE: usize = 1000;
    let clean = |line: &str| -> String {
        let mut shown = printable(&line.chars().take(LONGEST_LINE).collect::<String>());
        if line.chars().nth(LONGEST_LINE).is_some() {
            shown.push_str(" ...");
        }
        shown
    };
    let lines: Vec<String> = message.trim_end().lines().take(100).map(clean).collect();
    lines.join("\n")
}

/// `rows` in aligned columns under `head`.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let cells: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    let body = rows.iter().map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    std::iter::once(line(head)).chain(body).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        let words = ["tenterhook", "--set", "run.name=a b", "it's", "", "model.from=./x"];
        assert_eq!(shell_words(&words), "tenterhook --set 'run.name=a b' 'it'\\''s' '' model.from=./x");
    }

    #[test]
    fn times_are_short() {
        let told = [0.04, 9.96, 59.4, 61.0, 3599.0, 7260.0].map(duration);
        assert_eq!(told, ["0.0s", "10s", "59s", "1m01s", "59m59s", "2h01m"]);
    }
}
