//! `tenterhook train`: a run from a configuration.

use std::path::{Path, PathBuf};

use clap::Args;
use tenterhook_hooks::HookRegistry;
use tenterhook_record::disk;
use tenterhook_record::run::{self, RunDir};
use tenterhook_train::World;
use tenterhook_train::config::{Document, Problems};

use super::carry_out::carry_out;
use super::dashboard::DashboardArgs;
use super::error::CliError;
use super::launch::{Asked, LaunchArgs};
use super::output::{self, shell_words};
use super::{Outcome, device, log_more};
use crate::training::{HooksFile, How, Plan, Start};

/// Train a model from a configuration.
///
/// SIGINT, SIGTERM and SIGUSR1 end the step, save and leave with exit code 75; a second signal leaves at once.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook config init > run.toml && tenterhook train run.toml
  tenterhook train run.toml --set train.steps=1000 --set optimizer.0.lr=1e-3
  tenterhook train run.toml --resume
  tenterhook train run.toml --hooks watch.toml
  tenterhook train run.toml --serve --port 8000
  mpirun -n 4 tenterhook train run.toml
  tenterhook train run.toml --ranks 4 --restarts 10")]
pub(super) struct TrainArgs {
    /// The configuration, TOML or JSON.
    config: PathBuf,
    /// Go on with a run: an id, a unique beginning of one, or a directory; without one, the newest run of this configuration.
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with = "fork")]
    resume: Option<Option<String>>,
    /// Begin a new run from another one's newest checkpoint.
    #[arg(long, value_name = "RUN")]
    fork: Option<String>,
    /// Change a key of the configuration, such as train.steps=100.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The directory of all runs, in place of the configuration's.
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
    /// A file with further [[hooks]], behind those of the configuration.
    #[arg(long, value_name = "FILE")]
    hooks: Option<PathBuf>,
    /// Where to compute: cpu, cuda:N or metal.
    #[arg(long)]
    device: Option<String>,
    /// Serve the dashboard while it trains.
    #[arg(long)]
    serve: bool,
    #[command(flatten)]
    dashboard: DashboardArgs,
    #[command(flatten)]
    launch: LaunchArgs,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Print how the run ended as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &TrainArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    if !args.serve && (args.dashboard.port.is_some() || args.dashboard.control) {
        return Err(CliError::bad_input("--port and --control are for the dashboard; add --serve"));
    }
    if args.launch.is_wanted() {
        let resume = args.resume.as_ref().map(|run| run.as_deref());
        return args.launch.run(&Asked { resume, fork: args.fork.is_some() });
    }
    in_world(|world| train_in(args, registry, world))
}

/// Does something in the world that the process was started in. What all ranks fail of is told by rank 0.
pub(super) fn in_world(work: impl FnOnce(&World) -> Result<Outcome, CliError>) -> Result<Outcome, CliError> {
    let world = World::join()?;
    work(&world).map_err(|error| match world.is_first() {
        true => error,
        false if world.is_over() => error.untold(),
        false => error.of(&format!("rank {} on {}", world.rank(), world.hosts()[world.rank()])),
    })
}

fn train_in(args: &TrainArgs, registry: &HookRegistry, world: &World) -> Result<Outcome, CliError> {
    let plan = world.all_well("the configuration", plan_of(args, registry, world))?;
    let device = world.all_well("the device", device_of(args.device.as_deref(), &plan))?;
    set_up_process(&plan);
    let resumed = args.resume.as_ref().map(|run| find_run(&plan, run.as_deref()));
    // Rank 0 says which run is meant: it alone looks into directories that change meanwhile.
    let resumed =
        world.all_well("the run to resume", if world.is_first() { resumed.transpose() } else { Ok(None) })?;
    // Before anything is made: a port may be taken.
    let served = args.serve && world.is_first();
    let dashboard = served.then(|| args.dashboard.start(&runs_to_show(&plan, resumed.as_deref())));
    let _dashboard = world.all_well("the dashboard", dashboard.transpose())?;
    let forked = args.fork.as_ref().map(|run| run::find(&plan.config.run.dir, run));
    let forked = world.all_well("the run to fork", forked.transpose())?;
    let nowhere = PathBuf::new();
    let how = match (&args.resume, &forked) {
        (Some(_), _) => How::Resume(resumed.as_deref().unwrap_or(&nowhere)),
        (None, Some(run)) => How::Fork(run),
        (None, None) => How::New,
    };
    let args_given = std::env::args().collect();
    let start = Start { plan: &plan, registry, device: &device, args: args_given, parent: None };
    let begun = start.begin(how)?;
    if world.is_first() {
        tell_run(args, &begun.run_dir);
        if args.resume.is_some() && begun.resumed.is_none() {
            output::note("WARNING: the run was cut off before its first checkpoint; it begins again");
        }
    }
    let resume = resume_command(args, &begun.run_dir, world);
    let ended = carry_out(begun, args.quiet, args.json)?;
    match args.json {
        _ if !world.is_first() => {}
        true => output::json(&ended.to_json())?,
        false => ended.tell(&resume),
    }
    ended.outcome()
}

fn plan_of(args: &TrainArgs, registry: &HookRegistry, world: &World) -> Result<Plan, CliError> {
    let mut document = read_document(&args.config, &args.set)?;
    if let Some(file) = &args.hooks {
        document.add_hooks(HooksFile::read(file)?.specs(registry)?);
    }
    let runs_dir = args.runs_dir.as_deref();
    // The place of a new run is for rank 0 to look at: it makes it, and then the place is taken.
    let plan = match args.resume.is_some() || !world.is_first() {
        true => check_plan(&document, runs_dir, registry)?,
        false => Plan::check_new(&document, registry, runs_dir)?,
    };
    Ok(plan.in_world(world.clone()))
}

/// Tells whoever started this process which run it is. Without that the run goes well, and cannot be started again by itself.
fn tell_run(args: &TrainArgs, run: &Path) {
    let Some(file) = &args.launch.tell_run else { return };
    let run = std::path::absolute(run).unwrap_or_else(|_| run.to_path_buf());
    if let Err(error) = disk::atomic_write(file, |to| to.write_all(run.to_string_lossy().as_bytes())) {
        output::note(&format!("WARNING: {}: {error}; there will be no restart", file.display()));
    }
}

/// The directory of runs that a dashboard shows: the one that the run is in, which may be elsewhere when it is resumed.
fn runs_to_show(plan: &Plan, resumed: Option<&Path>) -> PathBuf {
    let resumed = resumed.and_then(|run| run.canonicalize().ok());
    let above = resumed.as_deref().and_then(Path::parent);
    above
        .filter(|above| plan.config.run.dir.canonicalize().ok().as_deref() != Some(above))
        .map_or_else(|| plan.config.run.dir.clone(), Path::to_path_buf)
}

/// The command that goes on with a run: with everything that changed the configuration.
fn resume_command(args: &TrainArgs, run_dir: &Path, world: &World) -> String {
    let text = |path: &Path| path.display().to_string();
    let mut words = Vec::new();
    if !world.is_alone() {
        words.extend(["mpirun".to_string(), "-n".to_string(), world.size().to_string()]);
    }
    words.extend(["tenterhook".to_string(), "train".to_string(), text(&args.config)]);
    words.extend(["--resume".to_string(), text(run_dir)]);
    words.extend(args.set.iter().flat_map(|set| ["--set".to_string(), set.clone()]));
    words.extend(args.hooks.iter().flat_map(|file| ["--hooks".to_string(), text(file)]));
    words.extend(args.device.iter().flat_map(|device| ["--device".to_string(), device.clone()]));
    shell_words(&words)
}

/// The run that is meant; without a word about it the one of the configuration's name, or the newest with this configuration.
fn find_run(plan: &Plan, wanted: Option<&str>) -> Result<PathBuf, CliError> {
    let runs = &plan.config.run.dir;
    if let Some(wanted) = wanted.or(plan.config.run.name.as_deref()) {
        return Ok(run::find(runs, wanted)?);
    }
    let listed = run::list(runs)?;
    let readable: Vec<&Path> =
        listed.iter().filter(|run| run.record.is_ok()).map(|run| run.path.as_path()).collect();
    let same = |path: &&&Path| {
        let unchanged = RunDir::open(path).ok().and_then(|run| plan.changed_since(&run).ok());
        unchanged.is_some_and(|changes| changes.is_empty())
    };
    // Where none has this configuration, resuming the newest one will say what has changed.
    let found = readable.iter().find(same).or(readable.first());
    found.map(|path| path.to_path_buf()).ok_or_else(|| {
        CliError::bad_input(format!(
            "there is no run to resume in {}; start one without --resume",
            runs.display()
        ))
    })
}

/// Reads a configuration with the overrides of the command line; all that are wrong are told.
pub(super) fn read_document(config: &Path, set: &[String]) -> Result<Document, Problems> {
    let mut document = Document::read(config)?;
    let mut problems = document.problems();
    for assignment in set {
        problems.extend(document.set(assignment).err().unwrap_or_default());
    }
    if problems.is_empty() { Ok(document) } else { Err(problems) }
}

/// Checks a configuration for a run that is there already, or for none.
pub(super) fn check_plan(
    document: &Document,
    runs_dir: Option<&Path>,
    registry: &HookRegistry,
) -> Result<Plan, CliError> {
    let mut plan = Plan::check(document, registry)?;
    if let Some(dir) = runs_dir {
        plan.config.run.dir = dir.to_path_buf();
    }
    Ok(plan)
}

pub(super) fn device_of(given: Option<&str>, plan: &Plan) -> Result<candle_core::Device, CliError> {
    device::parse(given.or(plan.config.train.device.as_deref()).unwrap_or("cpu"))
}

/// What a configuration says about the process: how much it logs, how many threads it has.
pub(super) fn set_up_process(plan: &Plan) {
    if plan.config.train.debug {
        log_more();
    }
    set_threads(plan.config.train.threads, plan.world());
}

/// So many threads for computing; without a number, a rank's share of the machine's.
pub(super) fn set_threads(given: Option<usize>, world: &World) {
    if let Some(threads) = given.or_else(|| threads_of_rank(world)) {
        // Another pool may be there already when a user's own main calls us; then that one is meant.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
}

/// How many threads a rank gets: its share of the machine's, unless the launcher or the user has given it some.
fn threads_of_rank(world: &World) -> Option<usize> {
    let given = std::env::var_os("RAYON_NUM_THREADS").is_some();
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    (!given && !world.is_alone() && !is_bound()).then(|| (all / world.on_this_host()).max(1))
}

/// Whether the launcher has given the process some cores of the machine, and not all.
#[cfg(target_os = "linux")]
fn is_bound() -> bool {
    // SAFETY: the set is a plain array of bits, which the system fills; the count of cores is asked for.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0
            && i64::from(libc::CPU_COUNT(&set)) < libc::sysconf(libc::_SC_NPROCESSORS_ONLN)
    }
}

/// Other systems do not tell.
#[cfg(not(target_os = "linux"))]
fn is_bound() -> bool {
    false
}
