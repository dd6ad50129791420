//! One file of captured tensors.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use crate::error::Refusal;

/// The longest header that is read.
const LONGEST_HEADER: u64 = 16 << 20;
/// The most tensors that are listed.
const MOST_TENSORS: usize = 20_000;

/// A safetensors file whose header was read and fits its length.
pub(crate) struct CaptureFile {
    file: File,
    header: Metadata,
    /// Where the data begin.
    begin: u64,
}

impl CaptureFile {
    pub(crate) fn open(path: &Path) -> Result<Self, Refusal> {
        let wrong = |problem: String| Refusal::unreadable(format!("this is no safetensors file: {problem}"));
        let io = |error: std::io::Error| wrong(error.to_string());
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(io)?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > length.saturating_sub(8) {
            return Err(wrong(format!("its header cannot have {size} bytes")));
        }
        let mut header = Vec::new();
        (&mut file).take(size).read_to_end(&mut header).map_err(io)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| wrong(format!("its header: {error}")))?;
        let begin = 8 + size;
        if begin.checked_add(header.data_len() as u64) != Some(length) {
            return Err(wrong("its length is not what its header says".to_string()));
        }
        Ok(Self { file, header, begin })
    }

    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Reads bytes of the data.
    pub(super) fn read(&mut self, from: u64, length: usize) -> std::io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(self.begin + from))?;
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// What is in it: every tensor, with the point and the step where the file says them.
    pub(crate) fn to_json(&self, name: &str) -> Value {
        let no_metadata = HashMap::new();
        let metadata = self.header.metadata().as_ref().unwrap_or(&no_metadata);
        let states = metadata.get("states").and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
        let states = states.unwrap_or_default();
        let states: HashMap<&str, &Value> =
            states.iter().filter_map(|state| Some((state["name"].as_str()?, state))).collect();
        let mut tensors: Vec<(String, &TensorInfo)> = self.header.tensors().into_iter().collect();
        tensors.sort_by(|a, b| natural(&a.0, &b.0));
        let describe = |(name, info): &(String, &TensorInfo)| {
            let said = states.get(name.as_str());
            let (step, point) = said_by_name(name);
            json!({
                "name": name,
                "shape": info.shape,
                "dtype": format!("{:?}", info.dtype),
                "point": said.map_or(json!(point), |state| state["point"].clone()),
                "step": said.map_or(json!(step), |state| state["step"].clone()),
            })
        };
        let left_out = tensors.len().saturating_sub(MOST_TENSORS);
        let tensors: Vec<Value> = tensors.iter().take(MOST_TENSORS).map(describe).collect();
        let metadata: Map<String, Value> = metadata
            .iter()
            .filter(|(key, _)| *key != "states")
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        json!({ "file": name, "tensors": tensors, "left_out": left_out, "metadata": metadata })
    }
}

/// `step-00000012/blocks.0.hook_resid_post` says its step.
fn said_by_name(name: &str) -> (Option<u64>, &str) {
    let said = name.strip_prefix("step-").and_then(|rest| rest.split_once('/'));
    match said.and_then(|(step, point)| Some((step.parse().ok()?, point))) {
        Some((step, point)) => (Some(step), point),
        None => (None, name),
    }
}

/// The order people expect: `blocks.2` before `blocks.10`.
pub(crate) fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (m, n) = (digits(a), digits(b));
        if m > 0 && n > 0 {
            let (x, y) = (a[..m].trim_start_matches('0'), b[..n].trim_start_matches('0'));
            match x.len().cmp(&y.len()).then_with(|| x.cmp(y)).then(m.cmp(&n)) {
                std::cmp::Ordering::Equal => (a, b) = (&a[m..], &b[n..]),
                unequal => return unequal,
            }
            continue;
        }
        let (mut x, mut y) = (a.chars(), b.chars());
        match (x.next(), y.next()) {
            (Some(c), Some(d)) if c == d => (a, b) = (x.as_str(), y.as_str()),
            (c, d) => return c.cmp(&d),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names =
            ["b.10.x", "b.2.x", "b", "b.2", "a.100", "b.02.x", "é.2", "é.10", "99999999999999999999999", "3"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            ["3", "99999999999999999999999", "a.100", "b", "b.2", "b.2.x", "b.02.x", "b.10.x", "é.2", "é.10"]
        );
    }
}
