//! `tenterhook sae train`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use tenterhook_hooks::{HookRegistry, RunStatus, glob_matches, nearest};
use tenterhook_lens::StoreReader;
use tenterhook_record::name::file_safe;
use tenterhook_sae::source::{
    ActivationSource, ActivationStream, ModelActivations, PointActivations, Several, Shared,
    StoreActivations, StreamOptions,
};
use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, SparsityLoss, trainer};
use tenterhook_sae::{Architecture, Normalize, Reshape, SaeConfig};
use tenterhook_train::schedule::ScheduleConfig;
use tenterhook_train::{Trainer, World};

use super::super::carry_out::carry_out;
use super::super::error::CliError;
use super::super::hooks_file::HooksFileArgs;
use super::super::memory::check_fits;
use super::super::model::ModelArgs;
use super::super::output;
use super::super::train::{in_world, set_threads};
use super::super::{Outcome, device};
use super::run::{Place, resume_command};
use super::texts::{TextArgs, full};
use crate::training::{Begun, HooksFile};

/// Train sparse autoencoders on the activations of a model, one for every point, all from the same forwards.
///
/// The directory given with --out becomes a run as `train` makes them, with metrics, checkpoints and a record; the autoencoders are in its
/// `saes` directory, one SAELens directory for each point. SIGINT, SIGTERM and SIGUSR1 end the step, save and leave with exit code 75.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook sae train ./gpt2 --points blocks.8.hook_resid_pre --file texts.txt --k 32 --expansion 16 --tokens 10000000 --out runs/sae
  tenterhook sae train ./gpt2 --points 'blocks.*.hook_resid_post' --store acts --arch jumprelu --l0 0.5 --steps 5000 --out runs/all
  tenterhook sae train ./gpt2 --points blocks.8.hook_resid_pre --file texts.txt --tokens 10000000 --out runs/sae --resume")]
pub(super) struct TrainArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A point's name or a glob (`*` spans dots); with --store, the name of a stored layer. May be given several times.
    #[arg(long, value_name = "POINT", required = true)]
    points: Vec<String>,
    /// A file with a text per line, to run through the model.
    #[arg(long, value_name = "FILE", required_unless_present = "store", conflicts_with = "store")]
    file: Option<PathBuf>,
    /// A store of activations, as `capture` writes it; the model is not run then.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(flatten)]
    texts: TextArgs,
    /// Which latents are active.
    #[arg(long, value_enum, default_value_t = Arch::Topk)]
    arch: Arch,
    /// The number of latents.
    #[arg(long, value_name = "N", conflicts_with = "expansion")]
    d_sae: Option<usize>,
    /// The number of latents, as a multiple of the width of the activations.
    #[arg(long, value_name = "N", default_value_t = 8)]
    expansion: usize,
    /// Active latents per activation (topk), or on average (batchtopk).
    #[arg(long, value_name = "K", default_value_t = 32.0)]
    k: f64,
    /// What activations cost (standard, gated).
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    l1: f64,
    /// What an active latent costs (jumprelu).
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    l0: f64,
    /// The cost of --l1 or --l0 grows from 0 over so many steps.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    sparsity_warm_up: u64,
    /// What counts as sparsity (jumprelu).
    #[arg(long, value_enum, default_value_t = Sparsity::Step)]
    sparsity: Sparsity,
    /// The number of active latents that is aimed at (--sparsity quadratic).
    #[arg(long, value_name = "N")]
    target_l0: Option<f64>,
    /// The width around a threshold in which it learns (jumprelu).
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    bandwidth: f64,
    /// How much dead latents learn from what the others miss (topk, batchtopk).
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    aux: f64,
    /// A latent is dead when it has not fired on so many activations; by default 1000 batches.
    #[arg(long, value_name = "N")]
    dead_after: Option<u64>,
    /// Give dead latents a new start after every so many steps.
    #[arg(long, value_name = "STEPS")]
    resample_every: Option<u64>,
    /// What is done to activations first.
    #[arg(long, value_enum, default_value_t = Normalization::None)]
    normalize: Normalization,
    /// Keep the norm of the decoder's rows at 1.
    #[arg(long)]
    unit_norm_decoder: bool,
    /// Do not subtract the decoder's bias from the input.
    #[arg(long)]
    no_b_dec_on_input: bool,
    /// Optimizer steps.
    #[arg(long, value_name = "N", required_unless_present = "tokens", conflicts_with = "tokens")]
    steps: Option<u64>,
    /// The same as a number of activations.
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// Activations per step.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    batch: usize,
    /// The learning rate.
    #[arg(long, value_name = "X", default_value_t = 3e-4)]
    lr: f64,
    /// The learning rate grows from 0 over so many steps.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    warm_up: u64,
    /// Activations that are held and mixed at a time.
    #[arg(long, value_name = "N", default_value_t = 65536)]
    buffer: u64,
    /// Everything random depends on it.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// A checkpoint after every so many steps.
    #[arg(long, value_name = "STEPS", default_value_t = 1000)]
    checkpoint_every: u64,
    /// Publish metrics on every so many steps.
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    metrics_every: u64,
    #[command(flatten)]
    hooks: HooksFileArgs,
    /// The directory of the run, which must not be there yet.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on with the run in --out.
    #[arg(long)]
    resume: bool,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Print how the run ended as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Arch {
    Standard,
    Topk,
    Batchtopk,
    Jumprelu,
    Gated,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sparsity {
    Step,
    Tanh,
    Quadratic,
}

#[derive(Clone, Copy, ValueEnum)]
enum Normalization {
    None,
    #[value(name = "expected_average_only_in")]
    ExpectedAverageOnlyIn,
    #[value(name = "constant_norm_rescale")]
    ConstantNormRescale,
    #[value(name = "layer_norm")]
    LayerNorm,
}

pub(super) fn run(args: &TrainArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    in_world(|world| train_in(args, registry, world))
}

fn train_in(args: &TrainArgs, registry: &HookRegistry, world: &World) -> Result<Outcome, CliError> {
    set_threads(None, world);
    // The directory is rank 0's: it makes it, and then it is there.
    let place = if world.is_first() { Place::new(&args.out, args.resume).map(Some) } else { Ok(None) };
    let place = world.all_well("the directory of the run", place)?;
    let (trainer, config, task, data) =
        world.all_well("the data and the autoencoders", prepare(args, registry, world))?;
    let begun = match place {
        Some(place) => place.begin(trainer, &config, args.seed, &*data).map(Ok),
        None => Ok(Err(trainer)),
    };
    let begun = world.all_well("the run", begun)?;
    let begun = world.all_well("the checkpoint", join(world, args, begun)?)?;
    let resume = resume_command();
    let ended = carry_out(begun, args.quiet, args.json)?;
    if !world.is_first() {
        return ended.outcome();
    }
    let finished = ended.status() == RunStatus::Completed || ended.status() == RunStatus::Stopped;
    let saved = if finished { save(args, &task)? } else { Vec::new() };
    if args.json {
        let mut json = ended.to_json();
        json["saes"] = json!(saved);
        json["receipts"] = ended.receipts();
        output::json(&json)?;
    } else {
        ended.tell(&resume);
        saved.iter().for_each(|path| output::note(&format!("  autoencoder  {}", path.display())));
    }
    ended.outcome()
}

/// The other ranks take up what rank 0 has begun: the directory, and the checkpoint that the run goes on from.
fn join(
    world: &World,
    args: &TrainArgs,
    begun: Result<Begun, Trainer>,
) -> Result<Result<Begun, CliError>, CliError> {
    let word = begun
        .as_ref()
        .ok()
        .map(|begun| (begun.run_id.clone(), begun.trainer.resumed_from().map(PathBuf::from)));
    let (run_id, checkpoint) = world.from_first("the run", word)?;
    Ok(match begun {
        Ok(begun) => Ok(begun),
        Err(mut trainer) => {
            let restored = checkpoint.map_or(Ok(()), |checkpoint| trainer.restore(&checkpoint));
            let joined = |()| {
                let trainer = trainer.with_record_of_first(run_id.clone(), args.out.clone());
                Begun { trainer, run_id, run_dir: args.out.clone(), resumed: None, skipped: Vec::new() }
            };
            restored.map(joined).map_err(|error| CliError::bad_input(error.to_string()))
        }
    })
}

/// What is trained, on what, and the configuration for the record.
type Prepared = (Trainer, Value, Arc<SaeTask>, Arc<ActivationStream>);

fn prepare(args: &TrainArgs, registry: &HookRegistry, world: &World) -> Result<Prepared, CliError> {
    let device = device::parse(args.model.device())?;
    let mut source = source(args)?;
    if args.store.is_none() && !world.is_alone() {
        source = Arc::new(Shared::new(source, world.clone()));
    }
    let saes = configs(args, &*source)?;
    let options = options(args);
    let task = Arc::new(SaeTask::new(saes, options, args.seed, &device)?);
    let steps = args.steps.unwrap_or_else(|| args.tokens.unwrap_or(0) / args.batch.max(1) as u64);
    if steps == 0 {
        return Err(CliError::bad_input(
            "there is no step to take: --steps is 0, or --tokens is less than one --batch",
        ));
    }
    let run = RunOptions {
        lr: args.lr,
        seed: args.seed,
        schedule: ScheduleConfig { warmup: args.warm_up, ..ScheduleConfig::default() },
        checkpoint_every: Some(args.checkpoint_every),
        world: world.clone(),
        ..RunOptions::new(steps, args.batch)
    };
    let stream = StreamOptions {
        examples: steps.saturating_mul(args.batch as u64),
        buffer_rows: args.buffer,
        seed: args.seed,
    };
    let data = Arc::new(ActivationStream::new(source, stream)?);
    task.find_scale(&*data, args.buffer.min(stream.examples), &device)?;
    let mut trainer = trainer(&task, data.clone(), &run)?;
    let mut specs = Vec::new();
    if let Some(file) = &args.hooks.hooks {
        specs = HooksFile::read(file)?.specs(registry)?;
        for spec in &specs {
            trainer.add_hook_from(registry, spec)?;
        }
    }
    let config = config(args, &task, steps, specs);
    Ok((trainer, config, task, data))
}

/// Where the activations come from.
fn source(args: &TrainArgs) -> Result<Arc<dyn ActivationSource>, CliError> {
    if let Some(dir) = &args.store {
        args.texts.refuse_for_store()?;
        let readers = StoreReader::open_parts(dir).map_err(|error| CliError::bad_input(error.to_string()))?;
        let layers = stored_layers(&readers[0], &args.points)?;
        let source = stored(readers, &layers)?;
        // The model is named in what is written: it must be one that has these points, of this width.
        let lm = args.model.load()?;
        let points = PointActivations::new(&lm, layers.clone())?;
        for ((name, stored), (_, width)) in source.tensors().iter().zip(points.tensors()) {
            if stored != width {
                return Err(CliError::bad_input(format!(
                    "`{name}` is {stored} wide in {} and {width} wide in {}: the store is of another model",
                    dir.display(),
                    args.model.model
                )));
            }
        }
        return Ok(source);
    }
    let file = args.file.as_deref().ok_or_else(|| CliError::bad_input("give --file or --store"))?;
    let lm = args.model.load()?;
    let points = PointActivations::new(&lm, args.points.clone())?;
    let sequences = args.texts.sequences(&lm, file)?;
    Ok(Arc::new(ModelActivations::new(points, sequences, args.texts.model_batch, args.texts.skip_first)?))
}

/// The rows of these layers: of one run, or of the parts that several processes have captured.
fn stored(mut readers: Vec<StoreReader>, layers: &[String]) -> Result<Arc<dyn ActivationSource>, CliError> {
    if readers.len() == 1 {
        return Ok(Arc::new(StoreActivations::new(readers.remove(0), layers)?));
    }
    let part = |reader| Ok(Box::new(StoreActivations::new(reader, layers)?) as Box<dyn ActivationSource>);
    let parts = readers.into_iter().map(part).collect::<Result<Vec<_>, CliError>>()?;
    Ok(Arc::new(Several::new(parts)?))
}

/// The stored layers that these names and globs mean.
fn stored_layers(reader: &StoreReader, points: &[String]) -> Result<Vec<String>, CliError> {
    let mut found: Vec<String> = Vec::new();
    for point in points {
        let names: Vec<&str> = reader.layers().iter().map(|layer| layer.name.as_str()).collect();
        let matching: Vec<&str> = names.iter().copied().filter(|name| glob_matches(point, name)).collect();
        if matching.is_empty() {
            let near = nearest(point, names.iter().copied(), 3).join(", ");
            return Err(CliError::bad_input(format!("the store has no layer `{point}`; nearest: {near}")));
        }
        for name in matching {
            if !found.iter().any(|other| other == name) {
                found.push(name.to_string());
            }
        }
    }
    Ok(found)
}

/// An autoencoder for every point.
fn configs(args: &TrainArgs, source: &dyn ActivationSource) -> Result<Vec<(String, SaeConfig)>, CliError> {
    let architecture = match args.arch {
        Arch::Standard => Architecture::Standard,
        Arch::Topk if args.k.fract() != 0.0 || args.k < 1.0 => {
            return Err(CliError::bad_input(format!("--k {}: topk needs a whole number of latents", args.k)));
        }
        Arch::Topk => Architecture::TopK { k: args.k as usize, rescale_acts_by_decoder_norm: true },
        Arch::Batchtopk => Architecture::BatchTopK { k: args.k, rescale_acts_by_decoder_norm: true },
        Arch::Jumprelu => Architecture::JumpRelu,
        Arch::Gated => Architecture::Gated,
    };
    let of_point = |(name, width): &(String, usize)| {
        let d_sae = args.d_sae.unwrap_or(args.expansion.saturating_mul(*width));
        // Weights, their gradients and two moments of the optimizer; the latents of a batch and their gradients.
        check_fits(&format!("an autoencoder of {d_sae} latents"), &[d_sae, *width, 2 * 4 * 4])?;
        check_fits(&format!("--batch {}", args.batch), &[args.batch, d_sae.saturating_add(*width), 2 * 4])?;
        let mut config = SaeConfig::new(*width, d_sae, architecture).at_point(name);
        config.apply_b_dec_to_input = !args.no_b_dec_on_input;
        config.normalize_activations = match args.normalize {
            Normalization::None => Normalize::None,
            Normalization::ExpectedAverageOnlyIn => Normalize::ExpectedAverageOnlyIn,
            Normalization::ConstantNormRescale => Normalize::ConstantNormRescale,
            Normalization::LayerNorm => Normalize::LayerNorm,
        };
        if name.ends_with("hook_z") {
            config.reshape_activations = Reshape::HookZ;
        } else if [".hook_q", ".hook_k", ".hook_v", "hook_rot_q", "hook_rot_k", "hook_result"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            return Err(CliError::bad_input(format!(
                "`{name}` has heads, and of such points the format of SAELens knows only hook_z"
            )));
        }
        let about = json!({
            "model_name": args.model.model,
            "hook_head_index": null,
            "context_size": args.texts.context,
            "prepend_bos": args.texts.bos.choice(),
            "dataset_path": args.file.as_deref().or(args.store.as_deref()).map(full),
        });
        config.metadata.extend(about.as_object().cloned().unwrap_or_default());
        Ok((name.clone(), config))
    };
    source.tensors().iter().map(of_point).collect()
}

fn options(args: &TrainArgs) -> SaeTraining {
    SaeTraining {
        l1_coefficient: args.l1,
        l1_warm_up_steps: args.sparsity_warm_up,
        l0_coefficient: args.l0,
        l0_warm_up_steps: args.sparsity_warm_up,
        jumprelu_sparsity_loss_mode: match args.sparsity {
            Sparsity::Step => SparsityLoss::Step,
            Sparsity::Tanh => SparsityLoss::Tanh,
            Sparsity::Quadratic => SparsityLoss::Quadratic,
        },
        jumprelu_bandwidth: args.bandwidth,
        target_l0: args.target_l0,
        aux_loss_coefficient: args.aux,
        unit_norm_decoder: args.unit_norm_decoder,
        dead_after_tokens: args.dead_after.unwrap_or(1000u64.saturating_mul(args.batch as u64)),
        resample_every: args.resample_every,
        metrics_every: args.metrics_every,
        ..SaeTraining::default()
    }
}

/// What decides how the run goes, as its record has it. How long it is may change when it is resumed.
fn config(args: &TrainArgs, task: &SaeTask, steps: u64, hooks: Vec<Value>) -> Value {
    let names: Vec<&str> = task.names().collect();
    let json = json!({
        "train": { "steps": steps },
        "sae": {
            "model": args.model.model,
            "points": names,
            "configs": task.configs(),
            "training": task.options(),
            "batch": args.batch,
            "lr": args.lr,
            "warm_up": args.warm_up,
            "seed": args.seed,
            "buffer": args.buffer,
            "context": args.texts.context,
            "skip_first": args.texts.skip_first,
            "file": args.file.as_deref().map(full),
            "store": args.store.as_deref().map(full),
        },
        "hooks": hooks,
    });
    without_nulls(json)
}

/// TOML has no word for nothing.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// Writes the autoencoders; returns their directories.
fn save(args: &TrainArgs, task: &SaeTask) -> Result<Vec<PathBuf>, CliError> {
    let mut saved = Vec::new();
    for (index, name) in task.names().enumerate() {
        let path = args.out.join("saes").join(file_safe(name));
        let written = task.to_sae(index).and_then(|sae| sae.save(&path));
        written.map_err(|error| CliError::failed(error.to_string()))?;
        saved.push(path);
    }
    Ok(saved)
}
