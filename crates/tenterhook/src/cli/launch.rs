//! Starting ranks, and starting them again: `tenterhook train --ranks 4 --restarts 10`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

use super::error::CliError;
use super::{Outcome, output};

/// How often the processes are looked after.
const LOOK: Duration = Duration::from_millis(50);

/// How many processes train together, and what happens when they are cut off.
#[derive(Args)]
pub(super) struct LaunchArgs {
    /// Train with so many processes together, started by the launcher; only where the program is built with MPI.
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// What starts them: a command that takes -n N, such as "mpirun --bind-to core" or "srun --mpi=pmix".
    #[arg(long, value_name = "COMMAND", default_value = "mpirun --bind-to none", requires = "ranks")]
    launcher: String,
    /// Start again, from the last checkpoint, at most so many times when a process is killed, stops or loses its machine.
    #[arg(long, value_name = "N")]
    restarts: Option<u32>,
    /// Write the run's directory into this file.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(super) tell_run: Option<PathBuf>,
}

/// What a start was asked to go on from.
pub(super) struct Asked<'a> {
    pub(super) resume: Option<Option<&'a str>>,
    pub(super) fork: bool,
}

impl LaunchArgs {
    /// Whether this process only starts others.
    pub(super) fn is_wanted(&self) -> bool {
        self.ranks.is_some() || self.restarts.is_some()
    }

    /// Starts the processes, waits for them, and starts them again when they were cut off.
    pub(super) fn run(&self, asked: &Asked) -> Result<Outcome, CliError> {
        self.check()?;
        // Here rather than in /tmp: rank 0 may be on another machine.
        let here = tempfile::Builder::new().prefix(".tenterhook-").tempdir_in(".");
        let place = here.or_else(|_| tempfile::tempdir());
        let place = place.map_err(|error| CliError::failed(format!("no temporary directory: {error}")))?;
        let told = place.path().join("run");
        let told = std::path::absolute(&told).unwrap_or(told);
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        let own = without(&own, &["--ranks", "--restarts", "--launcher"]);
        let again = without_origin(&own, asked);
        let mut signals = Signals::listen()?;
        let most = self.restarts.unwrap_or(0);
        for restart in 0..=most {
            let run = std::fs::read_to_string(&told).ok().filter(|_| restart > 0);
            let words = match &run {
                Some(run) => [again.clone(), vec!["--resume".into(), run.into()]].concat(),
                None => own.clone(),
            };
            let status = wait(&mut self.start(&words, &told)?, &mut signals)?;
            match status.code() {
                Some(0) => return Ok(Outcome::Done),
                Some(4) => return Ok(Outcome::Degraded),
                Some(75) => return Ok(Outcome::Interrupted),
                // They have said why, and would come to the same end again.
                Some(code @ (1 | 2)) => return Err(CliError::with_code(code as u8)),
                _ if signals.heard > 0 => return Err(CliError::with_code(130)),
                _ if restart < most => output::note(&format!(
                    "WARNING: the job was cut off ({status}); restart {} of {most}{}",
                    restart + 1,
                    if told.exists() { " from its last checkpoint" } else { "" }
                )),
                _ => {
                    let resume = std::fs::read_to_string(&told).unwrap_or_default();
                    return Err(CliError::failed(format!(
                        "the job was cut off ({status}){}; the same command with --resume {resume} goes on",
                        if most > 0 { format!(", for the {} time", most + 1) } else { String::new() }
                    )));
                }
            }
        }
        Err(CliError::failed("the job was cut off"))
    }

    fn check(&self) -> Result<(), CliError> {
        match self.ranks {
            Some(0) => Err(CliError::bad_input("--ranks is 0, it must be at least 1")),
            Some(ranks) if ranks > 1 && !cfg!(feature = "mpi") => Err(CliError::bad_input(
                "--ranks needs MPI, and this build has none: build it with --features mpi (and libopenmpi-dev, libclang-dev installed)",
            )),
            _ if self.launcher.split_whitespace().next().is_none() => {
                Err(CliError::bad_input("--launcher is empty"))
            }
            _ => Ok(()),
        }
    }

    fn start(&self, words: &[OsString], told: &Path) -> Result<Child, CliError> {
        let failed = |what: &str, error: std::io::Error| {
            CliError::bad_input(format!("`{what}` cannot be started: {error}"))
        };
        let program = std::env::current_exe().map_err(|error| failed("tenterhook", error))?;
        let mut launcher = self.launcher.split_whitespace();
        let mut command = match self.ranks {
            None => Command::new(&program),
            Some(ranks) => {
                let mut command = Command::new(launcher.next().unwrap_or("mpirun"));
                command.args(launcher).arg("-n").arg(ranks.to_string()).arg(&program);
                command
            }
        };
        // In a group of its own: what a terminal sends to all comes to the job once, by way of this process.
        command.args(words).arg("--tell-run").arg(told).process_group(0);
        command.spawn().map_err(|error| failed(&command.get_program().to_string_lossy(), error))
    }
}

/// Signals to this process are meant for the job: it saves and leaves.
struct Signals {
    flag: Arc<AtomicBool>,
    /// How many there were.
    heard: u32,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGUSR1] {
            let failed = |error| CliError::failed(format!("signals cannot be handled: {error}"));
            signal_hook::flag::register(signal, flag.clone()).map_err(failed)?;
        }
        Ok(Self { flag, heard: 0 })
    }

    /// Hands a signal on: the first as SIGUSR1, which launchers pass to their processes without ending them themselves, a further one as SIGTERM.
    fn pass_on(&mut self, job: &Child) {
        if self.flag.swap(false, Relaxed) {
            self.heard += 1;
            let signal = if self.heard == 1 { SIGUSR1 } else { SIGTERM };
            // SAFETY: it sends a signal to a child that has not been waited for.
            unsafe { libc::kill(job.id() as i32, signal) };
        }
    }
}

/// Waits for the job, and hands signals on to it.
fn wait(job: &mut Child, signals: &mut Signals) -> Result<ExitStatus, CliError> {
    loop {
        let ended = job.try_wait();
        let ended =
            ended.map_err(|error| CliError::failed(format!("the job cannot be waited for: {error}")))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        signals.pass_on(job);
        std::thread::sleep(LOOK);
    }
}

/// The arguments without these options and their values.
fn without(args: &[OsString], options: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if options.contains(&&*text) {
            args.next();
        } else if !options
            .iter()
            .any(|option| text.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
        {
            kept.push(arg.clone());
        }
    }
    kept
}

/// The arguments without what the first start was to go on from: a restart goes on from the run itself.
fn without_origin(args: &[OsString], asked: &Asked) -> Vec<OsString> {
    let args = if asked.fork { without(args, &["--fork"]) } else { args.to_vec() };
    match asked.resume {
        Some(Some(_)) => without(&args, &["--resume"]),
        Some(None) => args.into_iter().filter(|arg| arg != "--resume").collect(),
        None => args,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p27_a_restart_has_the_arguments_of_the_start_but_goes_on_from_the_run() {
        let words = |text: &str| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        let given = words("train run.toml --ranks 4 --restarts=3 --set train.steps=5 --launcher mpirun -q");
        let own = without(&given, &["--ranks", "--restarts", "--launcher"]);
        assert_eq!(own, words("train run.toml --set train.steps=5 -q"));
        let nothing = Asked { resume: None, fork: false };
        assert_eq!(without_origin(&own, &nothing), own);
        let fork = Asked { resume: None, fork: true };
        assert_eq!(without_origin(&words("train a --fork b -q"), &fork), words("train a -q"));
        let newest = Asked { resume: Some(None), fork: false };
        assert_eq!(without_origin(&words("train a --resume"), &newest), words("train a"));
        let named = Asked { resume: Some(Some("b")), fork: false };
        assert_eq!(without_origin(&words("train a --resume b -q"), &named), words("train a -q"));
        assert_eq!(without_origin(&words("train a --resume=b -q"), &named), words("train a -q"));
    }
}
