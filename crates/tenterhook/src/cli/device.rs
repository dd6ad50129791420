//! `--device`.

use candle_core::Device;
use candle_core::utils::{cuda_is_available, metal_is_available};

use super::error::CliError;

/// The device called `cpu`, `cuda`, `cuda:N` or `metal`.
pub(super) fn parse(name: &str) -> Result<Device, CliError> {
    let not_built = |feature: &str| {
        CliError::bad_input(format!(
            "this build has no support for `{name}`: build it with `cargo build --release --features {feature}`, or use --device cpu"
        ))
    };
    let unusable =
        |error: candle_core::Error| CliError::bad_input(format!("device `{name}` cannot be used: {error}"));
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", _) if name == "cpu" => Ok(Device::Cpu),
        ("cuda", _) if !cuda_is_available() => Err(not_built("cuda")),
        ("cuda", number) => {
            let number = number.parse().map_err(|_| {
                CliError::bad_input(format!("`{name}`: the device number must be a whole number"))
            })?;
            Device::new_cuda(number).map_err(unusable)
        }
        ("metal", _) if name == "metal" && !metal_is_available() => Err(not_built("metal")),
        ("metal", _) if name == "metal" => Device::new_metal(0).map_err(unusable),
        _ => {
            Err(CliError::bad_input(format!("no device is called `{name}`; there are cpu, cuda:N and metal")))
        }
    }
}
