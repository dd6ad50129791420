//! `tenterhook steer`: a direction from two lists of prompts, and what adding it does.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use plotly::common::{Mode, Title};
use plotly::layout::Axis;
use plotly::{Layout, Plot, Scatter};
use serde_json::{Value, json};
use tenterhook_hooks::{HookRegistry, Report};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::patching::LogitMetric;
use tenterhook_lens::steering::{
    Pool, SteeringOptions, SteeringRow, SteeringSweep, SteeringSweepOptions, SteeringVector,
};
use tenterhook_models::files::check_writable;

use super::error::CliError;
use super::hooks_file::{HooksFileArgs, report_json, report_text};
use super::model::{ModelArgs, ShowArgs, outcome};
use super::progress::Counting;
use super::prompt::{PromptArgs, one_token, shown, text_ids, written_ids};
use super::{Outcome, output};
use crate::pages::Page;

/// Make a steering vector of two lists of prompts, and see what adding it does to another prompt.
///
/// The vector is the mean activation over the positive prompts less that over the negative ones. The file that --out names is what the hook
/// kind `steer` reads. With --prompt, the vector is added at each strength, and the table has how the prompt goes on, the metric of
/// --answer, and how far the next token's distribution is from the one without steering (KL, in nats).
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook steer ./gpt2 --positive love.txt --negative hate.txt --points blocks.6.hook_resid_pre --out love.safetensors \\
      --prompt 'I think you are' --strengths -4,0,4,8 --max-new-tokens 12
  tenterhook steer ./gpt2 --vector love.safetensors --prompt 'I think you are' --answer ' great' --wrong ' awful' --html steer.html")]
pub(super) struct SteerArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A file with a prompt per line that the vector leads to.
    #[arg(long, value_name = "FILE", required_unless_present = "vector", requires = "negative")]
    positive: Option<PathBuf>,
    /// A file with a prompt per line that it leads away from.
    #[arg(long, value_name = "FILE", requires = "positive")]
    negative: Option<PathBuf>,
    /// The lines of these files are token ids, such as 464,2068,7586.
    #[arg(long, requires = "positive")]
    token_lines: bool,
    /// The point where activations are taken and the vector is added: a name, a layer's path or a block's index.
    #[arg(long, value_name = "POINT", required_unless_present = "vector", allow_hyphen_values = true)]
    points: Option<String>,
    /// What is taken of every prompt.
    #[arg(long, value_enum, default_value = "last")]
    pool: PoolArg,
    /// Make the vector one of length 1.
    #[arg(long)]
    normalise: bool,
    /// Use the vector of this file in place of making one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["positive", "points", "pool", "normalise", "out"])]
    vector: Option<PathBuf>,
    /// Write the vector to this safetensors file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    prompt: PromptArgs,
    /// How many times the vector is added, each in a run of its own.
    #[arg(
        long,
        value_name = "S,S,...",
        value_delimiter = ',',
        default_value = "-4,0,4",
        allow_hyphen_values = true
    )]
    strengths: Vec<f64>,
    /// Measure the log probability of this token after the prompt: text that is one token, or an id such as #123.
    #[arg(long, value_name = "TOKEN")]
    answer: Option<String>,
    /// Measure by how much the answer's logit is above that of this token instead.
    #[arg(long, value_name = "TOKEN", requires = "answer")]
    wrong: Option<String>,
    /// How many tokens are added at most.
    #[arg(long, default_value_t = 16, value_name = "N")]
    max_new_tokens: usize,
    #[command(flatten)]
    hooks: HooksFileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// What is taken of every prompt.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PoolArg {
    /// The activation at its last token.
    Last,
    /// The mean over its tokens.
    Mean,
}

pub(super) fn run(args: &SteerArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    args.out.iter().try_for_each(|path| check_writable(path))?;
    let inputs = [&args.positive, &args.negative, &args.hooks.hooks].into_iter().flatten();
    let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
    args.out.iter().try_for_each(|out| args.model.refuse_overwriting("--out", out, inputs.clone()))?;
    let lm = args.model.load()?;
    let prompt = args.prompt.optional_ids(&lm)?;
    if prompt.is_none() && args.out.is_none() {
        return Err(CliError::bad_input(
            "nothing would come of it: give --out FILE for the vector, --prompt TEXT to try it, or both",
        ));
    }
    let options = SteeringSweepOptions {
        strengths: args.strengths.clone(),
        metric: metric(args, &lm)?,
        max_new_tokens: args.max_new_tokens,
        ..SteeringSweepOptions::default()
    };
    args.hooks.attach(lm.hooks(), registry)?;
    let (vector, mut report) = vector(args, &lm)?;
    let sweep = match &prompt {
        Some(prompt) => {
            let bar = Counting::of("steering");
            let (sweep, done) =
                lm.steering_sweep(&vector, prompt, &options, |done, of| bar.show(done, of))?;
            report.add(done);
            Some(sweep)
        }
        None => None,
    };
    if let Some(out) = &args.out {
        vector.save(out).map_err(|error| CliError::failed(error.to_string()))?;
    }
    args.show.save(|| page(args, &lm, &vector, sweep.as_ref()))?;
    match args.show.json {
        true => output::json(&as_json(args, &vector, sweep.as_ref(), &report)?)?,
        false => output::text(&text(args, &lm, &vector, sweep.as_ref(), &report)?)?,
    }
    Ok(outcome(&report))
}

fn metric(args: &SteerArgs, lm: &LanguageModel) -> Result<Option<LogitMetric>, CliError> {
    let Some(answer) = &args.answer else { return Ok(None) };
    let answer = one_token(lm, "--answer", answer)?;
    Ok(Some(match &args.wrong {
        Some(wrong) => LogitMetric::logit_diff(answer, one_token(lm, "--wrong", wrong)?),
        None => LogitMetric::log_prob(answer),
    }))
}

fn vector(args: &SteerArgs, lm: &LanguageModel) -> Result<(SteeringVector, Report), CliError> {
    if let Some(path) = &args.vector {
        return Ok((SteeringVector::load(path, &lm.device())?, Report::default()));
    }
    let prompts = |option: &str, path: &Option<PathBuf>| match path {
        Some(path) => prompts(args, lm, path),
        None => Err(CliError::bad_input(format!("{option} FILE is missing"))),
    };
    let (positive, negative) =
        (prompts("--positive", &args.positive)?, prompts("--negative", &args.negative)?);
    let options = SteeringOptions {
        pool: if args.pool == PoolArg::Mean { Pool::Mean } else { Pool::Last },
        normalise: args.normalise,
        ..SteeringOptions::at(args.points.as_deref().unwrap_or_default())
    };
    Ok(lm.steering_vector(&positive, &negative, &options)?)
}

const LARGEST_FILE: u64 = 64 << 20;

/// The prompts of a file, one per line; empty lines are left out.
fn prompts(args: &SteerArgs, lm: &LanguageModel, path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
    let bad = |problem: String| CliError::bad_input(format!("{}: {problem}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(LARGEST_FILE + 1).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(bad(format!("more than {} MiB are too much for a list of prompts", LARGEST_FILE >> 20)));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let ids = |(number, line): (usize, &str)| {
        let place = format!("{}:{}", path.display(), number + 1);
        match args.token_lines {
            false => text_ids(lm, &place, line, args.prompt.bos.choice()),
            true => {
                let ids = written_ids(&place, line)?;
                let checked = lm.check_tokens(&ids);
                checked.map_err(|error| CliError::bad_input(format!("{place}: {error}")))?;
                Ok(ids)
            }
        }
    };
    let prompts = lines.map(ids).collect::<Result<Vec<_>, _>>()?;
    if prompts.is_empty() { Err(bad("there is no prompt in it".to_string())) } else { Ok(prompts) }
}

fn as_json(
    args: &SteerArgs,
    vector: &SteeringVector,
    sweep: Option<&SteeringSweep>,
    report: &Report,
) -> Result<Value, CliError> {
    let mut all = report_json(report);
    let about = json!({
        "point": vector.point,
        "shape": vector.vector.dims(),
        "norm": vector.norm()?,
        "positive": vector.positive,
        "negative": vector.negative,
        "pool": vector.pool,
        "normalised": vector.normalised,
        "out": args.out,
    });
    all.insert("vector".to_string(), about);
    all.insert("sweep".to_string(), json!(sweep));
    Ok(Value::Object(all))
}

fn about(vector: &SteeringVector) -> Result<String, CliError> {
    let of = match vector.pool {
        Pool::Last => "last tokens",
        Pool::Mean => "means over tokens",
    };
    let (point, norm) = (&vector.point, vector.norm()?);
    Ok(format!(
        "{point}: {of} of {} prompts less those of {}, length {norm:.4}",
        vector.positive, vector.negative
    ))
}

/// How a prompt goes on.
fn continued(lm: &LanguageModel, row: &SteeringRow) -> String {
    match &row.text {
        Some(text) => format!("{text:?}"),
        None => row.new_tokens.iter().map(|id| shown(&lm.token_label(*id))).collect::<Vec<_>>().join(" "),
    }
}

fn metric_name(args: &SteerArgs) -> String {
    let name = |token: &Option<String>| shown(token.as_deref().unwrap_or_default());
    match &args.wrong {
        Some(_) => format!("logit of {} - {}", name(&args.answer), name(&args.wrong)),
        None => format!("log probability of {}", name(&args.answer)),
    }
}

fn text(
    args: &SteerArgs,
    lm: &LanguageModel,
    vector: &SteeringVector,
    sweep: Option<&SteeringSweep>,
    report: &Report,
) -> Result<String, CliError> {
    let mut parts = vec![about(vector)?];
    if let Some(sweep) = sweep {
        let measured = metric_name(args);
        let mut head = vec!["strength", "KL", "next"];
        if sweep.metric.is_some() {
            head.push(&measured);
        }
        head.push("goes on with");
        let row = |row: &SteeringRow| {
            let next = shown(&lm.token_label(row.top_token));
            let mut cells = vec![row.strength.to_string(), format!("{:.4}", row.kl), next];
            cells.extend(row.metric.map(|metric| format!("{metric:.4}")));
            cells.push(continued(lm, row));
            cells
        };
        parts.push(output::table(&head, &sweep.rows.iter().map(row).collect::<Vec<_>>()));
    }
    if !report.hooks.is_empty() {
        parts.push(report_text(report));
    }
    parts.extend(args.out.iter().map(|out| format!("the vector is in {}", out.display())));
    Ok(parts.join("\n\n"))
}

fn page(
    args: &SteerArgs,
    lm: &LanguageModel,
    vector: &SteeringVector,
    sweep: Option<&SteeringSweep>,
) -> Page {
    let mut page =
        Page::new(format!("Steering {}", args.model.model)).text(&about(vector).unwrap_or_default());
    let Some(sweep) = sweep else { return page };
    let line = |name: &str, value: &dyn Fn(&SteeringRow) -> f64| {
        let strengths = sweep.rows.iter().map(|row| row.strength).collect();
        let mut plot = Plot::new();
        plot.add_trace(
            Scatter::new(strengths, sweep.rows.iter().map(value).collect()).mode(Mode::LinesMarkers),
        );
        let axis = |name: &str| Axis::new().title(Title::with_text(name));
        plot.set_layout(Layout::new().x_axis(axis("strength")).y_axis(axis(name)));
        plot
    };
    page = page
        .text("How far the next token is from the one without steering")
        .plot(line("KL, nats", &|row| row.kl));
    if sweep.metric.is_some() {
        let measured = line("metric", &|row| row.metric.map_or(f64::NAN, f64::from));
        page = page.text(&metric_name(args)).plot(measured);
    }
    for row in &sweep.rows {
        page = page.text(&format!("{}: {}", row.strength, continued(lm, row)));
    }
    page
}
