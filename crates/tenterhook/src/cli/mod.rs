//! The command line.

mod attribute;
mod bench;
mod capture;
mod carry_out;
mod commands;
mod completions;
mod config;
mod dashboard;
mod demo;
mod device;
mod error;
mod eval;
mod generate;
mod heads;
mod hooks;
mod hooks_file;
mod launch;
mod lens;
mod markdown;
mod memory;
mod model;
mod output;
mod patch;
mod points;
mod progress;
mod prompt;
mod runs;
mod sae;
mod serve;
mod signals;
mod steer;
mod train;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};
use tenterhook_hooks::HookRegistry;
use tenterhook_nn::on_deep_stack;
use tenterhook_nn::ops::vectors_of_512_allowed;
use tracing_subscriber::EnvFilter;

use error::CliError;

/// One hook system for training neural networks and for understanding them.
#[derive(Parser)]
#[command(name = "tenterhook", version, about, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done; 1 failed; 2 bad usage, configuration or file; 4 done, but a hook failed; 75 interrupted and saved, run \
                  me again; 130/143 a second signal cut it short."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Train(train::TrainArgs),
    Eval(eval::EvalArgs),
    Runs(runs::RunsArgs),
    Serve(serve::ServeArgs),
    Hooks(hooks::HooksArgs),
    Config(config::ConfigArgs),
    Points(points::PointsArgs),
    Capture(capture::CaptureArgs),
    Generate(generate::GenerateArgs),
    Patch(Box<patch::PatchArgs>),
    Steer(Box<steer::SteerArgs>),
    Lens(lens::LensArgs),
    Attribute(attribute::AttributeArgs),
    Heads(heads::HeadsArgs),
    Sae(sae::SaeArgs),
    Bench(bench::BenchArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Commands(commands::CommandsArgs),
}

impl Command {
    fn run(self, registry: &HookRegistry) -> Result<Outcome, CliError> {
        vectors_of_512_allowed().map_err(CliError::bad_input)?;
        match self {
            Self::Demo(args) => demo::run(&args, registry),
            Self::Train(args) => train::run(&args, registry),
            Self::Eval(args) => eval::run(&args, registry),
            Self::Runs(args) => runs::run(&args, registry),
            Self::Serve(args) => serve::run(&args),
            Self::Hooks(args) => hooks::run(&args, registry),
            Self::Config(args) => config::run(&args, registry),
            Self::Points(args) => points::run(&args),
            Self::Capture(args) => capture::run(&args, registry),
            Self::Generate(args) => generate::run(&args, registry),
            Self::Patch(args) => patch::run(&args, registry),
            Self::Steer(args) => steer::run(&args, registry),
            Self::Lens(args) => lens::run(&args, registry),
            Self::Attribute(args) => attribute::run(&args, registry),
            Self::Heads(args) => heads::run(&args, registry),
            Self::Sae(args) => sae::run(&args, registry),
            Self::Bench(args) => bench::run(&args, registry),
            Self::Completions(args) => completions::run(&args),
            Self::Commands(args) => commands::run(&args),
        }
    }
}

/// How a command ended when it did not fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Done, but a hook failed on the way.
    Degraded,
    /// A signal ended it, and it is saved.
    Interrupted,
}

/// Parses the arguments of the process, runs the command and turns its result into an exit code.
pub fn main() -> ExitCode {
    main_with(crate::training::registry())
}

/// The same with kinds of hooks of your own: a program of three lines that has every command.
///
/// ```no_run
/// # use tenterhook::hooks::{Hook, HookResult};
/// # #[derive(serde::Deserialize, schemars::JsonSchema)]
/// # struct MyOptions {}
/// # fn my_hook(_: MyOptions) -> HookResult<Box<dyn Hook>> { Err("".into()) }
/// fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
///     let mut registry = tenterhook::training::registry();
///     registry.register::<MyOptions>("my_crate.MyHook", "what it does", my_hook)?;
///     Ok(tenterhook::cli::main_with(registry))
/// }
/// ```
pub fn main_with(registry: HookRegistry) -> ExitCode {
    run_with(registry, std::env::args_os())
}

/// The same with these arguments, the program's name first, in place of those of the process.
pub fn run_with<S: Into<OsString> + Clone>(
    registry: HookRegistry,
    args: impl IntoIterator<Item = S>,
) -> ExitCode {
    start_logging();
    signals::survive_file_size_limit();
    let cli = Cli::parse_from(args);
    let run = move || cli.command.run(&registry);
    let result = match on_deep_stack(run) {
        Ok(result) => result,
        Err(error) => Err(CliError::failed(format!("no thread to work on: {error}"))),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Degraded) => ExitCode::from(4),
        Ok(Outcome::Interrupted) => ExitCode::from(75),
        Err(error) => {
            if !error.is_untold() {
                output::error(&error.to_string());
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Says more than warnings from now on.
static LOG_MORE: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Warnings go to standard error, and the shapes that `debug` was asked for; `RUST_LOG` asks for more, and so does [`log_more`].
fn start_logging() {
    let given = EnvFilter::try_from_default_env();
    let is_given = given.is_ok();
    let filter = given.unwrap_or_else(|_| EnvFilter::new("warn,tenterhook_hooks::kinds::debug=info"));
    let color =
        std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .without_time()
        .with_target(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    // Another subscriber may be there already when a test or a user's own main calls us.
    if log.try_init().is_ok() && !is_given {
        let more = move || {
            let ours = ["hooks", "train", "models", "record", "lens", "sae", "dashboard"]
                .map(|part| format!("tenterhook_{part}=debug"));
            // It only fails when nobody logs any more.
            let _ = handle.reload(EnvFilter::new(format!("info,tenterhook=debug,{}", ours.join(","))));
        };
        let _ = LOG_MORE.set(Box::new(more));
    }
    // At `trace` the HTTP library prints what it sends byte by byte, secrets included.
    log::set_max_level(log::max_level().min(log::LevelFilter::Debug));
}

/// Logs what happens in detail, as `debug = true` asks for. `RUST_LOG` has the last word.
fn log_more() {
    LOG_MORE.get().into_iter().for_each(|more| more());
}
