//! `tenterhook attribute`: who made a logit what it is.

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_lens::analysis::{AttributeOptions, Attribution, By, ComponentKind, Contribution};

use super::error::CliError;
use super::hooks_file::{HooksFileArgs, tell_report, with_report};
use super::model::{ModelArgs, ShowArgs, outcome};
use super::progress::Working;
use super::prompt::{PromptArgs, one_token, shown};
use super::{Outcome, output};
use crate::pages::{Bars, HeatMap, Page};

/// Direct logit attribution: what every layer, head or neuron gives to a token's logit.
///
/// The residual stream at the position is a sum of what embeddings, attention and MLPs wrote. With the divisor of the final norm kept at
/// what it is, so is the logit of a token, or with --wrong the difference of two. Where a model puts a soft cap on its logits, the
/// logit before the cap is explained.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook attribute ./gpt2 --prompt 'When Mary and John went to the store, John gave a drink to' \\
                       --answer ' Mary' --wrong ' John' --by head
  tenterhook attribute ./gpt2 --tokens 464,412,733 --answer '#417' --by neuron --top 10 --json")]
pub(super) struct AttributeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The token whose logit is explained: text that is one token, or an id such as #123.
    #[arg(long, value_name = "TOKEN")]
    answer: String,
    /// Explain by how much the answer's logit is above this token's.
    #[arg(long, value_name = "TOKEN")]
    wrong: Option<String>,
    /// After which token of the text; negative from the end.
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    position: i64,
    /// How finely: layer, head or neuron.
    #[arg(long, default_value_t = By::Layer, value_name = "layer|head|neuron")]
    by: By,
    /// Show only the parts that give or take the most. By default all layers, and 20 heads or neurons in the table and all in JSON.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(args: &AttributeArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    let lm = args.model.load()?;
    let ids = args.prompt.ids(&lm)?;
    let options = AttributeOptions {
        answer: one_token(&lm, "--answer", &args.answer)?,
        wrong: args.wrong.as_deref().map(|text| one_token(&lm, "--wrong", text)).transpose()?,
        position: args.position,
        by: args.by,
    };
    args.hooks.attach(lm.hooks(), registry)?;
    let found = {
        let _working = Working::on("running the model");
        lm.attribute(&ids, &options)?
    };
    args.show.save(|| page(&found, &args.model.model, args.top))?;
    match args.show.json {
        true => {
            let mut data = with_report(&found, &found.report)?;
            if let Some(top) = args.top {
                let kept = found.top(top);
                data["others"] = others(&found, &kept).into();
                data["components"] = json!(kept);
            }
            output::json(&data)?;
        }
        false => {
            output::text(&report(&found, args.top))?;
            tell_report(&found.report);
        }
    }
    Ok(outcome(&found.report))
}

/// How many parts a table or a plot has room for.
fn room(found: &Attribution, top: Option<usize>) -> Option<usize> {
    top.or((found.by != By::Layer).then_some(20))
}

/// The parts that are shown: the largest, or all in the order of the model.
fn chosen(found: &Attribution, top: Option<usize>) -> Vec<&Contribution> {
    match room(found, top) {
        Some(top) => found.top(top),
        None => found.components.iter().collect(),
    }
}

fn others(found: &Attribution, kept: &[&Contribution]) -> f64 {
    let sum: f64 = found.components.iter().map(|part| part.value).sum();
    sum - kept.iter().map(|part| part.value).sum::<f64>()
}

/// What is explained, in words.
fn asked(found: &Attribution) -> String {
    let answer = shown(&found.answer.token);
    let what = match &found.wrong {
        Some(wrong) => format!("logit of {answer} minus logit of {}", shown(&wrong.token)),
        None => format!("logit of {answer}"),
    };
    let cap = found.soft_cap.map(|cap| format!(", before the soft cap of {cap}")).unwrap_or_default();
    format!("{what} after token {}: {:+.4}{cap}", found.position, found.logit)
}

fn report(found: &Attribution, top: Option<usize>) -> String {
    let kept = chosen(found, top);
    let line = |name: &str, value: f64| vec![name.to_string(), format!("{value:+.4}")];
    let mut rows: Vec<Vec<String>> =
        kept.iter().map(|part| line(&part.component.label, part.value)).collect();
    let left_out = found.components.len() - kept.len();
    if left_out > 0 {
        rows.push(line(&format!("{left_out} others"), others(found, &kept)));
    }
    rows.push(line("bias of the final norm", found.constant));
    // Rounding is nobody's doing; what hooks did to the stream is.
    if found.remainder.abs() > 1e-3 * found.logit.abs().max(1.0) {
        rows.push(line("not explained", found.remainder));
    }
    rows.push(line("sum", found.logit));
    let part = format!("by {}", found.by);
    format!("{}\n\n{}", asked(found), output::table(&[part.as_str(), "gives"], &rows))
}

fn page(found: &Attribution, model: &str, top: Option<usize>) -> Page {
    let kept = chosen(found, top);
    let labels = kept.iter().map(|part| part.component.label.clone()).collect();
    let values = kept.iter().map(|part| part.value).collect();
    let title = format!("What every {} gives", found.by);
    let page = Page::new(format!("Logit attribution of {model}")).text(&asked(found));
    let page = match found.by {
        By::Head => page.plot(head_map(found).plot()),
        By::Layer | By::Neuron => page,
    };
    page.plot(Bars::new(title, labels, values).axis("logits").plot())
}

/// Blocks by heads.
fn head_map(found: &Attribution) -> HeatMap {
    let mut values: Vec<Vec<f64>> = Vec::new();
    for part in found.components.iter().filter(|part| part.component.kind == ComponentKind::Head) {
        let block = part.component.block.unwrap_or(0);
        values.resize(values.len().max(block + 1), Vec::new());
        values[block].push(part.value);
    }
    let heads = values.first().map_or(0, Vec::len);
    let names = |count: usize| (0..count).map(|i| i.to_string()).collect();
    HeatMap::new("What every head gives", names(values.len()), names(heads), values)
        .axes("block", "head")
        .diverging()
}
