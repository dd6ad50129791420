//! `tenterhook heads`: what attention heads do.

mod circuits;
mod habits;
mod patterns;

use clap::Args;
use serde_json::{Map, Value, json};
use tenterhook_hooks::{HookRegistry, Report};
use tenterhook_lens::analysis::{Composition, HeadKind};

use super::error::CliError;
use super::hooks_file::{HooksFileArgs, tell_report, with_report};
use super::model::{ModelArgs, ShowArgs, outcome};
use super::prompt::PromptArgs;
use super::{Outcome, output};
use crate::pages::Page;

/// Attention heads: what they look for, whom they attend to, and what their weights compute.
///
/// Without further options, every head gets a score per habit: how much of its attention goes to the token after an earlier copy of the same
/// token (induction), to the token before (previous), or to an earlier copy (duplicate), averaged over the tokens for which there is
/// such a place. The text is your own, or random tokens that come twice.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook heads ./gpt2 --detect induction --seq-len 50
  tenterhook heads ./gpt2 --prompt 'When Mary and John went to the store' --patterns --layers 5 --heads 1,5
  tenterhook heads ./gpt2 --circuits --layers 0,1 --html circuits.html")]
pub(super) struct HeadsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Which habits to look for: induction, previous, duplicate. By default all, unless something else is asked for.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    detect: Vec<HeadKind>,
    /// How many random tokens come twice, where no text is given. By default 50, or fewer where the model has no room for them.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "tokens"])]
    seq_len: Option<usize>,
    /// How many random texts.
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with_all = ["prompt", "tokens"])]
    texts: usize,
    /// Decides the random tokens.
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with_all = ["prompt", "tokens"])]
    seed: u64,
    /// Attention to the first token of a text does not count.
    #[arg(long)]
    exclude_bos: bool,
    /// Attention of a token to itself does not count.
    #[arg(long)]
    exclude_current: bool,
    /// Show who attends to whom in the text.
    #[arg(long)]
    patterns: bool,
    /// Show what the QK and OV matrices compute: singular values, their directions as tokens, copying scores.
    #[arg(long)]
    circuits: bool,
    /// Show which heads read what earlier heads wrote, through their queries, keys or values: Q, K, V.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    composition: Vec<Composition>,
    /// Only these blocks, for --patterns and --circuits: 0,3.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    layers: Option<Vec<usize>>,
    /// Only these heads of every block, for --patterns and --circuits.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    heads: Option<Vec<usize>>,
    /// How many rows, directions' tokens or pairs to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// What the parts of the command found, put together.
struct Found {
    text: Vec<String>,
    data: Map<String, Value>,
    page: Page,
    report: Report,
}

impl Found {
    fn add(&mut self, name: &str, data: impl serde::Serialize, text: String) {
        self.data.insert(name.to_string(), json!(data));
        self.text.push(text);
    }

    /// Changes the page.
    fn show(&mut self, more: impl FnOnce(Page) -> Page) {
        let page = std::mem::replace(&mut self.page, Page::new(""));
        self.page = more(page);
    }
}

pub(super) fn run(args: &HeadsArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    let lm = args.model.load()?;
    args.hooks.attach(lm.hooks(), registry)?;
    let mut found = Found {
        text: Vec::new(),
        data: Map::new(),
        page: Page::new(format!("Heads of {}", args.model.model)),
        report: Report::default(),
    };
    let something_else = args.patterns || args.circuits || !args.composition.is_empty();
    if !args.detect.is_empty() || !something_else {
        habits::look(args, &lm, &mut found)?;
    }
    if args.patterns {
        patterns::look(args, &lm, &mut found)?;
    }
    if args.circuits {
        circuits::look(args, &lm, &mut found)?;
    }
    if !args.composition.is_empty() {
        circuits::compose(args, &lm, &mut found)?;
    }
    let Found { text, data, page, report } = found;
    args.show.save(|| page)?;
    match args.show.json {
        true => output::json(&with_report(data, &report)?)?,
        false => {
            output::text(&text.join("\n\n"))?;
            tell_report(&report);
        }
    }
    Ok(outcome(&report))
}

/// A head's name.
fn name(block: usize, head: usize) -> String {
    format!("L{block}H{head}")
}

/// Numbers as labels.
fn labels(count: usize) -> Vec<String> {
    (0..count).map(|i| i.to_string()).collect()
}
