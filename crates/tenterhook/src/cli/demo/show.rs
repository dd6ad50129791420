//! The demonstration while it trains: a bar and charts on a terminal, lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenterhook_hooks::{Cx, Hook, HookResult, MetricsRow, RunStatus};

use super::chart::{Chart, beside};
use crate::cli::output;
use crate::demo::{Moment, THRESHOLD};

/// Where there is no terminal: a line after so many steps.
const LINE_EVERY: u64 = 50;

/// Shows the loss and the best head's induction score.
pub(super) struct Show {
    steps: u64,
    loss: Chart,
    score: Chart,
    /// None where there is no terminal.
    bar: Option<ProgressBar>,
    formed: bool,
}

impl Show {
    pub(super) fn new(steps: u64) -> Self {
        let bar = std::io::stderr().is_terminal();
        let bar = bar.then(|| ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr()));
        let (loss, score) =
            (Chart::new("loss on the repeats", 5.0), Chart::new("induction score of the best head", 1.0));
        Self { steps, loss, score, bar, formed: false }
    }

    fn draw(&mut self, moment: &Moment) {
        let share = moment.step as f64 / self.steps as f64;
        self.loss.put(share, moment.loss);
        self.score.put(share, moment.score);
        if let Some(bar) = &self.bar {
            let Moment { loss, best, score, .. } = moment;
            let now = format!("     now {loss:<34.2}{best} {score:.2}");
            bar.set_message(format!("{}\n{now}", beside(&self.loss, &self.score)));
        }
    }

    fn line(&mut self, moment: &Moment) {
        let Moment { step, loss, best, score } = moment;
        let forms = *score > THRESHOLD && !std::mem::replace(&mut self.formed, *score > THRESHOLD);
        if forms || step.is_multiple_of(LINE_EVERY) || *step == self.steps {
            let mark = if forms { "  <- an induction head" } else { "" };
            output::note(&format!("  step {step:>5}   loss {loss:5.2}   best head {best} {score:.2}{mark}"));
        }
    }
}

impl Hook for Show {
    fn kind(&self) -> &str {
        "demo"
    }

    fn on_train_start(&mut self, _cx: &mut Cx) -> HookResult {
        if let Some(bar) = &self.bar {
            bar.set_style(ProgressStyle::with_template(
                "{msg}\n     {bar:32.cyan/blue} {pos}/{len}  {eta} left",
            )?);
        }
        Ok(())
    }

    fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        if let Some(moment) = Moment::of(row.step, &row.values) {
            match self.bar {
                Some(_) => self.draw(&moment),
                None => self.line(&moment),
            }
        }
        self.bar.iter().for_each(|bar| bar.set_position(row.step));
        Ok(())
    }

    fn on_train_end(&mut self, _status: RunStatus, _cx: &mut Cx) -> HookResult {
        // The charts stay on the screen.
        self.bar.iter().for_each(ProgressBar::abandon);
        Ok(())
    }
}
