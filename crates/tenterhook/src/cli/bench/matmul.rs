//! `tenterhook bench matmul`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tenterhook_hooks::HookRegistry;
use tenterhook_models::files::ModelFiles;
use tenterhook_models::hub::Hub;
use tenterhook_nn::ops::product_seconds;

use super::measure::{RepeatArgs, Timing, peak_rss_mb};
use super::sizes::{LayerProduct, Sizes};
use crate::cli::capture::positive;
use crate::cli::error::CliError;
use crate::cli::memory::check_fits;
use crate::cli::train::{check_plan, read_document};
use crate::cli::{Outcome, output};

/// Time the matrix products alone that a model is made of: what the machine can do.
///
/// The limit is what a model would reach that computes its products one after the other and nothing else: the FLOPs of all products by the time they
/// take. Each is repeated on the same operands, so small ones come from the cache.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook bench matmul --model ./gpt2 --batch 4 --seq 256
  tenterhook bench matmul --config run.toml --training --json
  tenterhook bench matmul --shape 1024x768x3072 --shape 32x768x50257")]
pub(super) struct MatmulArgs {
    /// The products of this model: a Hugging Face model directory, or a name on the hub.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["config", "shape"])]
    model: Option<String>,
    /// The products of the model that this configuration trains.
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    config: Option<PathBuf>,
    /// A product of [M, K] by [K, N]. May be given several times. By default 1024x1024x1024.
    #[arg(long, value_name = "MxKxN")]
    shape: Vec<String>,
    /// Sequences that go through the model together; by default 1, or what the configuration says.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "shape")]
    batch: Option<usize>,
    /// Tokens of each; by default 128, or what the configuration says.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "shape")]
    seq: Option<usize>,
    /// The products of the backward too.
    #[arg(long, conflicts_with = "shape")]
    training: bool,
    #[command(flatten)]
    repeat: RepeatArgs,
}

/// A product with its times.
struct Timed {
    product: LayerProduct,
    timing: Timing,
}

impl Timed {
    fn gflops(&self) -> f64 {
        self.product.flops() / self.timing.median() / 1e9
    }

    fn seconds(&self) -> f64 {
        self.timing.median() * self.product.times as f64
    }

    fn to_json(&self) -> Value {
        let LayerProduct { name, shape, a_transposed, b_transposed, times } = &self.product;
        json!({
            "name": name,
            "shape": shape,
            "a_transposed": a_transposed,
            "b_transposed": b_transposed,
            "times": times,
            "median_ms": self.timing.median() * 1e3,
            "min_ms": self.timing.min() * 1e3,
            "gflops": self.gflops(),
        })
    }
}

pub(super) fn run(args: &MatmulArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    let (products, tokens) = products(args, registry)?;
    for LayerProduct { name, shape: [m, k, n], .. } in &products {
        for (rows, columns) in [(m, k), (k, n), (m, n)] {
            check_fits(&format!("{name}, {m} x {k} x {n},"), &[*rows, *columns, 3 * 4])?;
        }
    }
    let RepeatArgs { warmup, repeat, .. } = args.repeat;
    let time = |product: LayerProduct| {
        let LayerProduct { shape, a_transposed, b_transposed, .. } = product;
        let seconds = product_seconds(shape, a_transposed, b_transposed, warmup.saturating_add(repeat));
        Timed { product, timing: Timing(seconds.into_iter().skip(warmup).collect()) }
    };
    let timed: Vec<Timed> = products.into_iter().map(time).collect();
    let seconds: f64 = timed.iter().map(Timed::seconds).sum();
    let flops: f64 = timed.iter().map(|one| one.product.flops() * one.product.times as f64).sum();
    let best = timed.iter().map(Timed::gflops).fold(0.0, f64::max);
    let shortest: f64 = timed.iter().map(|one| one.timing.min() * one.product.times as f64).sum();
    let limit = flops / seconds / 1e9;
    if args.repeat.json {
        return output::json(&json!({
            "products": timed.iter().map(Timed::to_json).collect::<Vec<_>>(),
            "best_gflops": best,
            "limit_gflops": limit,
            "flops": flops,
            "median_ms": seconds * 1e3,
            "min_ms": shortest * 1e3,
            "tokens_per_s": tokens.map(|tokens| tokens as f64 / seconds),
            "peak_rss_mb": peak_rss_mb(),
            "threads": rayon::current_num_threads(),
        }))
        .map(|()| Outcome::Done);
    }
    let rows: Vec<Vec<String>> = timed.iter().map(row).collect();
    output::text(&output::table(&["product", "m x k x n", "times", "median", "GFLOP/s"], &rows))?;
    output::text(&format!(
        "\nbest {best:.1} GFLOP/s, all together {limit:.1} GFLOP/s ({:.2} ms), {} threads",
        seconds * 1e3,
        rayon::current_num_threads()
    ))?;
    Ok(Outcome::Done)
}

fn row(timed: &Timed) -> Vec<String> {
    let [m, k, n] = timed.product.shape;
    vec![
        timed.product.name.clone(),
        format!("{m} x {k} x {n}"),
        timed.product.times.to_string(),
        format!("{:.3} ms", timed.timing.median() * 1e3),
        format!("{:.1}", timed.gflops()),
    ]
}

/// What is to be timed, and the tokens of a pass where it is a model's.
fn products(
    args: &MatmulArgs,
    registry: &HookRegistry,
) -> Result<(Vec<LayerProduct>, Option<usize>), CliError> {
    let (sizes, usual) = match (&args.model, &args.config) {
        (Some(model), _) => {
            let config = ModelFiles::open(&Hub::from_env().find(model)?)?.config;
            (Sizes::Transformer(Box::new(config)), (1, 128))
        }
        (None, Some(config)) => {
            let plan = check_plan(&read_document(config, &[])?, None, registry)?;
            let sizes = Sizes::of(&plan.model_json()?)?;
            let (batch, seq) = plan.batch_shape();
            let usual = (batch, seq.unwrap_or(sizes.context()));
            (sizes, usual)
        }
        (None, None) if args.batch.is_some() || args.seq.is_some() || args.training => {
            return Err(CliError::bad_input(
                "--batch, --seq and --training are for a model: give --model or --config",
            ));
        }
        (None, None) => {
            let given =
                if args.shape.is_empty() { &["1024x1024x1024".to_string()] } else { args.shape.as_slice() };
            return Ok((given.iter().map(|text| shape(text)).collect::<Result<_, _>>()?, None));
        }
    };
    let (batch, seq) = (args.batch.unwrap_or(usual.0), args.seq.unwrap_or(usual.1));
    let products = if args.training { sizes.training(batch, seq) } else { sizes.forward(batch, seq) };
    Ok((products, Some(batch.saturating_mul(seq))))
}

fn shape(text: &str) -> Result<LayerProduct, CliError> {
    let sizes: Result<Vec<usize>, String> =
        text.split(['x', 'X']).map(|size| positive(size.trim())).collect();
    match sizes.as_deref() {
        Ok([m, k, n]) => Ok(LayerProduct {
            name: text.to_string(),
            shape: [*m, *k, *n],
            a_transposed: false,
            b_transposed: false,
            times: 1,
        }),
        _ => Err(CliError::bad_input(format!(
            "--shape {text}: three sizes of at least 1 are meant, such as 1024x768x3072"
        ))),
    }
}
