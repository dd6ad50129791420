//! SAELens' directories: `cfg.json` and `sae_weights.safetensors`.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tenterhook_models::files::{FileWeights, read_json_file, save_tensors};
use tenterhook_nn::{Init, Weights};
use tenterhook_record::disk;

use crate::cfg_json::{from_json, to_json};
use crate::config::Architecture;
use crate::error::SaeError;
use crate::sae::Sae;

/// The file of the configuration.
pub const CFG: &str = "cfg.json";
/// The file of the weights.
pub const WEIGHTS: &str = "sae_weights.safetensors";

const LARGEST_CFG: u64 = 4 << 20;

impl Sae {
    /// Reads a directory that SAELens wrote, or [`save`](Self::save): in f32, on the CPU.
    pub fn load(dir: &Path) -> Result<Self, SaeError> {
        Self::load_with(dir, DType::F32, &Device::Cpu)
    }

    /// The same in another type (f32 or f64) or on another device. Shapes are checked before any memory is asked for.
    pub fn load_with(dir: &Path, dtype: DType, device: &Device) -> Result<Self, SaeError> {
        let path = dir.join(CFG);
        if !path.is_file() {
            return Err(SaeError::about(
                dir,
                format!("is not a directory with an autoencoder: it has no {CFG}"),
            ));
        }
        let json = read_json_file(&path, LARGEST_CFG)?;
        let config = from_json(&json).map_err(|problems| SaeError::Config { path, problems })?;
        let files = FileWeights::open_file(&dir.join(WEIGHTS), dtype, device)?;
        let mut stored =
            Stored { files, jumps: config.architecture == Architecture::JumpRelu, factors: false };
        let d_sae = config.d_sae;
        let built = Sae::new(config, &mut stored, dtype, device);
        if built.is_ok() {
            stored.check_factors(d_sae)?;
        }
        Ok(stored.files.finish_with(built)?)
    }

    /// Writes a directory that SAELens loads. Both files are on the disk before the configuration, without which nothing is loaded, takes its
    /// place.
    pub fn save(&self, dir: &Path) -> Result<(), SaeError> {
        if let Architecture::BatchTopK { .. } = self.config().architecture {
            return Err(SaeError::bad(
                "a BatchTopK autoencoder is saved as JumpReLU, with the threshold its training found",
            ));
        }
        let tensors: Vec<(String, Tensor)> = self
            .params()
            .iter()
            .map(|param| Ok((param.name().to_string(), param.value().to_dtype(DType::F32)?)))
            .collect::<candle_core::Result<_>>()?;
        let failed = |error: std::io::Error| SaeError::about(dir, format!("cannot be written: {error}"));
        disk::create_dir_all(dir).map_err(failed)?;
        save_tensors(&dir.join(WEIGHTS), &tensors)?;
        let json = format!("{:#}\n", to_json(self.config()));
        disk::atomic_write(&dir.join(CFG), |to| to.write_all(json.as_bytes())).map_err(failed)
    }
}

/// The weights of a directory.
struct Stored {
    files: FileWeights,
    jumps: bool,
    /// Whether the file has factors of an older version that multiply activations.
    factors: bool,
}

impl Stored {
    /// Files of some older versions have factors that are all 1; others are refused.
    fn check_factors(&mut self, d_sae: usize) -> Result<(), SaeError> {
        self.factors = self.files.contains("scaling_factor");
        if !self.factors {
            return Ok(());
        }
        let factors =
            self.files.tensor("scaling_factor", &[d_sae])?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        match factors.iter().all(|factor| (factor - 1.0).abs() <= 1e-5) {
            true => Ok(()),
            false => Err(SaeError::bad(format!(
                "{WEIGHTS} has a `scaling_factor` that is not 1, which is not supported"
            ))),
        }
    }
}

impl Weights for &mut Stored {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        // Checkpoints of training before SAELens 6.47 have the logarithm.
        if self.jumps
            && name == "threshold"
            && !self.files.contains(name)
            && self.files.contains("log_threshold")
        {
            return Weights::tensor(&mut self.files, "log_threshold", shape, init, dtype, device)?.exp();
        }
        Weights::tensor(&mut self.files, name, shape, init, dtype, device)
    }
}
