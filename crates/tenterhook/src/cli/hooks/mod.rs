//! `tenterhook hooks`: the kinds of hooks there are, and their options.

mod page;
mod words;

use clap::Args;
use serde_json::json;
use tenterhook_hooks::{HookRegistry, KindInfo, OptionInfo};

use super::error::CliError;
use super::{Outcome, output};
use words::{default_in_words, example, type_in_words, what_for};

/// List the kinds of hooks, or the options of one.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tenterhook hooks early_stopping\n  tenterhook hooks --markdown > hooks.md"
)]
pub(super) struct HooksArgs {
    /// A kind, as in `kind = "..."` of [[hooks]].
    kind: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print a page in Markdown: every kind with every option, or one kind.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

pub(super) fn run(args: &HooksArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let kinds: Vec<&KindInfo> =
        match &args.kind {
            Some(kind) => vec![registry.kind(kind).map_err(|error| {
                CliError::bad_input(format!("{error}; `tenterhook hooks` lists all kinds"))
            })?],
            None => registry.kinds().collect(),
        };
    let common = HookRegistry::common_options();
    if args.json {
        match (&args.kind, kinds.first()) {
            (Some(_), Some(kind)) => {
                let mut told = json!(kind);
                told["common_options"] = json!(common);
                told["example"] = json!(example(kind));
                output::json(&told)?;
            }
            _ => output::json(&kinds)?,
        }
        return Ok(Outcome::Done);
    }
    output::text(&match (&args.kind, kinds.first()) {
        (Some(_), Some(kind)) if args.markdown => page::of_kind(kind),
        _ if args.markdown => page::of_all(&kinds, &common),
        (Some(_), Some(kind)) => describe(kind, &common),
        _ => list(&kinds),
    })?;
    Ok(Outcome::Done)
}

fn list(kinds: &[&KindInfo]) -> String {
    let row = |kind: &&KindInfo| {
        let own = if kind.builtin { "" } else { " (not built in)" };
        vec![kind.name.clone(), format!("{}{own}", kind.doc)]
    };
    let table = output::table(&["kind", "what it does"], &kinds.iter().map(row).collect::<Vec<_>>());
    format!("{table}\n\n`tenterhook hooks KIND` shows the options of one.")
}

fn describe(kind: &KindInfo, common: &[OptionInfo]) -> String {
    let options = match kind.options.is_empty() {
        true => "It has no options of its own.".to_string(),
        false => table(&kind.options),
    };
    format!(
        "{}: {}\n\n{options}\n\nOptions of every hook:\n\n{}\n\nExample:\n\n{}",
        kind.name,
        kind.doc,
        table(common),
        example(kind)
    )
}

fn table(options: &[OptionInfo]) -> String {
    let row = |option: &OptionInfo| {
        vec![option.name.clone(), type_in_words(&option.schema), default_in_words(option), what_for(option)]
    };
    output::table(
        &["option", "type", "default", "what it is for"],
        &options.iter().map(row).collect::<Vec<_>>(),
    )
}
