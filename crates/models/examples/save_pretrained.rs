//! Reads a Hugging Face model directory and writes it back: `save_pretrained IN_DIR OUT_DIR`.

use std::path::Path;
use std::process::ExitCode;

use candle_core::{DType, Device};
use tenterhook_models::Transformer;
use tenterhook_models::error::ModelError;
use tenterhook_models::files::ModelFiles;

fn copy(from: &Path, to: &Path) -> Result<(), ModelError> {
    let files = ModelFiles::open(from)?;
    let model = Transformer::from_files(&files, DType::F32, &Device::Cpu)?;
    model.save(to, files.tokenizer())
}

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = args.as_slice() else {
        eprintln!("usage: save_pretrained IN_DIR OUT_DIR");
        return ExitCode::from(2);
    };
    match copy(Path::new(from), Path::new(to)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
