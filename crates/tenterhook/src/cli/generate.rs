//! `tenterhook generate`: text from a model, with hooks at every token.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::HookRegistry;
use tenterhook_lens::{GenerateOptions, Generation, LanguageModel, Sampling};
use tenterhook_models::files::{check_writable, save_tensors};

use super::error::CliError;
use super::hooks_file::{HooksFileArgs, report_json, report_text, write_captures};
use super::model::{ModelArgs, outcome};
use super::prompt::{BosArgs, one_token, text_ids, written_ids};
use super::{Outcome, output};

/// Generate text, with the hooks of a file at every token.
///
/// The text goes to standard output as it is made; what the hooks did follows on standard error.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook generate ./gpt2 --prompt 'The tower is in' --max-new-tokens 20
  tenterhook generate ./gpt2 --prompt 'I feel' --hooks steer.toml --temperature 0.8 --top-p 0.95 --seed 7")]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to go on with. May be given several times: all go through the model together.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// The same as token ids, such as 464,2068,7586. May be given several times.
    #[arg(long, value_name = "IDS", conflicts_with = "prompt")]
    tokens: Vec<String>,
    #[command(flatten)]
    bos: BosArgs,
    /// How many tokens are added at most.
    #[arg(long, default_value_t = 32, value_name = "N")]
    max_new_tokens: usize,
    /// 0 takes the likeliest token; larger values make others likelier.
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    temperature: f64,
    /// Choose among the likeliest K only.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest that together have this probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Everything random depends on it.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// A token that ends a text, as text or as an id such as #50256. May be given several times; by default those of the model.
    #[arg(long, value_name = "TOKEN")]
    stop: Vec<String>,
    /// Compute the whole text again for every token, in place of keeping keys and values.
    #[arg(long)]
    no_cache: bool,
    #[command(flatten)]
    hooks: HooksFileArgs,
    /// Write what `capture` hooks kept into a file per hook in this directory.
    #[arg(long, value_name = "DIR")]
    captures: Option<PathBuf>,
    /// Write the logits that the new tokens were chosen from, `logits.0` for the first prompt, to this safetensors file.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &GenerateArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.logits.iter().try_for_each(|path| check_writable(path))?;
    if let Some(file) = args.captures.as_ref().filter(|dir| dir.exists() && !dir.is_dir()) {
        return Err(CliError::bad_input(format!(
            "--captures {}: it is a file, and a directory is meant",
            file.display()
        )));
    }
    let inputs = args.hooks.hooks.iter().map(PathBuf::as_path);
    args.logits.iter().try_for_each(|out| args.model.refuse_overwriting("--logits", out, inputs.clone()))?;
    let lm = args.model.load()?;
    let prompts = prompts(args, &lm)?;
    let options = options(args, &lm)?;
    args.hooks.attach(lm.hooks(), registry)?;

    let streams = !args.json && prompts.len() == 1;
    let mut text = Stream::new(&lm, streams.then(|| prompts[0].clone()));
    let generation = lm.generate_tokens(prompts, &options, |token| text.add(token.id))?;
    text.end()?;

    if let Some(path) = &args.logits {
        let named = generation.logits.iter().enumerate();
        let tensors: Vec<_> =
            named.filter_map(|(row, logits)| Some((format!("logits.{row}"), logits.clone()?))).collect();
        save_tensors(path, &tensors).map_err(|error| CliError::failed(error.to_string()))?;
    }
    let captures = match &args.captures {
        Some(dir) => write_captures(lm.hooks(), dir)?,
        None => Vec::new(),
    };
    if args.json {
        output::json(&as_json(&lm, &generation, &captures))?;
    } else {
        tell(args, &lm, &generation, &captures)?;
    }
    Ok(outcome(&generation.report))
}

fn prompts(args: &GenerateArgs, lm: &LanguageModel) -> Result<Vec<Vec<u32>>, CliError> {
    let ids = |given: &String| -> Result<Vec<u32>, CliError> {
        let ids = written_ids("--tokens", given)?;
        lm.check_tokens(&ids).map_err(|error| CliError::bad_input(format!("--tokens: {error}")))?;
        Ok(ids)
    };
    let texts = args.prompt.iter().map(|text| text_ids(lm, "--prompt", text, args.bos.choice()));
    let prompts = texts.chain(args.tokens.iter().map(ids)).collect::<Result<Vec<_>, _>>()?;
    match prompts.is_empty() {
        false => Ok(prompts),
        true => {
            Err(CliError::bad_input("there is nothing to go on with: give --prompt TEXT or --tokens 1,2,3"))
        }
    }
}

fn options(args: &GenerateArgs, lm: &LanguageModel) -> Result<GenerateOptions, CliError> {
    let stop = args.stop.iter().map(|token| one_token(lm, "--stop", token)).collect::<Result<Vec<_>, _>>()?;
    Ok(GenerateOptions {
        max_new_tokens: args.max_new_tokens,
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            seed: args.seed,
        },
        stop_tokens: (!stop.is_empty()).then_some(stop),
        prepend_bos: None,
        use_cache: !args.no_cache,
        keep_logits: args.logits.is_some(),
    })
}

fn as_json(lm: &LanguageModel, generation: &Generation, captures: &[PathBuf]) -> Value {
    let rows = generation.prompts.iter().zip(&generation.new_tokens).map(|(prompt, new)| {
        json!({
            "prompt": lm.to_text(prompt).ok(),
            "prompt_tokens": prompt,
            "text": lm.to_text(new).ok(),
            "new_tokens": new,
            "str_tokens": new.iter().map(|id| lm.token_label(*id)).collect::<Vec<_>>(),
        })
    });
    let mut all = report_json(&generation.report);
    all.insert("generations".to_string(), rows.collect());
    all.insert("captures".to_string(), json!(captures));
    Value::Object(all)
}

fn tell(
    args: &GenerateArgs,
    lm: &LanguageModel,
    generation: &Generation,
    captures: &[PathBuf],
) -> Result<(), CliError> {
    if generation.prompts.len() > 1 {
        for (prompt, new) in generation.prompts.iter().zip(&generation.new_tokens) {
            output::text(&shown(lm, &[prompt.clone(), new.clone()].concat()))?;
        }
    }
    if !generation.report.hooks.is_empty() {
        output::note(&report_text(&generation.report));
    }
    captures.iter().for_each(|path| output::note(&format!("captured: {}", path.display())));
    let bytes = lm.hooks().captured_bytes();
    if bytes > 0 && args.captures.is_none() {
        output::note(&format!("{bytes} captured bytes are not written: --captures DIR keeps them"));
    }
    Ok(())
}

/// The text of ids, or the ids where there is no tokenizer.
fn shown(lm: &LanguageModel, ids: &[u32]) -> String {
    lm.to_text(ids).unwrap_or_else(|_| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
}

/// One text on its way to standard output.
struct Stream<'a> {
    lm: &'a LanguageModel,
    ids: Option<Vec<u32>>,
    /// Bytes that stand there already.
    written: usize,
    flushes: bool,
}

impl<'a> Stream<'a> {
    fn new(lm: &'a LanguageModel, ids: Option<Vec<u32>>) -> Self {
        Self { lm, ids, written: 0, flushes: std::io::stdout().is_terminal() }
    }

    /// Writes what a further token adds. A reader that went away ends it.
    fn add(&mut self, id: u32) -> ControlFlow<()> {
        let Some(ids) = &mut self.ids else { return ControlFlow::Continue(()) };
        ids.push(id);
        if self.write(false) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn end(&mut self) -> Result<(), CliError> {
        self.write(true);
        match self.ids {
            Some(_) => output::text(""),
            None => Ok(()),
        }
    }

    /// A character may be made of several tokens: until it is whole it stands there as a replacement, and is not written.
    fn write(&mut self, all: bool) -> bool {
        let Some(ids) = &self.ids else { return true };
        let text = shown(self.lm, ids);
        let whole = if all { text.as_str() } else { text.trim_end_matches('\u{fffd}') };
        let Some(new) = whole.get(self.written..) else { return true };
        let new = if self.flushes { fit_for_terminal(new) } else { new.to_string() };
        let mut out = std::io::stdout().lock();
        let done =
            out.write_all(new.as_bytes()).and_then(|()| if self.flushes { out.flush() } else { Ok(()) });
        self.written = whole.len();
        done.is_ok()
    }
}

/// A model may generate what a terminal would take for commands.
fn fit_for_terminal(text: &str) -> String {
    let keep = |c: char| c == '\n' || c == '\t' || !c.is_control();
    text.chars().map(|c| if keep(c) { c } else { '\u{fffd}' }).collect()
}
