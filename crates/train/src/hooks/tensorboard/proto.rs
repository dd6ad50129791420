//! The few messages of TensorBoard's event files, as bytes.
//!
//! An event file is a sequence of records (length, its checksum, data, its checksum), and the data of each is a protocol buffer `Event`. The
//! crates that write them bring a protobuf compiler to build, or are not kept any more; four small messages of a format
//! that cannot change any more are less than either.

use tenterhook_hooks::Histogram;

/// What the first record of a file says.
pub(super) const FILE_VERSION: &str = "brain.Event:2";

/// The value of a tag.
pub(super) enum Value<'a> {
    Scalar(f64),
    Histogram(&'a Histogram),
}

/// An event that says which format the file has.
pub(super) fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    bytes(&mut event, 3, FILE_VERSION.as_bytes());
    event
}

/// An event with values at a step.
pub(super) fn summary_event<'a>(
    wall_time: f64,
    step: u64,
    values: impl Iterator<Item = (&'a str, Value<'a>)>,
) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, tag.as_bytes());
        match value {
            Value::Scalar(x) => float(&mut entry, 2, x as f32),
            Value::Histogram(histogram) => bytes(&mut entry, 5, &histogram_proto(histogram)),
        }
        bytes(&mut summary, 1, &entry);
    }
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    key(&mut event, 2, 0);
    varint(&mut event, step);
    bytes(&mut event, 5, &summary);
    event
}

/// Sums are those of the middles of the bins: the elements themselves are gone.
fn histogram_proto(histogram: &Histogram) -> Vec<u8> {
    let Histogram { low, high, counts } = histogram;
    let edge = |i: usize| match i == counts.len() {
        true => *high,
        false => low + (high - low) * (i as f64 / counts.len() as f64),
    };
    let middles = (0..counts.len()).map(|i| (edge(i) + edge(i + 1)) / 2.0);
    let weighted: Vec<(f64, f64)> = middles.zip(counts).map(|(x, n)| (x, *n as f64)).collect();
    let limits = (1..=counts.len()).map(edge);
    let mut proto = Vec::new();
    double(&mut proto, 1, *low);
    double(&mut proto, 2, *high);
    double(&mut proto, 3, weighted.iter().map(|(_, n)| n).sum());
    double(&mut proto, 4, weighted.iter().map(|(x, n)| x * n).sum());
    double(&mut proto, 5, weighted.iter().map(|(x, n)| x * x * n).sum());
    packed(&mut proto, 6, limits);
    packed(&mut proto, 7, weighted.iter().map(|(_, n)| *n));
    proto
}

/// Adds a record: the data between its length and checksums.
pub(super) fn add_record(to: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    to.extend(length);
    to.extend(masked_crc(&length).to_le_bytes());
    to.extend(data);
    to.extend(masked_crc(data).to_le_bytes());
}

/// CRC-32C, turned and shifted as the format has it, so that checksums of checksums stay sound.
pub(super) fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn key(to: &mut Vec<u8>, field: u64, wire: u64) {
    varint(to, field << 3 | wire);
}

fn double(to: &mut Vec<u8>, field: u64, value: f64) {
    key(to, field, 1);
    to.extend(value.to_le_bytes());
}

fn float(to: &mut Vec<u8>, field: u64, value: f32) {
    key(to, field, 5);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, 2);
    varint(to, value.len() as u64);
    to.extend(value);
}

fn packed(to: &mut Vec<u8>, field: u64, values: impl Iterator<Item = f64>) {
    let values: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    bytes(to, field, &values);
}
