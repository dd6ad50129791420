//! Paths of keys, such as `data.train[1].batch`. Keys that are no bare words are quoted: `hook_configs."my.Hook"`.

use std::borrow::Cow;

/// The path of a key in the table at `parent`; the root is the empty path.
pub fn join(parent: &str, key: &str) -> String {
    let key = quoted(key);
    if parent.is_empty() { key.into_owned() } else { format!("{parent}.{key}") }
}

/// The path of an element of the list at `parent`.
pub fn element(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// Whether a key can stand in a path without quotes.
pub fn is_bare(key: &str) -> bool {
    let bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    !key.is_empty() && key.chars().all(bare)
}

fn quoted(key: &str) -> Cow<'_, str> {
    if is_bare(key) { key.into() } else { serde_json::Value::from(key).to_string().into() }
}

/// The path of the table or list that holds what is at `path`; the root has none.
pub fn parent(path: &str) -> Option<&str> {
    let (mut in_quotes, mut escaped, mut last) = (false, false, 0);
    for (at, letter) in path.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_quotes => escaped = true,
            '"' => in_quotes = !in_quotes,
            '.' | '[' if !in_quotes => last = at,
            _ => {}
        }
    }
    (!path.is_empty()).then(|| &path[..last])
}

/// Whether `path` is `ancestor` or inside of it.
pub fn is_within(path: &str, ancestor: &str) -> bool {
    let Some(rest) = path.strip_prefix(ancestor) else { return false };
    ancestor.is_empty() || rest.is_empty() || rest.starts_with(['.', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_behind_quotes_and_brackets() {
        let odd = join("hook_configs", "my.\"odd\\[1].Hook");
        for (path, above) in [
            ("", None),
            ("train", Some("")),
            ("train.steps", Some("train")),
            ("data.train[12]", Some("data.train")),
            ("data.train[12].batch", Some("data.train[12]")),
            (&odd, Some("hook_configs")),
            (&join(&odd, "x"), Some(odd.as_str())),
        ] {
            assert_eq!(parent(path), above, "{path}");
        }
    }

    #[test]
    fn a_longer_key_is_not_within_a_shorter_one() {
        assert!(is_within("train.steps", "train") && is_within("train", "train") && is_within("a[0]", "a"));
        assert!(
            is_within("train", "") && !is_within("trainer", "train") && !is_within("train", "train.steps")
        );
    }
}
