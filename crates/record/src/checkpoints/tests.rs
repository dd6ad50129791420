use super::*;

mod damage;
#[cfg(debug_assertions)]
mod faults;
mod life;

/// Writes a small checkpoint whose contents follow from its step.
fn save(dir: &Path, name: &str, step: u64) -> Result<PathBuf, CheckpointError> {
    let mut writer = CheckpointWriter::begin(dir, name, step)?;
    writer.file("config.json", |to| to.write_all(b"{}"))?;
    writer.file("model.safetensors", |to| {
        (0..40_u64).try_for_each(|at| to.write_all(&(at * step).to_le_bytes()))
    })?;
    writer.file("ema/model.safetensors", |to| to.write_all(&[step as u8; 33]))?;
    writer.file("state.json", |to| write!(to, "{{\"step\":{step}}}"))?;
    let meta = serde_json::json!({"note": "größe", "loss": 0.25});
    writer.finish(meta.as_object().unwrap().clone())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The step of the newest good checkpoint.
fn newest(dir: &Path) -> Option<u64> {
    newest_good(dir).unwrap().checkpoint.map(|(_, manifest)| manifest.step)
}

/// Writes a manifest that says anything at all, with a digest that holds.
fn forge(path: &Path, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = Manifest::read(path).unwrap();
    change(&mut manifest);
    fs::write(path.join(MANIFEST), manifest.to_bytes().unwrap()).unwrap();
}
