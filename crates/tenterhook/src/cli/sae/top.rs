//! `tenterhook sae top`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tenterhook_lens::LanguageModel;
use tenterhook_sae::{ConceptNames, LatentTop, Sae, TopOptions, TopText, top_texts};

use super::super::error::CliError;
use super::super::model::{ModelArgs, ShowArgs};
use super::super::progress::Counting;
use super::super::{Outcome, output};
use super::texts::TextArgs;
use crate::pages::{Bars, Page};

/// Show the texts that activate latents most, with the activation at every token.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook sae top ./gpt2 runs/sae/saes/blocks.8.hook_resid_pre --file texts.txt --latents 12,1234
  tenterhook sae top ./gpt2 runs/sae/saes/blocks.8.hook_resid_pre --file texts.txt --names names.csv --latents 'days of the week' --html top.html")]
pub(super) struct TopArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The autoencoder: a SAELens directory.
    #[arg(value_name = "SAE_DIR")]
    sae: PathBuf,
    /// A file with a text per line.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Latents by number or, with --names, by name, separated by commas; by default those with the strongest activations.
    #[arg(long, value_name = "LATENTS", value_delimiter = ',')]
    latents: Option<Vec<String>>,
    /// How many latents are shown when none are named.
    #[arg(long, default_value_t = 10, value_name = "N")]
    limit: usize,
    /// A CSV file (`latent,name`) or a JSON file with names of latents.
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
    /// How many texts of each latent.
    #[arg(long, default_value_t = 5, value_name = "N")]
    top: usize,
    /// So many tokens before and after the strongest one are shown.
    #[arg(long, default_value_t = 10, value_name = "N")]
    window: usize,
    /// The point, in place of the one that the autoencoder's cfg.json names.
    #[arg(long, value_name = "POINT")]
    point: Option<String>,
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(args: &TopArgs) -> Result<Outcome, CliError> {
    args.show.check()?;
    let sae = Sae::load(&args.sae)?;
    let names = args.names.as_deref().map(ConceptNames::load).transpose()?.unwrap_or_default();
    let resolve = |text: &String| names.resolve(text, sae.config().d_sae);
    let latents = args
        .latents
        .as_ref()
        .map(|list| list.iter().map(resolve).collect::<Result<Vec<_>, _>>())
        .transpose()?;
    let lm = args.model.load()?;
    let sequences = args.texts.sequences(&lm, &args.file)?;
    let options = TopOptions {
        point: args.point.clone(),
        latents: latents.clone(),
        texts: args.top,
        window: args.window,
        batch_size: args.texts.model_batch,
        skip: args.texts.skip_first,
    };
    let bar = Counting::of("sequences");
    let mut found = top_texts(&lm, &sae, &sequences, &options, |done| bar.show(done, sequences.len()))?;
    drop(bar);
    if latents.is_none() {
        found.sort_by(|a, b| strongest(b).total_cmp(&strongest(a)));
        found.retain(|top| !top.texts.is_empty());
        found.truncate(args.limit);
    }
    args.show.save(|| page(&lm, &names, &found))?;
    match args.show.json {
        true => output::json(&json!({ "sae": args.sae, "latents": as_json(&lm, &names, &found) }))?,
        false => output::text(&as_text(&lm, &names, &found))?,
    }
    Ok(Outcome::Done)
}

fn strongest(top: &LatentTop) -> f64 {
    top.texts.first().map_or(0.0, |text| text.activation)
}

fn title(names: &ConceptNames, top: &LatentTop) -> String {
    let name = names.get(top.latent).map(|name| format!(" ({name})")).unwrap_or_default();
    format!("latent {}{name}: active on {} of {} tokens", top.latent, top.fired, top.tokens)
}

/// The text of the tokens, with the strongest one between marks.
fn marked(lm: &LanguageModel, text: &TopText) -> String {
    let tokens = text.tokens.iter().enumerate().map(|(i, id)| {
        let label = output::printable(&lm.token_label(*id).replace('\n', "\u{21b5}"));
        if text.start + i == text.position { format!("[[{label}]]") } else { label }
    });
    tokens.collect()
}

fn as_text(lm: &LanguageModel, names: &ConceptNames, found: &[LatentTop]) -> String {
    if found.is_empty() {
        return "no latent was active".to_string();
    }
    let of_latent = |top: &LatentTop| {
        let lines = top.texts.iter().map(|text| format!("  {:8.3}  {}\n", text.activation, marked(lm, text)));
        format!("{}\n{}", output::printable(&title(names, top)), lines.collect::<String>())
    };
    found.iter().map(of_latent).collect::<Vec<_>>().join("\n")
}

fn as_json(lm: &LanguageModel, names: &ConceptNames, found: &[LatentTop]) -> Vec<Value> {
    let of_latent = |top: &LatentTop| {
        let mut json = json!(top);
        json["name"] = json!(names.get(top.latent));
        for (text, json) in top.texts.iter().zip(json["texts"].as_array_mut().into_iter().flatten()) {
            json["str_tokens"] = text.tokens.iter().map(|id| lm.token_label(*id)).collect();
        }
        json
    };
    found.iter().map(of_latent).collect()
}

fn page(lm: &LanguageModel, names: &ConceptNames, found: &[LatentTop]) -> Page {
    let mut page = Page::new("What latents are active on");
    for top in found {
        page = page.text(&title(names, top));
        for text in &top.texts {
            page = page.text(&format!("{:.3}  {}", text.activation, marked(lm, text)));
        }
        if let Some(text) = top.texts.first() {
            let labels = text.tokens.iter().map(|id| lm.token_label(*id)).collect();
            let name = format!("latent {}, its strongest text", top.latent);
            page = page.plot(Bars::new(name, labels, text.activations.clone()).axis("activation").plot());
        }
    }
    page
}
