//! `tenterhook capture`: activations and gradients of a model, in a file or in a store.

mod file;
pub(super) mod input;
mod store;

use std::path::PathBuf;

use candle_core::DType;
use clap::{ArgGroup, Args, ValueEnum};
use tenterhook_hooks::HookRegistry;

use super::Outcome;
use super::error::CliError;
use super::hooks_file::HooksFileArgs;
use super::model::ModelArgs;
use super::prompt::BosArgs;
use super::train::in_world;

/// Run a model on texts or token ids and write what passes at chosen points.
///
/// With a file as --out, everything goes through the model at once, and all texts must have the same number of tokens. The file holds one tensor
/// per point under the name that matched, `logits` with --logits, and with --gradients also `loss`, the mean next-token cross
/// entropy, and its gradient at each point under `grad.<name>`.
///
/// With a directory as --out, a run of a store is written, batch by batch, with no more than --memory-limit of activations in memory: any amount of
/// text will do. Padding is not stored; tokens, positions and sequence numbers are, beside the activations. Whatever happens, what is there can be
/// read, from Python with plain safetensors. Under mpirun, every process takes its part of the texts and writes a run of its own: NAME-rank0000, NAME-rank0001,
/// one behind the other what one process would have written.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook capture ./gpt2 --text 'The tower is in Paris' --points 'blocks.*.hook_resid_post' --out out.safetensors
  tenterhook capture gpt2 --file corpus.jsonl --points blocks.6.hook_resid_post --out acts --context 128 --dtype f16
  tenterhook capture ./gpt2 --tokens-file ids.json --hooks ablate.toml --points '*' --out out.safetensors --gradients")]
#[command(group = ArgGroup::new("input").required(true).args(["text", "file", "tokens_file"]))]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text. May be given several times.
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// A file with a text per line, or, where its name ends in .jsonl, with a JSON object per line that has `text`. Blank lines are skipped.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A JSON file with a list of lists of token ids: [[1, 2, 3], [4, 5, 6]]. For a file as --out they are equally long.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prepend_bos", "no_bos"])]
    tokens_file: Option<PathBuf>,
    #[command(flatten)]
    bos: BosArgs,
    /// A point's name, a layer's path, a glob (`*` spans dots) or a block index. May be given several times.
    #[arg(long, value_name = "GLOB", required_unless_present = "hooks", allow_hyphen_values = true)]
    points: Vec<String>,
    /// The safetensors file to write, or the directory of a store.
    #[arg(long, value_name = "FILE|DIR")]
    out: PathBuf,
    /// Write the logits too.
    #[arg(long)]
    logits: bool,
    /// Write the loss and its gradient at each point too. Into a file only.
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    hooks: HooksFileArgs,
    /// The type of floats in the file or the store.
    #[arg(long, value_enum, value_name = "TYPE")]
    dtype: Option<FloatType>,
    /// Longer texts are cut after so many tokens.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "context")]
    max_tokens: Option<usize>,
    /// Store: longer texts are split into blocks of so many tokens, each a sequence of its own. By default, what the model was made for.
    #[arg(long, value_name = "N", value_parser = positive)]
    context: Option<usize>,
    /// Store: keep only these positions of every sequence, such as -1 or 0,1,-1; negative ones from its end.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    positions: Option<Vec<i64>>,
    /// Store: sequences that go through the model together [default: 8]
    #[arg(long, value_name = "N", value_parser = positive)]
    batch_size: Option<usize>,
    /// Store: MiB of activations in memory, at most [default: 256]
    #[arg(long, value_name = "MIB", value_parser = positive)]
    memory_limit: Option<usize>,
    /// Store: the run's name [default: capture, capture-2, ...]
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FloatType {
    F32,
    F16,
    Bf16,
}

impl FloatType {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// A whole number of at least 1.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
    if number == 0 { Err("must be at least 1".to_string()) } else { Ok(number) }
}

pub(super) fn run(args: &CaptureArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    // A directory, or something new that is not called a file.
    let is_store = args.out.is_dir()
        || !args.out.exists() && args.out.extension().is_none_or(|extension| extension != "safetensors");
    in_world(|world| match is_store {
        true => store::run(args, registry, world),
        false if !world.is_alone() => Err(CliError::bad_input(format!(
            "--out {} is a file, which one process writes; {} of them can write a store: name a directory",
            args.out.display(),
            world.size()
        ))),
        false => file::run(args, registry),
    })
}
