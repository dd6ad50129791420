//! Where a new run goes.

use std::path::{Path, PathBuf};

use tenterhook_record::disk;
use tenterhook_record::name::check_run_name;

/// The place of a run that is not there yet.
pub struct Place<'a> {
    /// The directory of all runs.
    pub runs: &'a Path,
    /// The name of the run.
    pub name: Option<&'a str>,
}

impl Place<'_> {
    /// What will keep the run from getting its directory, if anything: the key of `[run]` and what is wrong. Nothing is made on the disk
    /// that stays.
    pub fn problem(&self) -> Option<(String, String)> {
        let runs = self.runs.display();
        if let Some(name) = self.name
            && check_run_name(name).is_ok()
            && self.runs.join(name).symlink_metadata().is_ok()
        {
            let message = format!(
                "there is a run `{name}` already in {runs}: continue it with --resume {name}, or give another name \
                 with --set run.name=NAME"
            );
            return Some(("name".to_string(), message));
        }
        let above = existing(self.runs);
        let problem = match above.is_dir() {
            false => format!("{} is not a directory", above.display()),
            true => format!("{} cannot be written: {}", above.display(), disk::try_writing(&above).err()?),
        };
        let message = match above == self.runs {
            true => problem,
            false => format!("{runs} cannot be made: {problem}"),
        };
        Some(("dir".to_string(), message))
    }
}

/// The path itself, or what is there of the directories above it.
fn existing(path: &Path) -> PathBuf {
    let there = path.ancestors().find(|above| above.symlink_metadata().is_ok());
    there.unwrap_or(Path::new(".")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn p33_a_place_where_no_run_can_be_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir_all(dir.path().join("runs/taken")).unwrap();
        let problem = |runs: &str, name| Place { runs: &dir.path().join(runs), name }.problem();
        assert_eq!(problem("runs", Some("free")), None);
        assert_eq!(problem("not/there/yet", None), None);
        assert_eq!(Place { runs: Path::new("not-there-yet"), name: None }.problem(), None);
        let (key, message) = problem("runs", Some("taken")).unwrap();
        assert!(key == "name" && message.contains("--resume taken") && message.contains("--set run.name"));
        for runs in ["file", "file/below"] {
            let (key, message) = problem(runs, None).unwrap();
            assert!(key == "dir" && message.contains("file is not a directory"), "{message}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing stays");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn p33_a_directory_that_cannot_be_written_is_known_before() {
        // Nobody can make files there, not even root.
        let (key, message) = Place { runs: Path::new("/proc/self/runs"), name: None }.problem().unwrap();
        assert_eq!(key, "dir");
        assert!(
            message.starts_with("/proc/self/runs cannot be made: /proc/self cannot be written"),
            "{message}"
        );
    }
}
