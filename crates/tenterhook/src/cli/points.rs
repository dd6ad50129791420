//! `tenterhook points`: the places of a model that hooks can be attached to.

use clap::Args;
use serde_json::json;
use tenterhook_hooks::Point;
use tenterhook_models::Transformer;
use tenterhook_models::files::ModelFiles;
use tenterhook_models::hub::Hub;

use super::error::CliError;
use super::{Outcome, output};

/// List the points and layers of a model.
///
/// A point is a named place where a tensor passes. Points marked `costly` are computed only while somebody
/// listens and are matched only by their own name. Every layer of the model file is a name too: it means the layer's output.
#[derive(Args)]
#[command(after_help = "Example: tenterhook points ./gpt2 | grep resid")]
pub(super) struct PointsArgs {
    /// A Hugging Face model directory, or a name on the hub (NAME or NAME@REVISION), which is downloaded where it is not in the cache.
    model: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PointsArgs) -> Result<Outcome, CliError> {
    let files = ModelFiles::open(&Hub::from_env().find(&args.model)?)?;
    let (points, parameters) = Transformer::outline(&files)?;
    let family = files.config.family.model_type();
    if args.json {
        let all: Vec<&Point> = points.iter().map(|(_, point)| point).collect();
        output::json(&json!({
            "family": family,
            "parameters": parameters,
            "blocks": points.blocks().len(),
            "points": all,
            "layers": points.layers().iter().map(|layer| layer.path.as_str()).collect::<Vec<_>>(),
        }))?;
        return Ok(Outcome::Done);
    }
    let rows: Vec<Vec<String>> = points.iter().map(|(_, point)| row(point)).collect();
    output::text(&output::table(&["point", "axes", "notes", "also called"], &rows))?;
    output::text(&format!(
        "\n{} points, {} layers, {} blocks, {} parameters ({})",
        points.len(),
        points.layers().len(),
        points.blocks().len(),
        parameters,
        family,
    ))?;
    Ok(Outcome::Done)
}

fn row(point: &Point) -> Vec<String> {
    let notes =
        [(point.on_demand, "costly"), (!point.writable, "read-only"), (!point.differentiable, "no gradient")];
    let notes: Vec<&str> = notes.iter().filter(|(holds, _)| *holds).map(|(_, note)| *note).collect();
    vec![point.name.clone(), point.axes.clone(), notes.join(", "), point.aliases.join(" ")]
}
