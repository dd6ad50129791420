//! Activations from a store.

use candle_core::DType;
use serde_json::{Value, json};
use tenterhook_lens::StoreReader;

use super::ActivationSource;
use crate::error::SaeError;

/// Rows that are read together: neighbours are likely of one text, and few enough of them that a buffer has many texts.
const BLOCK: u64 = 64;

/// The rows of some layers of a store. A piece is a block of neighbours.
pub struct StoreActivations {
    reader: StoreReader,
    tensors: Vec<(String, usize)>,
    rows: u64,
}

impl StoreActivations {
    /// These layers of a store.
    pub fn new(reader: StoreReader, layers: &[String]) -> Result<Self, SaeError> {
        let bad = |error: tenterhook_lens::StoreError| SaeError::bad(error.to_string());
        let (mut tensors, mut rows) = (Vec::new(), 0);
        for name in layers {
            rows = reader.rows(name).map_err(bad)?;
            let width = reader.layer(name).map_err(bad)?.shape.iter().product();
            tensors.push((name.clone(), width));
        }
        Ok(Self { reader, tensors, rows })
    }
}

impl ActivationSource for StoreActivations {
    fn tensors(&self) -> &[(String, usize)] {
        &self.tensors
    }

    fn pieces(&self) -> u64 {
        self.rows.div_ceil(BLOCK)
    }

    fn rows(&self, piece: u64) -> u64 {
        BLOCK.min(self.rows - piece * BLOCK)
    }

    fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
        let of_layer = |(name, _): &(String, usize)| {
            let mut values = Vec::new();
            for piece in pieces {
                let start = piece * BLOCK;
                let rows = self.reader.read(name, start..start + self.rows(*piece));
                let rows = rows.map_err(|error| SaeError::bad(error.to_string()))?;
                values.extend(rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?);
            }
            Ok(values)
        };
        self.tensors.iter().map(of_layer).collect()
    }

    fn fingerprint(&self) -> Value {
        let layers: Vec<&str> = self.tensors.iter().map(|(name, _)| name.as_str()).collect();
        json!({ "kind": "store", "path": self.reader.path(), "layers": layers, "rows": self.rows })
    }
}
