//! Names that users give, and what becomes of them in the file system.

/// The longest name of a run or a checkpoint, in bytes. File systems end at 255, and temporary names are longer.
const LONGEST_NAME: usize = 200;
/// The longest part of a file name that [`file_safe`] gives, in bytes.
const LONGEST_PART: usize = 150;

/// A name that cannot be a directory's name everywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown} cannot be a name: {problem}; letters, digits, `-`, `_` and `.` are always right")]
pub struct NameError {
    /// The name, quoted and shortened.
    pub shown: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Checks that a name given to a run (or to a checkpoint) is one plain directory name on every system: it cannot lead
/// out of the directory it is put into, hide, or look like another one.
///
/// ```
/// use tenterhook_record::name::check_run_name;
///
/// assert!(check_run_name("gpt2-small_lr3e-4.v2").is_ok());
/// assert!(check_run_name("../elsewhere").is_err());
/// ```
pub fn check_run_name(name: &str) -> Result<(), NameError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST_NAME {
        "it is longer than 200 bytes"
    } else if name.contains(['/', '\\']) {
        "it contains a path separator"
    } else if name.chars().any(char::is_control) {
        "it contains a control character"
    } else if name.chars().any(is_invisible) {
        "it contains a character that is invisible or turns the direction of writing"
    } else if name.chars().any(is_reserved) {
        "it contains one of < > : \" | ? *"
    } else if name.starts_with('.') {
        "it begins with a dot"
    } else if name.ends_with('.') || name.trim() != name {
        "it begins or ends with white space, or ends with a dot"
    } else if is_device(name) {
        "it is the name of a device on Windows"
    } else {
        return Ok(());
    };
    Err(NameError { shown: shown(name), problem })
}

/// A name as an error message shows it: quoted, escaped and not too long.
pub(crate) fn shown(name: &str) -> String {
    let start: String = name.chars().take(60).collect();
    let dots = if start.len() < name.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

/// Characters that are not seen, or change where the others are seen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Characters with a meaning of their own in a Windows path.
fn is_reserved(c: char) -> bool {
    matches!(c, '<' | '>' | ':' | '"' | '|' | '?' | '*')
}

/// Whether Windows opens a device under this name, whatever follows the first dot.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    ["COM", "LPT"].iter().any(|port| {
        stem.strip_prefix(port).is_some_and(|number| {
            let mut digits = number.chars();
            matches!(digits.next(), Some('0'..='9' | '¹' | '²' | '³')) && digits.next().is_none()
        })
    })
}

/// Makes any text, such as a metric's name or a filled-in template, one plain part of a file name: `val/loss` becomes
/// `val_loss`.
///
/// What is readable and harmless stays, every other character becomes `_`, and a long text is cut and gets a digest
/// of the whole, so that two long ones stay different. Short texts that differ only in such characters become the same.
///
/// ```
/// use tenterhook_record::name::file_safe;
///
/// assert_eq!(file_safe("val/loss"), "val_loss");
/// assert_eq!(file_safe("../../etc/passwd"), "_._.._etc_passwd");
/// ```
pub fn file_safe(text: &str) -> String {
    let harmless =
        |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '=' | '+' | ',' | '@' | '%' | '#');
    let mut safe: String = text.chars().map(|c| if harmless(c) { c } else { '_' }).collect();
    if safe.starts_with('.') {
        safe.replace_range(..1, "_");
    }
    if safe.ends_with('.') {
        safe.replace_range(safe.len() - 1.., "_");
    }
    if safe.is_empty() || is_device(&safe) {
        safe.insert(0, '_');
    }
    if safe.len() > LONGEST_PART {
        let digest = blake3::hash(text.as_bytes()).to_hex();
        let tail = format!("-{}", &digest[..12]);
        safe.truncate(safe.floor_char_boundary(LONGEST_PART - tail.len()));
        safe.push_str(&tail);
    }
    safe
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    /// Names that lead out, hide, lie or break somewhere.
    const HOSTILE: &[&str] = &[
        "",
        ".",
        "..",
        "../up",
        "a/../../b",
        "/etc/passwd",
        "\\\\server\\share",
        "C:\\x",
        "C:x",
        "a\0b",
        "a\nb",
        "\u{1b}[31mred",
        "CON",
        "nul",
        "Aux.txt",
        "com1",
        "LPT9.log",
        "COM²",
        ".hidden",
        "trailing.",
        " padded ",
        "evil\u{202e}txt.exe",
        "zero\u{200b}width",
        "\u{feff}bom",
        "what?",
        "a*b",
        "stream:ads",
    ];

    #[test]
    fn p32_hostile_run_names_are_refused() {
        for name in HOSTILE {
            assert!(check_run_name(name).is_err(), "{name:?}");
        }
        let long = "x".repeat(4096);
        let error = check_run_name(&long).unwrap_err().to_string();
        assert!(error.contains("200 bytes") && error.len() < 250, "{error}");
        let error = check_run_name("a\u{202e}b").unwrap_err().to_string();
        assert!(error.contains("\\u{202e}") && !error.contains('\u{202e}'), "{error}");
    }

    #[test]
    fn p32_usual_run_names_are_taken() {
        for name in
            ["a", "run-1", "gpt2_small.v2", "größe", "学习", "CONSOLE", "com10", "x.con", "lr=3e-4", "a b"]
        {
            assert_eq!(check_run_name(name), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn p32_any_text_becomes_a_plain_part_of_a_file_name() {
        for (text, expected) in [
            ("val/loss", "val_loss"),
            ("val\\loss", "val_loss"),
            ("epoch_3_loss_NaN", "epoch_3_loss_NaN"),
            ("..", "__"),
            ("", "_"),
            ("CON", "_CON"),
            ("a\0b\u{202e}", "a_b_"),
            ("größe=0.5", "größe=0.5"),
        ] {
            assert_eq!(file_safe(text), expected, "{text:?}");
        }
        HOSTILE.iter().for_each(|text| assert_plain(text));
        let (long, other) = ("/é".repeat(2048), "/é".repeat(2047));
        assert_plain(&long);
        assert_ne!(file_safe(&long), file_safe(&other));
    }

    fn assert_plain(text: &str) {
        let safe = file_safe(text);
        assert!(safe.len() <= LONGEST_PART, "{text:?}");
        assert_eq!(check_run_name(&safe), Ok(()), "{text:?} became {safe:?}");
        let components: Vec<_> = Path::new(&safe).components().collect();
        assert_eq!(components, [Component::Normal(safe.as_ref())], "{text:?}");
    }

    proptest! {
        #[test]
        fn p32_no_text_leaves_its_directory(text in any::<String>()) {
            assert_plain(&text);
        }
    }
}
