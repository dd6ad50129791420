//! What commands print. A reader that goes away (`| head`) ends the output, not the program with a panic.

use std::io::Write;

use serde::Serialize;

use super::error::CliError;

/// Prints text to standard output.
pub(super) fn text(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end());
}

/// Prints data as JSON to standard output.
pub(super) fn json(data: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(data).map_err(|error| CliError::failed(error.to_string()))?;
    self::text(&text);
    Ok(())
}

/// Prints an error to standard error.
pub(super) fn error(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {}", message.trim_end());
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
