//! One JSON object per line, each with a text.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};
use tenterhook_hooks::nearest;

use super::files::{LARGEST_TEXT, open_regular};
use super::stream::Tokens;
use super::{DataError, Encode, TokenStream, fingerprint};

/// How the documents of a JSONL file become tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonlOptions {
    /// The key of the text.
    pub field: String,
    /// A token that ends every document.
    pub separator: Option<u32>,
}

impl Default for JsonlOptions {
    fn default() -> Self {
        Self { field: "text".to_string(), separator: None }
    }
}

impl TokenStream {
    /// The documents of a JSONL file in one stream, through a tokenizer or, without one, by byte. Blank lines are skipped.
    pub fn from_jsonl(
        path: &Path,
        options: &JsonlOptions,
        block: usize,
        encode: Option<&Encode>,
    ) -> Result<Self, DataError> {
        let (mut file, length) = open_regular(path)?;
        if length > LARGEST_TEXT {
            return Err(DataError::TooLarge { path: path.to_path_buf(), limit: LARGEST_TEXT });
        }
        let source = fingerprint::of_file(path, &mut file, length).map_err(DataError::io(path))?;
        // What is appended while it is read would not be in the fingerprint.
        let mut reader = BufReader::new(file.take(length));
        let mut tokens = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(DataError::io(path))? == 0 {
                break;
            }
            let json = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(&line);
            if json.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |problem| DataError::Line { path: path.to_path_buf(), line: number, problem };
            let text = text_of(json, &options.field).map_err(wrong)?;
            match encode {
                None => tokens.extend(text.bytes().map(u32::from)),
                Some(encode) => {
                    let place = || format!("line {number} of `{}`", path.display());
                    tokens.extend(
                        encode(&text).map_err(|source| DataError::Encode { place: place(), source })?,
                    );
                }
            }
            tokens.extend(options.separator);
        }
        let vocab = if encode.is_none() { 256 } else { 0 };
        Self::with_sources(Tokens::Ids(tokens), block, vocab, &[path.to_path_buf()], vec![source])
    }
}

fn text_of(json: &[u8], field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| {
        // Its own place is that in this line, which would read as one in the file.
        let (what, column) = (error.to_string(), error.column());
        let what = what.split(" at line ").next().unwrap_or_default();
        format!("not valid JSON at column {column}: {what}; every line must be one whole object")
    })?;
    let Value::Object(mut object) = value else {
        return Err(format!("{} where an object with `{field}` is expected", sort_of(&value)));
    };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!("`{field}` is {}, and text is expected; set `field`", sort_of(&other))),
        None => Err(format!("there is no `{field}`{}", other_fields(field, &object))),
    }
}

fn other_fields(field: &str, object: &Map<String, Value>) -> String {
    let near = nearest(field, object.keys().map(String::as_str), 3);
    let names = if near.is_empty() { object.keys().take(5).cloned().collect() } else { near };
    match names.is_empty() {
        true => ": the object is empty".to_string(),
        false => format!("; set `field`, to `{}` perhaps", names.join("` or `")),
    }
}

fn sort_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::data::Dataset;

    fn stream(
        content: &[u8],
        options: JsonlOptions,
        encode: Option<&Encode>,
    ) -> Result<TokenStream, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docs.jsonl");
        std::fs::write(&path, content).unwrap();
        TokenStream::from_jsonl(&path, &options, 1, encode)
    }

    fn tokens(stream: &TokenStream) -> Vec<u32> {
        let all: Vec<u64> = (0..stream.len()).collect();
        let batch = stream.batch(&all, &Device::Cpu).unwrap();
        let mut tokens: Vec<u32> = batch.get("inputs").unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let targets: Vec<i64> = batch.get("targets").unwrap().flatten_all().unwrap().to_vec1().unwrap();
        tokens.extend(targets.last().map(|id| *id as u32));
        tokens
    }

    #[test]
    fn documents_become_one_stream() {
        let content = b"\xef\xbb\xbf{\"text\": \"ab\", \"id\": 1}\r\n\n   \n{\"id\": 2, \"text\": \"\\u00e4\"}\n{\"text\": \"\"}";
        let joined = stream(content, JsonlOptions::default(), None).unwrap();
        assert_eq!(tokens(&joined), [97, 98, 0xc3, 0xa4]);
        assert_eq!(joined.vocab(), Some(256));
        let separated =
            stream(content, JsonlOptions { separator: Some(256), ..Default::default() }, None).unwrap();
        assert_eq!(tokens(&separated), [97, 98, 256, 0xc3, 0xa4, 256, 256]);
        assert_eq!(separated.vocab(), Some(257));
    }

    #[test]
    fn another_field_through_a_tokenizer() {
        let content = b"{\"body\": \"one two\"}\n{\"body\": \"three\"}\n";
        let options = JsonlOptions { field: "body".into(), separator: Some(9) };
        let lengths = |text: &str| Ok(text.split(' ').map(|word| word.len() as u32).collect());
        let stream = stream(content, options, Some(&lengths)).unwrap();
        assert_eq!(tokens(&stream), [3, 3, 9, 5, 9]);
        assert_eq!(stream.vocab(), Some(10));
    }

    #[test]
    fn errors_name_the_line() {
        let check = |content: &[u8], part: &str| {
            let error = stream(content, JsonlOptions::default(), None).unwrap_err().to_string();
            assert!(error.contains("docs.jsonl`") && error.contains(part), "{error}");
        };
        check(b"{\"text\": \"a\"}\n\n{\"text\": ", "line 3 of");
        check(b"\n{\"text\" 1}", "not valid JSON at column 9: expected `:`; every line");
        check(b"{\"text\": \"\xff\"}\n", "line 1 of");
        check(b"[1]\n", "an array where an object with `text` is expected");
        check(b"{\"text\": 7}\n", "`text` is a number, and text is expected");
        check(b"{\"texts\": \"a\"}\n", "there is no `text`; set `field`, to `texts` perhaps");
        check(b"{\"body\": \"a\"}\n", "to `body` perhaps");
        check(b"{}\n", "there is no `text`: the object is empty");
        check(b"", "has 0 tokens");
        check(&b"[".repeat(100_000), "line 1 of"); // nested deeper than any stack
        let failing = |_: &str| Err("no vocabulary".into());
        let error = stream(b"\n{\"text\": \"a\"}", JsonlOptions::default(), Some(&failing)).unwrap_err();
        assert!(error.to_string().starts_with("the tokenizer failed on line 2 of"));
    }
}
