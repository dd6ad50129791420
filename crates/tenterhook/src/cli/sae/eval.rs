//! `tenterhook sae eval`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::HookRegistry;
use tenterhook_sae::{EvalOptions, Evaluated, Sae, evaluate};

use super::super::error::CliError;
use super::super::hooks_file::{HooksFileArgs, report_json, report_text};
use super::super::model::{ModelArgs, ShowArgs, outcome};
use super::super::progress::Counting;
use super::super::{Outcome, output};
use super::texts::TextArgs;
use crate::pages::{Bars, Page};

/// Measure an autoencoder: what it keeps of the activations, and what the model loses when it sees reconstructions in their place.
#[derive(Args)]
#[command(
    after_help = "Example: tenterhook sae eval ./gpt2 runs/sae/saes/blocks.8.hook_resid_pre --file held_out.txt"
)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The autoencoder: a SAELens directory.
    #[arg(value_name = "SAE_DIR")]
    sae: PathBuf,
    /// A file with a text per line.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// The point, in place of the one that the autoencoder's cfg.json names.
    #[arg(long, value_name = "POINT")]
    point: Option<String>,
    #[command(flatten)]
    texts: TextArgs,
    /// Leave out the model's loss, which takes three forwards more.
    #[arg(long)]
    no_cross_entropy: bool,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(args: &EvalArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    let sae = Sae::load(&args.sae)?;
    let lm = args.model.load()?;
    args.hooks.attach(lm.hooks(), registry)?;
    let sequences = args.texts.sequences(&lm, &args.file)?;
    let options = EvalOptions {
        point: args.point.clone(),
        batch_size: args.texts.model_batch,
        skip: args.texts.skip_first,
        cross_entropy: !args.no_cross_entropy,
    };
    let bar = Counting::of("sequences");
    let (found, report) = evaluate(&lm, &sae, &sequences, &options, |done| bar.show(done, sequences.len()))?;
    drop(bar);
    args.show.save(|| page(&found))?;
    if args.show.json {
        let mut json = report_json(&report);
        json.insert("sae".to_string(), json!(args.sae));
        json.insert("evaluation".to_string(), json!(found));
        output::json(&json)?;
    } else {
        output::text(&output::table(&["metric", "value"], &rows(&found)))?;
        if !report.hooks.is_empty() {
            output::note(&report_text(&report));
        }
    }
    Ok(outcome(&report))
}

fn rows(found: &Evaluated) -> Vec<Vec<String>> {
    let mut rows = vec![
        vec!["point".to_string(), found.point.clone()],
        vec!["tokens".to_string(), found.tokens.to_string()],
    ];
    let mut add = |name: &str, value: f64| rows.push(vec![name.to_string(), format!("{value:.4}")]);
    add("l0", found.l0);
    add("explained_variance", found.explained_variance);
    add("mse", found.mse);
    add("cossim", found.cossim);
    add("l2_ratio", found.l2_ratio);
    add("dead_share", found.dead_share);
    if let Some(loss) = &found.cross_entropy {
        add("ce_loss_without_sae", loss.ce_loss_without_sae);
        add("ce_loss_with_sae", loss.ce_loss_with_sae);
        add("ce_loss_with_ablation", loss.ce_loss_with_ablation);
        add("ce_loss_score", loss.ce_loss_score);
    }
    rows
}

fn page(found: &Evaluated) -> Page {
    let mut page = Page::new(format!("Autoencoder at {}", found.point));
    for row in rows(found) {
        page = page.text(&format!("{}: {}", row[0], row[1]));
    }
    if let Some(loss) = &found.cross_entropy {
        let labels = ["model", "with reconstructions", "with zeros"].map(str::to_string).to_vec();
        let values = vec![loss.ce_loss_without_sae, loss.ce_loss_with_sae, loss.ce_loss_with_ablation];
        page = page.plot(Bars::new("Cross entropy", labels, values).axis("nats").plot());
    }
    let labels = ["explained variance", "cosine", "length", "dead latents"].map(str::to_string).to_vec();
    let values = vec![found.explained_variance, found.cossim, found.l2_ratio, found.dead_share];
    page.plot(Bars::new("Shares", labels, values).plot())
}
