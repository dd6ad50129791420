//! Reading event files back, for tests. Whatever the bytes are, it never panics and never reserves more than they are.

use super::proto::masked_crc;

/// An event as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReadEvent {
    pub(crate) wall_time: f64,
    pub(crate) step: u64,
    pub(crate) file_version: Option<String>,
    pub(crate) scalars: Vec<(String, f32)>,
    pub(crate) histograms: Vec<(String, ReadHistogram)>,
}

/// A histogram as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReadHistogram {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) num: f64,
    pub(crate) sum: f64,
    pub(crate) sum_squares: f64,
    pub(crate) limits: Vec<f64>,
    pub(crate) counts: Vec<f64>,
}

/// Every event of a file; the checksums of all records are verified.
pub(crate) fn read_events(mut bytes: &[u8]) -> Result<Vec<ReadEvent>, String> {
    let mut events = Vec::new();
    let whole = bytes.len();
    while !bytes.is_empty() {
        let at = whole - bytes.len();
        let event = read_record(&mut bytes).and_then(read_event);
        events.push(event.map_err(|problem| format!("record {} at byte {at}: {problem}", events.len()))?);
    }
    Ok(events)
}

fn read_record<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = take::<8>(bytes)?;
    if u32::from_le_bytes(take(bytes)?) != masked_crc(&length) {
        return Err("the checksum of its length is wrong".to_string());
    }
    let data = slice(bytes, u64::from_le_bytes(length))?;
    match u32::from_le_bytes(take(bytes)?) == masked_crc(data) {
        true => Ok(data),
        false => Err("its checksum is wrong".to_string()),
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, rest) = bytes.split_first_chunk().ok_or("it is cut off")?;
    *bytes = rest;
    Ok(*head)
}

fn slice<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], String> {
    let length = usize::try_from(length).map_err(|_| "it is cut off")?;
    let (head, rest) = bytes.split_at_checked(length).ok_or("it is cut off")?;
    *bytes = rest;
    Ok(head)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let [byte] = take(bytes)?;
        // The tenth byte has room for one bit.
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number is too long".to_string())
}

/// What a field holds.
enum Field<'a> {
    Number(u64),
    Double(f64),
    Float(f32),
    Bytes(&'a [u8]),
}

impl Field<'_> {
    fn text(&self) -> Result<String, String> {
        match self {
            Field::Bytes(bytes) => {
                String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8".to_string())
            }
            _ => Err("a text has another type".to_string()),
        }
    }
}

/// Calls `each` with the number and the value of every field of a message.
fn fields<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u64, Field<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => Field::Double(f64::from_le_bytes(take(&mut bytes)?)),
            2 => {
                let length = varint(&mut bytes)?;
                Field::Bytes(slice(&mut bytes, length)?)
            }
            5 => Field::Float(f32::from_le_bytes(take(&mut bytes)?)),
            wire => return Err(format!("wire type {wire} is not known")),
        };
        each(key >> 3, field)?;
    }
    Ok(())
}

fn read_event(bytes: &[u8]) -> Result<ReadEvent, String> {
    let mut event = ReadEvent::default();
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Double(time)) => event.wall_time = time,
            (2, Field::Number(step)) => event.step = step,
            (3, text) => event.file_version = Some(text.text()?),
            (5, Field::Bytes(summary)) => fields(summary, |number, field| match (number, field) {
                (1, Field::Bytes(value)) => read_value(value, &mut event),
                _ => Ok(()),
            })?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(event)
}

fn read_value(bytes: &[u8], event: &mut ReadEvent) -> Result<(), String> {
    let (mut tag, mut scalar, mut histogram) = (String::new(), None, None);
    fields(bytes, |number, field| {
        match (number, field) {
            (1, text) => tag = text.text()?,
            (2, Field::Float(value)) => scalar = Some(value),
            (5, Field::Bytes(bytes)) => histogram = Some(read_histogram(bytes)?),
            _ => {}
        }
        Ok(())
    })?;
    event.scalars.extend(scalar.map(|value| (tag.clone(), value)));
    event.histograms.extend(histogram.map(|value| (tag, value)));
    Ok(())
}

fn read_histogram(bytes: &[u8]) -> Result<ReadHistogram, String> {
    let mut read = ReadHistogram::default();
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Double(value)) => read.min = value,
            (2, Field::Double(value)) => read.max = value,
            (3, Field::Double(value)) => read.num = value,
            (4, Field::Double(value)) => read.sum = value,
            (5, Field::Double(value)) => read.sum_squares = value,
            (6, Field::Bytes(bytes)) => read.limits = doubles(bytes)?,
            (7, Field::Bytes(bytes)) => read.counts = doubles(bytes)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(read)
}

fn doubles(bytes: &[u8]) -> Result<Vec<f64>, String> {
    let (chunks, rest) = bytes.as_chunks();
    match rest.is_empty() {
        true => Ok(chunks.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect()),
        false => Err("a list of numbers is cut off".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{Value, add_record, summary_event, version_event};
    use super::*;
    use proptest::prelude::*;
    use tenterhook_hooks::Histogram;

    fn file() -> Vec<u8> {
        let histogram = Histogram { low: -1.0, high: 3.0, counts: vec![1, 0, 3, 4] };
        let values = [("loss", Value::Scalar(0.1)), ("h/ö", Value::Histogram(&histogram))];
        let mut file = Vec::new();
        add_record(&mut file, &version_event(12.5));
        add_record(&mut file, &summary_event(13.5, 300, values.into_iter()));
        file
    }

    #[test]
    fn what_was_written_is_read() {
        let events = read_events(&file()).unwrap();
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].wall_time, events[1].step), (13.5, 300));
        assert_eq!(events[1].scalars, [("loss".to_string(), 0.1f32)]);
        let (tag, histogram) = &events[1].histograms[0];
        assert_eq!(tag, "h/ö");
        let want = ReadHistogram {
            min: -1.0,
            max: 3.0,
            num: 8.0,
            sum: -0.5 + 3.0 * 1.5 + 4.0 * 2.5,
            sum_squares: 0.25 + 3.0 * 2.25 + 4.0 * 6.25,
            limits: vec![0.0, 1.0, 2.0, 3.0],
            counts: vec![1.0, 0.0, 3.0, 4.0],
        };
        assert_eq!(*histogram, want);
    }

    /// Bytes that the format fixes: those of a version record, made by hand from the description of the format.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut file = Vec::new();
        add_record(&mut file, &version_event(1.0));
        let data = b"\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0dbrain.Event:2";
        assert_eq!(&file[..8], [24, 0, 0, 0, 0, 0, 0, 0]);
        // This length is in every event file there is, and so is its checksum.
        assert_eq!(file[8..12], [0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(&file[12..36], data);
        assert_eq!(file.len(), 40);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_found() {
        let file = file();
        let ends: Vec<usize> = vec![0, 40, file.len()];
        for cut in 0..=file.len() {
            assert_eq!(read_events(&file[..cut]).is_ok(), ends.contains(&cut), "cut at {cut}");
        }
        for bit in 0..file.len() * 8 {
            let mut broken = file.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(read_events(&broken).is_err(), "bit {bit}");
        }
    }

    proptest! {
        /// Also with sound checksums around nonsense.
        #[test]
        fn p31_hostile_bytes_never_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut file = Vec::new();
            add_record(&mut file, &data);
            let _ = read_events(&file);
            let _ = read_events(&data);
            let mut event = vec![0x2a]; // a summary with a value of nonsense
            event.extend([(data.len() % 128) as u8]);
            event.extend(&data);
            let mut file = Vec::new();
            add_record(&mut file, &event);
            let _ = read_events(&file);
        }
    }
}
