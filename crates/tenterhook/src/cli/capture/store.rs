//! Batch by batch, into a store.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tenterhook_hooks::{HookRegistry, Positions};
use tenterhook_lens::{
    CaptureToOptions, Captured, LanguageModel, LensError, LocalStore, LongTexts, StoreOptions, StoreReader,
    StoreSummary,
};
use tenterhook_train::{Together, World};

use super::super::progress::Counting;
use super::file::check_captures;
use super::{CaptureArgs, input};
use crate::cli::error::CliError;
use crate::cli::hooks_file::{report_json, report_text};
use crate::cli::model::outcome;
use crate::cli::train::set_threads;
use crate::cli::{Outcome, output};

const MIB: usize = 1 << 20;

pub(super) fn run(args: &CaptureArgs, registry: &HookRegistry, world: &World) -> Result<Outcome, CliError> {
    set_threads(None, world);
    // Before the first of them makes a run: the name is free for all.
    world.all_well("the store", check(args))?;
    let name = args.run.clone().unwrap_or_else(|| free_name(&args.out));
    let name = world.from_first("the name of the run", Some(name))?;
    let run = if world.is_alone() { name } else { format!("{name}-rank{:04}", world.rank()) };
    let loaded = args.model.load().and_then(|lm| {
        input::check_ids(args, &lm)?;
        args.hooks.attach(lm.hooks(), registry)?;
        check_captures(lm.hooks(), args)?;
        Ok(lm)
    });
    let lm = world.all_well("the model", loaded)?;
    let (count, sequences) = world.all_well("the texts", input::sequences(args, &lm))?;
    // The parts of all ranks, one behind the other, are what one process would have.
    let own = world.share().of(count as usize);
    world.all_well("the parts", if own.is_empty() { Err(too_few(count, world)) } else { Ok(()) })?;
    let (count, sequences) = (own.len() as u64, sequences.skip(own.start).take(own.len()));
    let captured = capture_part(args, &lm, count, sequences, &run, world.size());
    let (captured, summary, took) = world.all_well("the end", captured).map_err(during_work)?;
    tell_all(args, world, &captured, &summary, took)?;
    Ok(outcome(&captured.report))
}

/// What has been begun and failed on another rank is no mistake in what was given.
fn during_work(error: Together<CliError>) -> CliError {
    match error {
        Together::Own(error) => error,
        Together::Others(error) => CliError::failed(error.to_string()),
    }
}

fn too_few(texts: u64, world: &World) -> CliError {
    CliError::bad_input(format!("there are {texts} texts for {} processes: start fewer", world.size()))
}

/// Captures some sequences into a run of the store.
fn capture_part(
    args: &CaptureArgs,
    lm: &LanguageModel,
    count: u64,
    sequences: impl Iterator<Item = Result<Vec<u32>, LensError>>,
    run: &str,
    ranks: usize,
) -> Result<(Captured, StoreSummary, Duration), CliError> {
    let options = CaptureToOptions {
        points: (!args.points.is_empty()).then(|| args.points.clone().into()),
        positions: args.positions.clone().map(Positions),
        logits: args.logits,
        captured_states: args.hooks.hooks.is_some(),
        batch_size: args.batch_size.unwrap_or(8),
        prepend_bos: args.bos.choice(),
        context: args.max_tokens.or(args.context),
        long_texts: if args.max_tokens.is_some() { LongTexts::Cut } else { LongTexts::Split },
    };
    options.check(lm)?;
    let mut writer = LocalStore::new(&args.out).create(
        run,
        StoreOptions {
            memory_limit: args.memory_limit.map_or(256 * MIB, |mib| mib.saturating_mul(MIB)),
            dtype: args.dtype.map(|given| given.dtype()),
            about: about(args, ranks),
            ..StoreOptions::default()
        },
    )?;
    let (bar, started) = (Counting::of("texts"), Instant::now());
    let captured = lm.capture_tokens_to(&mut writer, sequences, &options, |far| {
        bar.show(far.texts as usize, count as usize);
        bar.say(format!("texts, {} tokens", far.tokens));
    })?;
    bar.say("writing the rest");
    let summary = writer.finish()?;
    drop(bar);
    Ok((captured, summary, started.elapsed()))
}

/// One process after the other tells what it has done.
fn tell_all(
    args: &CaptureArgs,
    world: &World,
    captured: &Captured,
    summary: &StoreSummary,
    took: Duration,
) -> Result<(), CliError> {
    for rank in 0..world.size() {
        let told = if rank == world.rank() { tell(args, captured, summary, took) } else { Ok(()) };
        world.all_well("the report", told).map_err(during_work)?;
    }
    Ok(())
}

fn tell(
    args: &CaptureArgs,
    captured: &Captured,
    summary: &StoreSummary,
    took: Duration,
) -> Result<(), CliError> {
    if summary.too_large > 0 {
        output::note(&format!(
            "WARNING: {} values are too large for the type on the disk and are stored as infinite; --dtype bf16 or f32 has room for them",
            summary.too_large
        ));
    }
    let seconds = took.as_secs_f64();
    let layers = StoreReader::open(&summary.path)?.layers().to_vec();
    if args.json {
        let mut all = report_json(&captured.report);
        all.insert("out".to_string(), json!(args.out.display().to_string()));
        all.insert("layers".to_string(), json!(layers));
        all.insert("texts".to_string(), json!(captured.texts));
        all.insert("long_texts".to_string(), json!(captured.long_texts));
        all.insert("tokens".to_string(), json!(captured.tokens));
        all.insert("seconds".to_string(), json!(seconds));
        if let Ok(Value::Object(written)) = serde_json::to_value(summary) {
            all.extend(written);
        }
        return output::json(&all);
    }
    output::text(&report_text(&captured.report))?;
    let long = match (captured.long_texts, args.max_tokens) {
        (0, _) => String::new(),
        (count, Some(_)) => format!(", {count} of them cut"),
        (count, None) => format!(", {count} of them split"),
    };
    output::text(&format!(
        "\n{} texts{long}, {} sequences, {} rows of {} layers\n{:.1} MB in {} shards, {:.0} MB/s: {}",
        captured.texts,
        summary.sequences,
        summary.rows,
        layers.len(),
        summary.bytes as f64 / 1e6,
        summary.shards,
        summary.bytes as f64 / 1e6 / seconds.max(1e-9),
        summary.path.display()
    ))
}

/// Who reads the store wants to know where it comes from.
fn about(args: &CaptureArgs, ranks: usize) -> Map<String, Value> {
    let source = match (&args.tokens_file, &args.file) {
        (Some(path), _) | (_, Some(path)) => path.display().to_string(),
        _ => format!("{} texts", args.text.len()),
    };
    Map::from_iter([
        ("model".to_string(), json!(args.model.model)),
        ("source".to_string(), json!(source)),
        ("points".to_string(), json!(args.points)),
        (
            "hooks".to_string(),
            json!(args.hooks.hooks.as_ref().and_then(|path| std::fs::read_to_string(path).ok())),
        ),
        ("context".to_string(), json!(args.max_tokens.or(args.context))),
        ("prepend_bos".to_string(), json!(args.bos.choice())),
        ("tenterhook".to_string(), json!(env!("CARGO_PKG_VERSION"))),
        ("ranks".to_string(), json!(ranks)),
    ])
}

/// `capture`, or the first of `capture-2`, `capture-3`, ... that is not there.
fn free_name(out: &Path) -> String {
    let names = std::iter::once("capture".to_string()).chain((2..).map(|n| format!("capture-{n}")));
    let taken = |name: &String| out.join(name).exists() || out.join(format!("{name}-rank0000")).exists();
    names.into_iter().find(|name| !taken(name)).unwrap_or_default()
}

fn check(args: &CaptureArgs) -> Result<(), CliError> {
    let shown = args.out.display();
    if args.gradients {
        return Err(CliError::bad_input(format!(
            "--gradients are written into a file: --out {shown} is a directory; name a .safetensors file"
        )));
    }
    // A store has runs and nothing else: a directory with other files was named by mistake.
    let is_other = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_dir());
    let other = args.out.read_dir().ok().and_then(|entries| entries.flatten().find(is_other));
    if let Some(other) = other {
        return Err(CliError::bad_input(format!(
            "--out {shown} is a directory that is not a store: {} is in it; name a .safetensors file, or a new directory",
            other.file_name().to_string_lossy()
        )));
    }
    let parent = args.out.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.filter(|parent| !parent.is_dir()) {
        Some(parent) => Err(CliError::bad_input(format!(
            "--out {shown}: the directory {} does not exist",
            parent.display()
        ))),
        None => Ok(()),
    }
}
