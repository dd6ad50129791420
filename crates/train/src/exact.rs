//! Numbers in JSON, without loss: NaN and infinities have no place there and become words.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that survives JSON whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Exact(pub(crate) f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_finite() => to.serialize_f64(x),
            x if x.is_nan() => to.serialize_str("NaN"),
            x if x > 0.0 => to.serialize_str("Infinity"),
            _ => to.serialize_str("-Infinity"),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        let number = match value.as_str() {
            Some("NaN") => Some(f64::NAN),
            Some("Infinity") => Some(f64::INFINITY),
            Some("-Infinity") => Some(f64::NEG_INFINITY),
            _ => value.as_f64(),
        };
        number.map(Self).ok_or_else(|| D::Error::custom("not a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for x in [0.1, -0.0, f64::MIN_POSITIVE, 1e308, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let text = serde_json::to_string(&Exact(x)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), x.to_bits(), "{text}");
        }
        assert!(serde_json::from_str::<Exact>("\"nan\"").is_err());
    }
}
