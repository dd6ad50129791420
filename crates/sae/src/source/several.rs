//! Several sources as one.

use serde_json::{Value, json};

use super::ActivationSource;
use crate::error::SaeError;

/// The pieces of several sources with the same tensors, one behind the other: what each of several processes has captured.
pub struct Several {
    parts: Vec<Box<dyn ActivationSource>>,
}

impl Several {
    /// These, of which there is at least one. They must have the same tensors.
    pub fn new(parts: Vec<Box<dyn ActivationSource>>) -> Result<Self, SaeError> {
        let Some(first) = parts.first() else {
            return Err(SaeError::bad("there is no source of activations"));
        };
        match parts.iter().position(|part| part.tensors() != first.tensors()) {
            Some(part) => {
                Err(SaeError::bad(format!("part {part} of the activations has other layers than the first")))
            }
            None => Ok(Self { parts }),
        }
    }

    /// Which part has a piece, and under which number.
    fn find(&self, mut piece: u64) -> Option<(&dyn ActivationSource, u64)> {
        for part in &self.parts {
            if piece < part.pieces() {
                return Some((&**part, piece));
            }
            piece -= part.pieces();
        }
        None
    }
}

impl ActivationSource for Several {
    fn tensors(&self) -> &[(String, usize)] {
        self.parts.first().map_or(&[], |part| part.tensors())
    }

    fn pieces(&self) -> u64 {
        self.parts.iter().map(|part| part.pieces()).sum()
    }

    fn rows(&self, piece: u64) -> u64 {
        self.find(piece).map_or(0, |(part, piece)| part.rows(piece))
    }

    fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
        let mut all = vec![Vec::new(); self.tensors().len()];
        for piece in pieces {
            let found =
                self.find(*piece).ok_or_else(|| SaeError::bad(format!("there is no piece {piece}")))?;
            let (part, piece) = found;
            for (all, values) in all.iter_mut().zip(part.load(&[piece])?) {
                all.extend(values);
            }
        }
        Ok(all)
    }

    fn fingerprint(&self) -> Value {
        json!({ "kind": "several", "parts": self.parts.iter().map(|part| part.fingerprint()).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rows(Vec<f32>, Vec<(String, usize)>);

    impl ActivationSource for Rows {
        fn tensors(&self) -> &[(String, usize)] {
            &self.1
        }
        fn pieces(&self) -> u64 {
            self.0.len() as u64
        }
        fn rows(&self, _piece: u64) -> u64 {
            1
        }
        fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
            Ok(vec![pieces.iter().map(|piece| self.0[*piece as usize]).collect()])
        }
        fn fingerprint(&self) -> Value {
            json!(self.0)
        }
    }

    #[test]
    fn the_pieces_of_all_parts_follow_each_other() {
        let part = |values: &[f32], name: &str| -> Box<dyn ActivationSource> {
            Box::new(Rows(values.to_vec(), vec![(name.to_string(), 1)]))
        };
        let all = Several::new(vec![part(&[1.0, 2.0], "x"), part(&[], "x"), part(&[3.0], "x")]).unwrap();
        assert_eq!((all.pieces(), all.rows(2), all.rows(3)), (3, 1, 0));
        assert_eq!(all.load(&[2, 0, 1]).unwrap(), [[3.0, 1.0, 2.0]]);
        assert!(all.load(&[3]).is_err());
        assert!(Several::new(vec![part(&[1.0], "x"), part(&[2.0], "y")]).is_err());
        assert!(Several::new(vec![]).is_err());
    }
}
