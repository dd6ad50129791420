//! `tenterhook lens`: what a model would say if it ended after every block.

use clap::Args;
use tenterhook_hooks::{HookRegistry, Selector};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::analysis::{LensCell, LensRow, LogitLens, LogitLensOptions};

use super::error::CliError;
use super::hooks_file::{HooksFileArgs, tell_report, with_report};
use super::model::{ModelArgs, ShowArgs, outcome};
use super::progress::Working;
use super::prompt::{PromptArgs, one_token, shown, shown_places};
use super::{Outcome, output};
use crate::pages::{HeatMap, Page};

/// The logit lens: what the model would say if it ended after every block.
///
/// At every point of the residual stream, the final norm and the unembedding turn what is there into logits. The table has the likeliest token
/// and its probability per block and token of the text; JSON and the page have the others too, and what became of the token that really
/// comes next, or of --target.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook lens ./gpt2 --prompt 'The Eiffel Tower is in the city of' --target ' Paris'
  tenterhook lens ./gpt2 --tokens 464,412,733 --points mid --html lens.html")]
pub(super) struct LensArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// How many tokens to keep per place.
    #[arg(long, default_value_t = 5, value_name = "K")]
    top: usize,
    /// Follow this token everywhere: text that is one token, or an id such as #123. By default, the one that really comes next.
    #[arg(long, value_name = "TOKEN")]
    target: Option<String>,
    /// Where to look: `mid` adds the stream between attention and MLP; else names or globs of points as wide as the stream. By default the
    /// stream before the first block and after each. May be given several times.
    #[arg(long, value_name = "mid|GLOB", allow_hyphen_values = true)]
    points: Vec<String>,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(args: &LensArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    let lm = args.model.load()?;
    let ids = args.prompt.ids(&lm)?;
    let options = LogitLensOptions {
        top: args.top.max(1),
        target: args.target.as_deref().map(|text| one_token(&lm, "--target", text)).transpose()?,
        points: points(&args.points, &lm),
    };
    args.hooks.attach(lm.hooks(), registry)?;
    let lens = {
        let _working = Working::on("running the model");
        lm.logit_lens(&ids, &options)?
    };
    args.show.save(|| page(&lens, &args.model.model))?;
    match args.show.json {
        true => output::json(&with_report(&lens, &lens.report)?)?,
        false => {
            output::text(&report(&lens, options.target.is_some()))?;
            tell_report(&lens.report);
        }
    }
    Ok(outcome(&lens.report))
}

fn points(given: &[String], lm: &LanguageModel) -> Option<Selector> {
    let choose = |text: &String| match text.as_str() {
        "mid" => lm.stream_points(true),
        name => name.into(),
    };
    (!given.is_empty()).then(|| Selector::Any(given.iter().map(choose).collect()))
}

fn report(lens: &LogitLens, with_target: bool) -> String {
    let places = shown_places(lens.tokens.len());
    let titles: Vec<String> = lens.tokens[places.clone()].iter().map(|token| shown(&token.token)).collect();
    let head: Vec<&str> = std::iter::once("point").chain(titles.iter().map(String::as_str)).collect();
    let row = |row: &LensRow| {
        let cells = row.cells[places.clone()].iter().map(best);
        std::iter::once(row.label.clone()).chain(cells).collect()
    };
    let mut text = output::table(&head, &lens.rows.iter().map(row).collect::<Vec<_>>());
    if places.start > 0 {
        let (shown, all) = (places.len(), lens.tokens.len());
        text += &format!("\n(the last {shown} of {all} tokens; --json and --html have all)");
    }
    let followed = lens.rows.first().and_then(|row| row.cells.last()).and_then(|cell| cell.target.as_ref());
    if let (true, Some(target)) = (with_target, followed) {
        text += &format!("\n\n{} after the last token:\n", shown(&target.token));
        let row = |row: &LensRow| {
            let target = row.cells.last().and_then(|cell| cell.target.as_ref())?;
            let probability = format!("{:.4}", target.log_prob.exp());
            Some(vec![
                row.label.clone(),
                target.rank.to_string(),
                probability,
                format!("{:.3}", target.logit),
            ])
        };
        let rows: Vec<_> = lens.rows.iter().filter_map(row).collect();
        text += &output::table(&["point", "rank", "probability", "logit"], &rows);
    }
    text
}

fn best(cell: &LensCell) -> String {
    let guess = cell.top.first();
    guess.map(|guess| format!("{} {:.2}", shown(&guess.token), guess.probability)).unwrap_or_default()
}

fn page(lens: &LogitLens, model: &str) -> Page {
    let cells = |of: &dyn Fn(&LensCell) -> String| -> Vec<Vec<String>> {
        lens.rows.iter().map(|row| row.cells.iter().map(of).collect()).collect()
    };
    let map = |title: &str, value: &dyn Fn(&LensCell) -> f64| {
        let rows = lens.rows.iter().map(|row| row.label.clone()).collect();
        let columns = lens.tokens.iter().map(|token| shown(&token.token)).collect();
        let values = lens.rows.iter().map(|row| row.cells.iter().map(value).collect()).collect();
        HeatMap::new(title, rows, columns, values).axes("point", "token of the text")
    };
    let list = |cell: &LensCell| {
        let line = |guess: &tenterhook_lens::analysis::Guess| {
            format!("{} {:.4} ({:.2})", shown(&guess.token), guess.probability, guess.logit)
        };
        cell.top.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    let probability = |cell: &LensCell| cell.top.first().map_or(f64::NAN, |guess| guess.probability.into());
    let likeliest = map("The likeliest token, by its probability", &probability)
        .cells(cells(&|cell| cell.top.first().map(|guess| shown(&guess.token)).unwrap_or_default()))
        .hover(cells(&list))
        .range(0.0, 1.0);
    let followed = map("The token that is followed, by its log probability", &|cell| {
        cell.target.as_ref().map_or(f64::NAN, |target| target.log_prob.into())
    })
    .cells(cells(&|cell| cell.target.as_ref().map(|target| target.rank.to_string()).unwrap_or_default()))
    .hover(cells(&|cell| {
        let told = |target: &tenterhook_lens::analysis::Target| {
            format!("{}\nrank {}\nlog probability {:.4}", shown(&target.token), target.rank, target.log_prob)
        };
        cell.target.as_ref().map(told).unwrap_or_default()
    }));
    Page::new(format!("Logit lens of {model}"))
        .text("What the model would say if it ended here: the likeliest next token at every point of the residual stream.")
        .plot(likeliest.plot())
        .text("The rank of the token that really comes next, or that was asked for; 0 is the likeliest.")
        .plot(followed.plot())
}
