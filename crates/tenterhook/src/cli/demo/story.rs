//! What the demonstration tells, before and after.

use std::path::Path;

use crate::cli::output::{self, duration, printable, shell_words};
use crate::demo::{Control, Demo, Finding, Head, THRESHOLD};

/// What is about to happen.
pub(super) fn begin(demo: &Demo, run_dir: &Path, dashboard: Option<String>) -> String {
    let dashboard = dashboard.map(|url| {
        format!("\ndashboard at {url} (until the demo ends; `tenterhook serve` shows it afterwards)")
    });
    format!(
        "A transformer of two layers of attention learns to continue random sequences that repeat.\n\
         Watch for an induction head: it looks for what followed the same token before, and copies it.\n\
         {} steps, seed {}, run {}{}",
        demo.steps,
        demo.seed,
        run_dir.display(),
        dashboard.unwrap_or_default()
    )
}

/// What has happened, and what to do next.
pub(super) fn end(demo: &Demo, run_dir: &Path, finding: &Finding, seconds: f64) -> String {
    let run = printable(&run_dir.display().to_string());
    let parts = [
        format!(
            "\nInduction scores after {} steps (1 is perfect)\n{}",
            demo.steps,
            indented(&scores(finding))
        ),
        formed(finding),
        ablated(finding),
        format!(
            "Done in {}. The run with its metrics, checkpoints and captured patterns: {run}",
            duration(seconds)
        ),
        format!("Try next:\n{}", indented(&next(demo, run_dir, finding).join("\n"))),
    ];
    parts.join("\n\n")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Layers by heads.
fn scores(finding: &Finding) -> String {
    let blocks = finding.induction.blocks();
    let most = (0..blocks).map(|block| finding.induction.heads_of(block).count()).max().unwrap_or(0);
    let titles: Vec<String> =
        std::iter::once("layer".to_string()).chain((0..most).map(|head| format!("H{head}"))).collect();
    let row = |block: usize| {
        let score = |head: usize| format!("{:.2}", finding.induction.get(Head { block, head }));
        std::iter::once(block.to_string()).chain((0..most).map(score)).collect()
    };
    let rows: Vec<Vec<String>> = (0..blocks).map(row).collect();
    output::table(&titles.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

/// When the heads formed, and what happened to the loss meanwhile.
fn formed(finding: &Finding) -> String {
    let best =
        finding.induction.best().map(|(head, score)| format!("{head} with {score:.2}")).unwrap_or_default();
    let Some(step) = finding.formed_at.filter(|_| !finding.induction_heads.is_empty()) else {
        return format!(
            "No induction head has formed: none has a score over {THRESHOLD}; the best is {best}. More steps may help: --steps {}.",
            Demo::STEPS
        );
    };
    let around = |step: u64| finding.course.iter().find(|moment| moment.step >= step);
    let (before, after) = (around(step.saturating_sub(50)), around(step + 50).or(finding.course.last()));
    let Some((before, after)) = before.zip(after) else { return format!("They formed at step {step}.") };
    format!(
        "They formed around step {step}: from step {} to {} the best score rose from {:.2} to {:.2},\n\
         and the loss on the repeats fell from {:.2} to {:.2}.",
        before.step, after.step, before.score, after.score, before.loss, after.loss
    )
}

/// What ablating did.
fn ablated(finding: &Finding) -> String {
    let Some(without) = finding.loss.without_induction_heads else {
        return format!("Loss on the repeats: {:.2}. Nothing was ablated.", finding.loss.plain);
    };
    let names = |heads: &[Head]| heads.iter().map(Head::to_string).collect::<Vec<_>>().join(" ");
    let row =
        |what: &str, heads: &[Head], loss: f64| vec![what.to_string(), names(heads), format!("{loss:5.2}")];
    let mut rows = vec![
        row("nothing", &[], finding.loss.plain),
        row("the induction heads", &finding.induction_heads, without),
    ];
    if let Some(others) = finding.loss.without_others {
        rows.push(row(&other_heads(finding), &finding.others, others));
    }
    let mut text = format!(
        "Ablation\n{}",
        indented(&output::table(&["set to zero", "heads", "loss on the repeats"], &rows))
    );
    if finding.control == Control::LayerBelow {
        text.push_str(
            "\nAll heads of the layer share the work, so that none is left to compare with: a head of the layer below stands in.",
        );
    }
    match (finding.loss.without_others, finding.ratio()) {
        (None, _) => text.push_str("\nThere is no other head to compare with."),
        (Some(_), Some(ratio)) => {
            text.push_str(&format!("\nThe induction heads cost {ratio:.0} times as much."))
        }
        (Some(_), None) => text.push_str("\nWithout the others the loss does not rise at all."),
    }
    text
}

fn other_heads(finding: &Finding) -> String {
    match finding.control {
        Control::LayerBelow => "a head that attends to the previous token".to_string(),
        _ if finding.others.len() == finding.induction_heads.len() => "as many other heads".to_string(),
        _ => "the other heads there".to_string(),
    }
}

/// Commands to copy, with the paths of this run and the program as it was called.
fn next(demo: &Demo, run_dir: &Path, finding: &Finding) -> Vec<String> {
    const REPEATED: &str = "7,21,42,3,58,7,21,42,3,58";
    let program = std::env::args().next().unwrap_or_else(|| "tenterhook".to_string());
    let text = |path: &Path| path.display().to_string();
    // Under the run as it was given: the full path would be long to read.
    let checkpoint = run_dir.join("checkpoints").join(finding.checkpoint.file_name().unwrap_or_default());
    let (runs, run, checkpoint) = (text(&demo.runs_dir), text(run_dir), text(&checkpoint));
    let (best, _) = finding.induction.best().unwrap_or((Head { block: 0, head: 0 }, 0.0));
    let (block, head) = (best.block.to_string(), best.head.to_string());
    let command = |words: &[&str]| shell_words(&[&[program.as_str()], words].concat());
    let mut commands = vec![
        command(&["serve", "--runs-dir", &runs]),
        command(&[
            "heads",
            &checkpoint,
            "--tokens",
            REPEATED,
            "--patterns",
            "--layers",
            &block,
            "--heads",
            &head,
        ]),
    ];
    commands.push(match finding.induction_heads.is_empty() {
        true => command(&["runs", "show", &run]),
        false => command(&["eval", &run, "--set", &finding.ablation()]),
    });
    commands
}
