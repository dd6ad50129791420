//! Vectors as files, in the form that the hook kind `steer` reads: safetensors with one tensor, `vector`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use candle_core::{DType, Device};
use safetensors::SafeTensors;
use tenterhook_record::disk;

use super::{Pool, SteeringVector};
use crate::controllers::read_tensor;
use crate::error::LensError;

const KEY: &str = "vector";
/// Far more than any model is wide.
const LARGEST: u64 = 64 << 20;

impl SteeringVector {
    /// Writes it: the whole file, or nothing. Point, counts and pooling stand in the file's metadata.
    pub fn save(&self, path: &Path) -> Result<(), LensError> {
        let pool = if self.pool == Pool::Last { "last" } else { "mean" };
        let metadata = HashMap::from([
            ("point".to_string(), self.point.clone()),
            ("positive".to_string(), self.positive.to_string()),
            ("negative".to_string(), self.negative.to_string()),
            ("pool".to_string(), pool.to_string()),
            ("normalised".to_string(), self.normalised.to_string()),
        ]);
        let vector = self.vector.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.contiguous()?;
        let failed = |error: String| LensError::BadInput(format!("{}: {error}", path.display()));
        let bytes = safetensors::serialize([(KEY, &vector)], Some(metadata))
            .map_err(|error| failed(error.to_string()))?;
        disk::atomic_write(path, |file| file.write_all(&bytes)).map_err(|error| failed(error.to_string()))
    }

    /// Reads what [`save`](Self::save) wrote.
    pub fn load(path: &Path, device: &Device) -> Result<Self, LensError> {
        let bad = |problem: String| LensError::BadInput(format!("{}: {problem}", path.display()));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| bad(error.to_string()))?;
        if bytes.len() as u64 > LARGEST {
            return Err(bad(format!("more than {} MiB are too much for a vector", LARGEST >> 20)));
        }
        let broken = |error: safetensors::SafeTensorError| bad(format!("is no safetensors file: {error}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(broken)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let told = |key: &str| {
            let lacking =
                || bad(format!("its metadata does not say `{key}`: it was not written as a steering vector"));
            metadata.get(key).map(String::as_str).ok_or_else(lacking)
        };
        let count = |key: &str| told(key)?.parse().map_err(|_| bad(format!("its `{key}` is no number")));
        let vector = read_tensor(path, KEY)?.to_device(device)?;
        Ok(Self {
            point: told("point")?.to_string(),
            vector,
            positive: count("positive")?,
            negative: count("negative")?,
            pool: if told("pool")? == "mean" { Pool::Mean } else { Pool::Last },
            normalised: told("normalised")? == "true",
        })
    }
}
