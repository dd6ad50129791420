//! Many small damages to real checkpoints: each is noticed, none is a panic.

use std::fs;
use std::path::{Path, PathBuf};

use tenterhook::hooks::random::Stream;
use tenterhook::record::checkpoints;

use crate::here::{SHORT, lab_here, train_here, trainer_here};
use crate::support::campaign;

fn files(checkpoint: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Numbers below a limit, one after the other.
struct Draw(Stream, u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.1 += 1;
        ((self.0.uniform(self.1) * limit as f64) as usize).min(limit - 1)
    }

    /// The bytes with one thing about them changed, and what that is.
    fn damage(&mut self, good: &[u8]) -> (Vec<u8>, String) {
        let mut bad = good.to_vec();
        let at = self.below(good.len());
        match self.below(6) {
            0 => bad[at] ^= 1 << self.below(8),
            1 => bad.truncate(at),
            2 => bad.truncate(at / 4096 * 4096),
            3 => bad.insert(at, self.below(256) as u8),
            4 => {
                let end = (at + 512).min(good.len());
                bad[at..end].iter_mut().for_each(|byte| *byte = !*byte);
            }
            _ => bad.extend_from_slice(&good[at..]),
        }
        let what = format!("{} bytes became {}, around {at}", good.len(), bad.len());
        (bad, what)
    }
}

#[test]
fn p06_random_damage_is_always_noticed() {
    let lab = lab_here(SHORT);
    train_here(&lab, false).unwrap();
    let dir = lab.run_dir("short").join("checkpoints");
    let files = files(&dir.join("step-00000004"));
    let mut draw = Draw(Stream::new(6).named("damage"), 0);
    let rounds = campaign(600, 10_000);
    for round in 0..rounds {
        let file = &files[draw.below(files.len())];
        let good = fs::read(file).unwrap();
        let (bad, what) = draw.damage(&good);
        let what = format!("round {round}: {}: {what}", file.display());
        fs::write(file, &bad).unwrap();
        let found = checkpoints::newest_good(&dir).unwrap();
        fs::write(file, &good).unwrap();
        assert_eq!(found.checkpoint.unwrap().1.step, 2, "{what}");
        let [(skipped, problem)] = &found.skipped[..] else { panic!("{what}: {:?}", found.skipped) };
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(skipped.name == "step-00000004" && problem.contains(name), "{what}: {problem}");
    }
    assert_eq!(checkpoints::newest_good(&dir).unwrap().checkpoint.unwrap().1.step, 4);
    println!("p06: {rounds} damages, {rounds} noticed");
}

/// The digests protect against accidents. Whoever forges them as well gets an error, not a panic.
#[test]
fn p06_p31_what_verifies_and_is_wrong_is_an_error() {
    let lab = lab_here(SHORT);
    train_here(&lab, false).unwrap();
    let checkpoint = lab.run_dir("short").join("checkpoints/step-00000004");
    let mut trainer = trainer_here(&lab.path().join("run.toml"));
    trainer.restore(&checkpoint).unwrap();
    let names = ["state.json", "model.safetensors", "optimizer.safetensors"];
    let mut draw = Draw(Stream::new(7).named("damage"), 0);
    let rounds = campaign(600, 10_000);
    let mut refused = 0;
    for round in 0..rounds {
        let file = checkpoint.join(names[draw.below(names.len())]);
        let good = fs::read(&file).unwrap();
        let (bad, what) = draw.damage(&good);
        fs::write(&file, &bad).unwrap();
        let restored = trainer.restore(&checkpoint);
        fs::write(&file, &good).unwrap();
        if let Err(error) = restored {
            let error = error.to_string();
            assert!(error.contains("step-00000004"), "round {round}: {what}: {error}");
            refused += 1;
        }
    }
    // Another number in a tensor is just another number.
    assert!(refused > rounds / 4, "{refused} of {rounds}");
    trainer.restore(&checkpoint).unwrap();
    println!("p06: {rounds} forged checkpoints, {refused} refused, the rest other numbers");
}
