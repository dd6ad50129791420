//! The arguments of `tenterhook patch`.

use clap::{Args, ValueEnum};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::patching::{By, Contrast, Direction, LogitMetric, Receiver, Sender};

use crate::cli::error::CliError;
use crate::cli::hooks_file::HooksFileArgs;
use crate::cli::model::{ModelArgs, ShowArgs};
use crate::cli::prompt::{BosArgs, one_token, shown, text_ids};

/// Patch activations of one prompt into another and measure what becomes of the answer.
///
/// Both prompts must have the same number of tokens. Every place of a sweep is patched in turn: blocks before it are not run again, and the
/// numbers are those of a whole run each, bit for bit. --method attribution estimates them from one gradient. With --receiver, single
/// paths are patched: from the senders, or from every head in turn.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook patch ./gpt2 --clean 'When Mary and John went out, John gave a drink to' \\
      --corrupt 'When Mary and John went out, Mary gave a drink to' --answer ' Mary' --wrong ' John' --sweep all --html patch.html
  tenterhook patch ./gpt2 --clean-tokens 1,2,3 --corrupt-tokens 1,5,3 --answer '#7' --sweep z --by head --method both
  tenterhook patch ./gpt2 --clean ... --corrupt ... --answer ' Mary' --wrong ' John' --receiver 9.6.q --receiver 9.9.q")]
pub(in crate::cli) struct PatchArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The prompt with the right answer.
    #[arg(long, value_name = "TEXT", required_unless_present = "clean_tokens")]
    clean: Option<String>,
    /// The same as token ids.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "clean")]
    clean_tokens: Option<Vec<u32>>,
    /// The prompt with one thing changed, of the same number of tokens.
    #[arg(long, value_name = "TEXT", required_unless_present = "corrupt_tokens")]
    corrupt: Option<String>,
    /// The same as token ids.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "corrupt")]
    corrupt_tokens: Option<Vec<u32>>,
    #[command(flatten)]
    bos: BosArgs,
    /// The right answer to the clean prompt: text that is one token, or an id such as #123.
    #[arg(long, value_name = "TOKEN")]
    answer: String,
    /// A wrong answer to compare it with.
    #[arg(long, value_name = "TOKEN")]
    wrong: Option<String>,
    /// What is measured; by default logit_diff where there is a wrong answer, else logprob.
    #[arg(long, value_enum)]
    metric: Option<MetricArg>,
    /// Where it is measured, negative from the end.
    #[arg(long, value_name = "N", default_value_t = -1, allow_hyphen_values = true)]
    position: i64,
    /// What is patched: resid_pre, resid_mid, resid_post, attn_out, mlp_out, z, q, k, v, pattern, the name or glob of points, or `all` of
    /// the usual ones. May be given several times.
    #[arg(long, value_name = "NAME", default_value = "resid_pre")]
    pub(super) sweep: Vec<String>,
    /// How much is patched at a time; by default one head where there are heads, else one position.
    #[arg(long, value_enum)]
    by: Option<ByArg>,
    /// With --by head: only at this position, negative from the end.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    at: Option<i64>,
    /// A run per place, an estimate from one gradient, or both.
    #[arg(long, value_enum, default_value = "exact")]
    pub(super) method: MethodArg,
    /// Clean activations into the corrupted run, or the other way round.
    #[arg(long, value_enum, default_value = "denoise")]
    direction: DirectionArg,
    /// Patch the paths from here: a head such as 9.6, 9.attn, 9.mlp or embed. May be given several times.
    #[arg(long, value_name = "L.H", requires = "receiver")]
    pub(super) sender: Vec<Sender>,
    /// Patch the paths that end here: 9.6.q, 9.6.k, 9.6.v, 9.mlp or final. May be given several times. Without --sender, from every head
    /// in turn.
    #[arg(long, value_name = "L.H.q", conflicts_with_all = ["sweep", "by", "method"])]
    pub(super) receiver: Vec<Receiver>,
    /// Cut the paths through MLPs too.
    #[arg(long, requires = "receiver")]
    pub(super) freeze_mlps: bool,
    /// At most so many patched prompts go through the model together, where that changes no bit.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) batch_size: usize,
    #[command(flatten)]
    pub(super) hooks: HooksFileArgs,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MetricArg {
    /// The logit of the answer less that of the wrong one.
    #[value(name = "logit_diff")]
    LogitDiff,
    /// The probability of the answer.
    Prob,
    /// The logarithm of the probability of the answer.
    Logprob,
}

/// How much is patched at a time.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ByArg {
    /// One position of a block.
    LayerPosition,
    /// One head of a block.
    Head,
    /// One head at one position.
    HeadPosition,
    /// All positions and heads of a block.
    Layer,
}

/// How the numbers are made.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MethodArg {
    /// A run per place.
    Exact,
    /// One gradient for all.
    Attribution,
    /// Both, and how far they agree.
    Both,
}

/// Which run is patched.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DirectionArg {
    /// Clean activations into the corrupted run.
    Denoise,
    /// Corrupted activations into the clean run.
    Noise,
}

impl PatchArgs {
    /// The prompts and the metric, as far as they can be checked without running the model.
    pub(super) fn contrast(&self, lm: &LanguageModel) -> Result<Contrast, CliError> {
        let ids = |option: &str, text: &Option<String>, ids: &Option<Vec<u32>>| match (text, ids) {
            (Some(text), _) => text_ids(lm, option, text, self.bos.choice()),
            (None, ids) => {
                let ids = ids.clone().unwrap_or_default();
                let checked = lm.check_tokens(&ids).map(|()| ids);
                checked.map_err(|error| CliError::bad_input(format!("{option}-tokens: {error}")))
            }
        };
        let clean = ids("--clean", &self.clean, &self.clean_tokens)?;
        let corrupted = ids("--corrupt", &self.corrupt, &self.corrupt_tokens)?;
        if clean.len() != corrupted.len() {
            let listed =
                |ids: &[u32]| ids.iter().map(|id| shown(&lm.token_label(*id))).collect::<Vec<_>>().join(" ");
            return Err(CliError::bad_input(format!(
                "--clean has {} tokens and --corrupt {}: activations can only be patched between prompts of the same length\n  clean:     \
                 {}\n  corrupted: {}",
                clean.len(),
                corrupted.len(),
                listed(&clean),
                listed(&corrupted)
            )));
        }
        let direction = match self.direction {
            DirectionArg::Denoise => Direction::Denoise,
            DirectionArg::Noise => Direction::Noise,
        };
        Ok(Contrast::new(clean, corrupted, self.logit_metric(lm)?).direction(direction))
    }

    fn logit_metric(&self, lm: &LanguageModel) -> Result<LogitMetric, CliError> {
        let answer = one_token(lm, "--answer", &self.answer)?;
        let wrong = self.wrong.as_deref().map(|wrong| one_token(lm, "--wrong", wrong)).transpose()?;
        let metric = match (self.metric, wrong) {
            (None | Some(MetricArg::LogitDiff), Some(wrong)) => LogitMetric::logit_diff(answer, wrong),
            (Some(MetricArg::LogitDiff), None) => {
                return Err(CliError::bad_input(
                    "--metric logit_diff compares with a wrong answer: give --wrong TOKEN",
                ));
            }
            (Some(MetricArg::Prob), _) => LogitMetric::prob(answer),
            (Some(MetricArg::Logprob) | None, _) => LogitMetric::log_prob(answer),
        };
        Ok(metric.at(self.position))
    }

    /// What is measured, in words.
    pub(super) fn metric_name(&self) -> String {
        let answer = shown(&self.answer);
        match (self.metric, &self.wrong) {
            (None | Some(MetricArg::LogitDiff), Some(wrong)) => {
                format!("logit of {answer} - {}", shown(wrong))
            }
            (Some(MetricArg::Prob), _) => format!("probability of {answer}"),
            _ => format!("log probability of {answer}"),
        }
    }

    pub(super) fn by(&self) -> Result<Option<By>, CliError> {
        match (self.by, self.at) {
            (Some(ByArg::Head), position) => Ok(Some(By::Head { position })),
            (_, Some(_)) => Err(CliError::bad_input("--at is for single heads: give --by head as well")),
            (None, _) => Ok(None),
            (Some(ByArg::LayerPosition), _) => Ok(Some(By::Position)),
            (Some(ByArg::HeadPosition), _) => Ok(Some(By::HeadPosition)),
            (Some(ByArg::Layer), _) => Ok(Some(By::Layer)),
        }
    }
}
