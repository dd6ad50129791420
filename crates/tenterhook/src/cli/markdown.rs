//! Pieces of Markdown, for the pages of the guide that are generated.

/// Words in the type of code.
pub(super) fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Documentation as a sentence: a capital in front, a full stop behind.
pub(super) fn sentence(doc: &str) -> String {
    let doc = doc.trim();
    let mut rest = doc.chars();
    let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if doc.ends_with(['.', ':', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", rest.as_str())
}

/// A table. Its cells may hold anything: what would end them is escaped.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let head = head.iter().map(|cell| cell.to_string()).collect::<Vec<_>>();
    let rule = format!("|{}", "---|".repeat(head.len()));
    let rows = rows.iter().map(|row| line(row.iter().map(|text| cell(text)).collect()));
    [line(head), rule].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// `|` would begin another cell, and `<` outside of code a tag.
fn cell(text: &str) -> String {
    let mut is_code = false;
    let escaped = |c: char| {
        is_code ^= c == '`';
        match c {
            '|' => "\\|".to_string(),
            '<' if !is_code => "&lt;".to_string(),
            '\n' => " ".to_string(),
            c => c.to_string(),
        }
    };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_cells() {
        let shown = table(&["a", "b"], &[vec!["x|y".into(), "`<id>` or <id>\nand".into()]]);
        assert_eq!(shown, "| a | b |\n|---|---|\n| x\\|y | `<id>` or &lt;id> and |");
    }

    #[test]
    fn sentences_begin_and_end() {
        assert_eq!(["keeps tensors", "Done.", ""].map(sentence), ["Keeps tensors.", "Done.", "."]);
    }
}
