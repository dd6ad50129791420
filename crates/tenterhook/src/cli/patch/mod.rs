//! `tenterhook patch`: which places of a model an answer hangs on.

mod args;
mod show;

use tenterhook_hooks::{HookRegistry, Report, Site};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::patching::{Contrast, PatchingGrid, PathOptions, PathPatching, Sweep};

use args::MethodArg;
pub(super) use args::PatchArgs;

use super::Outcome;
use super::error::CliError;
use super::model::outcome;
use super::progress::Counting;

/// What was found.
#[derive(Default)]
struct Found {
    grids: Vec<PatchingGrid>,
    path: Option<PathPatching>,
    report: Report,
}

pub(super) fn run(args: &PatchArgs, registry: &HookRegistry) -> Result<Outcome, CliError> {
    args.show.check()?;
    let lm = args.model.load()?;
    let contrast = args.contrast(&lm)?;
    args.hooks.attach(lm.hooks(), registry)?;
    let found = match args.receiver.is_empty() {
        true => sweep(args, &lm, &contrast)?,
        false => follow(args, &lm, &contrast)?,
    };
    show::show(args, &lm, &contrast, &found)?;
    Ok(outcome(&found.report))
}

fn sweep(args: &PatchArgs, lm: &LanguageModel, contrast: &Contrast) -> Result<Found, CliError> {
    let mut found = Found::default();
    for name in sweeps(&args.sweep, lm) {
        let sweep = Sweep { by: args.by()?, batch_size: args.batch_size, ..Sweep::of(&name) };
        if args.method != MethodArg::Attribution {
            let bar = Counting::of(format!("patching {name}"));
            let (grid, report) = lm.activation_patching(contrast, &sweep, |done, of| bar.show(done, of))?;
            found.grids.push(grid);
            found.report.add(report);
        }
        if args.method != MethodArg::Exact {
            let (grid, report) = lm.attribution_patching(contrast, &sweep)?;
            found.grids.push(grid);
            found.report.add(report);
        }
    }
    Ok(found)
}

/// `all` stands for the usual ones that the model has.
fn sweeps(given: &[String], lm: &LanguageModel) -> Vec<String> {
    const ALL: [&str; 6] = ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z"];
    let there = |name: &&str| Sweep::of(name).points.resolve(lm.hooks().points(), Site::Forward).is_ok();
    let of = |name: &String| match name.as_str() {
        "all" => ALL.iter().filter(|name| there(name)).map(ToString::to_string).collect(),
        name => vec![name.to_string()],
    };
    given.iter().flat_map(of).collect()
}

fn follow(args: &PatchArgs, lm: &LanguageModel, contrast: &Contrast) -> Result<Found, CliError> {
    let options = PathOptions { freeze_mlps: args.freeze_mlps };
    if args.sender.is_empty() {
        let bar = Counting::of("patching paths");
        let (grid, report) =
            lm.path_patching_sweep(contrast, &args.receiver, options, |done, of| bar.show(done, of))?;
        return Ok(Found { grids: vec![grid], path: None, report });
    }
    let (path, report) = lm.path_patching(contrast, &args.sender, &args.receiver, options)?;
    Ok(Found { grids: vec![], path: Some(path), report })
}
