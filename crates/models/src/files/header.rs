//! The header of a safetensors file, believed only after every number in it has been checked.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::shown;

/// Far above any real header, and low enough that parsing a hostile one needs little memory.
const LARGEST_HEADER: u64 = 32 << 20;
const LENGTH_BYTES: usize = 8;
/// No weight has more, and a shape has to fit into a message.
const MOST_AXES: usize = 8;

/// What a file holds and where.
#[derive(Debug)]
pub(crate) struct Header {
    /// Position of the first byte that offsets are relative to.
    pub(crate) data_start: usize,
    /// Shape, type and place of each tensor; every offset lies inside the file.
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

/// Reads and checks the header of a whole file. The error says what is wrong, not in which file.
pub(crate) fn read_header(file: &[u8]) -> Result<Header, String> {
    header_at_start(file, file.len())
}

/// The same for a file of which only the start is in memory: at least [`header_end`] bytes, or all that there is.
pub(crate) fn header_at_start(start: &[u8], file_bytes: usize) -> Result<Header, String> {
    parse(start, file_bytes).map_err(|problem| match recognise(start) {
        Some(known) => format!("{known} ({problem})"),
        None => format!("not a valid safetensors file: {problem}"),
    })
}

/// Where the header of a file that begins like this ends, as far as such a header is read at all.
pub(crate) fn header_end(start: [u8; LENGTH_BYTES]) -> u64 {
    LENGTH_BYTES as u64 + u64::from_le_bytes(start).min(LARGEST_HEADER)
}

fn parse(start: &[u8], file_bytes: usize) -> Result<Header, String> {
    let Some((length, rest)) = start.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(format!("it is only {} bytes long", start.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > LARGEST_HEADER {
        return Err(format!("its header claims {length} bytes, more than the {LARGEST_HEADER} allowed"));
    }
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
        format!("its header claims {length} bytes but only {} follow: the file is cut short", rest.len())
    })?;
    let text = std::str::from_utf8(header).map_err(|error| format!("its header is not UTF-8: {error}"))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let tensors = json
        .deserialize_map(Entries)
        .and_then(|tensors| json.end().map(|()| tensors))
        .map_err(|error| format!("its header is broken: {error}"))?;
    let data_start = LENGTH_BYTES + header.len();
    check_places(&tensors, file_bytes.saturating_sub(data_start))?;
    Ok(Header { data_start, tensors })
}

/// The tensors must follow one another without gap or overlap and end where the file ends.
fn check_places(tensors: &BTreeMap<String, TensorInfo>, data_bytes: usize) -> Result<(), String> {
    let mut in_file_order: Vec<_> = tensors.iter().collect();
    in_file_order.sort_by_key(|(_, info)| info.data_offsets);
    let mut expected_start = 0;
    for (name, info) in in_file_order {
        let name = shown(name);
        let (start, end) = info.data_offsets;
        if start != expected_start || end < start {
            return Err(format!(
                "tensor {name} is placed at bytes {start}..{end}, expected to start at {expected_start}"
            ));
        }
        if info.shape.len() > MOST_AXES {
            return Err(format!("tensor {name} has {} axes, more than {MOST_AXES}", info.shape.len()));
        }
        if end > data_bytes {
            return Err(format!(
                "tensor {name} ends at byte {end} but the file holds {data_bytes} bytes of data: it is cut short"
            ));
        }
        if byte_size(info) != Some(end - start) {
            return Err(format!(
                "tensor {name} of shape {:?} and type {} does not fill its {} bytes",
                info.shape,
                info.dtype,
                end - start
            ));
        }
        expected_start = end;
    }
    match data_bytes - expected_start {
        0 => Ok(()),
        unclaimed => Err(format!("{unclaimed} bytes at its end belong to no tensor")),
    }
}

fn byte_size(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
    let bits = elements.checked_mul(info.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Files that people do have under this name, and what to do about them.
fn recognise(file: &[u8]) -> Option<&'static str> {
    if file.starts_with(b"PK\x03\x04")
        || matches!(file, [0x80, 2..=5, ..]) && file.get(LENGTH_BYTES) != Some(&b'{')
    {
        Some("looks like a PyTorch pickle file, which can run code and is never read")
    } else if file.starts_with(b"version https://git-lfs") {
        Some("is a Git LFS pointer, not the file itself: run `git lfs pull` in the model directory")
    } else {
        None
    }
}

/// The entries of the header object. A tensor listed twice is an error: readers disagree on which one counts.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = BTreeMap<String, TensorInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {}: {error}", shown(&name))))?;
            if tensors.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor {} is listed twice", shown(&name))));
            }
            tensors.insert(name, info);
        }
        Ok(tensors)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn check(header: &str, data: usize, expected: &str) {
        let problem = read_header(&file(header, data)).map(|_| ()).unwrap_err();
        assert!(problem.contains(expected), "{header}: {problem}");
    }

    #[test]
    fn lying_headers_are_refused() {
        let a = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(read_header(&file(&a("F32", "[2]", "[0,8]"), 8)).is_ok());
        check(&a("F32", "[2]", "[0,8]"), 7, "cut short");
        check(&a("F32", "[2]", "[0,8]"), 9, "1 bytes at its end");
        check(&a("F32", "[2]", "[4,12]"), 12, "expected to start at 0");
        check(&a("F32", "[2]", "[0,18446744073709551615]"), 8, "ends at byte");
        check(&a("F32", "[2]", "[8,0]"), 8, "expected to start");
        check(&a("F32", "[4611686018427387904,4]", "[0,0]"), 0, "does not fill");
        check(&a("F32", "[3]", "[0,8]"), 8, "`a`");
        check(&a("F33", "[2]", "[0,8]"), 8, "unknown variant");
        check(&a("F32", "[-2]", "[0,8]"), 8, "invalid value");
        check(&a("F32", "[2.5]", "[0,8]"), 8, "invalid type");
        check(&a("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "9 axes");
        check("[]", 0, "broken");
        check("{} {}", 0, "trailing");
        let twice = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
        check(twice, 0, "listed twice");
    }

    /// Offsets whose sum wraps around: each is valid on its own, the last lies past the address space.
    #[test]
    fn offsets_that_overflow_together_are_refused() {
        let eighth = 1u64 << 60;
        let entries: Vec<String> = (0..15)
            .map(|i| {
                let (start, end) = (i * eighth, (i + 1) * eighth);
                format!(r#""t{i:02}":{{"dtype":"U8","shape":[{eighth}],"data_offsets":[{start},{end}]}}"#)
            })
            .collect();
        check(&format!("{{{}}}", entries.join(",")), 16, "cut short");
    }

    #[test]
    fn files_of_another_kind_are_recognised() {
        let problem = |bytes: &[u8]| read_header(bytes).map(|_| ()).unwrap_err();
        assert!(problem(b"PK\x03\x04\x00\x00\x08\x08\x00\x00data.pkl").contains("pickle"));
        assert!(problem(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").contains("pickle"));
        assert!(problem(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
        assert!(problem(b"").contains("0 bytes long"));
        assert!(problem(&u64::MAX.to_le_bytes()).contains("claims 18446744073709551615 bytes"));
    }
}
