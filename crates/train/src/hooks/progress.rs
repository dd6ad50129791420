//! A progress bar.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, MetricsRow, RunStatus, TrainState};

use super::console::Console;
use super::console_log::number;
use super::log_file::is_step_row;

/// How [`Progress`] shows where a run is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProgressOptions {
    /// Where there is no terminal: a line after so many seconds.
    pub plain_every_s: f64,
}

impl Default for ProgressOptions {
    fn default() -> Self {
        Self { plain_every_s: 10.0 }
    }
}

/// Shows step, loss, learning rate, tokens per second and the time that is left: as a bar on a terminal, as lines elsewhere.
pub struct Progress {
    options: ProgressOptions,
    screen: Screen,
    console: Console,
    pace: Option<Pace>,
}

/// What it draws on.
enum Screen {
    /// Not known before training starts.
    Unknown,
    Bar(ProgressBar),
    /// Lines, and when the last one was printed.
    Plain(Option<Instant>),
}

/// Where this attempt began: what an earlier one did says nothing about the speed of this one.
struct Pace {
    began: Instant,
    step: u64,
    tokens: u64,
}

impl Pace {
    fn tokens_per_s(&self, state: &TrainState) -> Option<f64> {
        let seconds = self.began.elapsed().as_secs_f64();
        let tokens = state.tokens_seen.saturating_sub(self.tokens);
        (seconds > 0.0 && tokens > 0).then(|| tokens as f64 / seconds)
    }

    fn left(&self, state: &TrainState) -> Option<Duration> {
        let done = state.step.checked_sub(self.step).filter(|done| *done > 0)?;
        let left = state.total_steps?.saturating_sub(state.step);
        Duration::try_from_secs_f64(self.began.elapsed().as_secs_f64() * left as f64 / done as f64).ok()
    }
}

/// The bar that is on the screen, left on the board for whoever prints.
struct OnScreen(ProgressBar);

/// Prints without tearing the progress bar apart, if there is one.
pub(super) fn above_bar(cx: &Cx, print: impl FnOnce()) {
    match cx.board().get::<OnScreen>() {
        Some(bar) if !bar.0.is_finished() => bar.0.suspend(print),
        _ => print(),
    }
}

impl Progress {
    /// The kind's name.
    pub const KIND: &'static str = "progress";

    /// A time that is none is an error.
    pub fn new(options: ProgressOptions) -> Result<Self, AttachError> {
        if !(0.0..=1e6).contains(&options.plain_every_s) {
            let problem = format!("`plain_every_s` is {}, it must be 0 to 1000000", options.plain_every_s);
            return Err(AttachError::BadOptions { kind: Self::KIND.to_string(), problems: vec![problem] });
        }
        Ok(Self { options, screen: Screen::Unknown, console: Console::default(), pace: None })
    }

    /// Draws into these instead: on a terminal if a target is given.
    #[cfg(test)]
    fn on(mut self, console: Console, target: Option<ProgressDrawTarget>) -> Self {
        self.console = console;
        self.screen = match target {
            Some(target) => Screen::Bar(ProgressBar::with_draw_target(None, target)),
            None => Screen::Plain(None),
        };
        self
    }

    fn message(&self, row: &MetricsRow, state: &TrainState) -> String {
        let loss = row.values.get("loss").map(|loss| format!("loss {}", number(*loss, 4)));
        let lr = state.lr().map(|lr| format!("lr {lr:.1e}"));
        let rate = self.pace.as_ref().and_then(|pace| pace.tokens_per_s(state));
        let rate = rate.map(|rate| format!("{rate:.0} tokens/s"));
        [loss, lr, rate].into_iter().flatten().collect::<Vec<_>>().join("  ")
    }

    fn plain_line(&self, row: &MetricsRow, state: &TrainState) -> String {
        let total = state.total_steps.map(|total| format!("/{total}")).unwrap_or_default();
        let left = self.pace.as_ref().and_then(|pace| pace.left(state));
        let left = left.map(|left| format!("  {} left", HumanDuration(left))).unwrap_or_default();
        format!("step {}{total}  epoch {}  {}{left}", state.step, row.epoch, self.message(row, state))
    }

    fn finish(&mut self) {
        if let Screen::Bar(bar) = &self.screen {
            // The bar stays on the screen, at the step where the run ended.
            bar.abandon();
        }
    }
}

/// How the bar looks. Colours are left out by the terminal crate where NO_COLOR is set.
fn style(known_length: bool) -> HookResult<ProgressStyle> {
    let template = match known_length {
        true => "{bar:30.cyan/blue} {pos}/{len}  {msg}  {eta} left",
        false => "{spinner} {pos}  {msg}  {elapsed}",
    };
    Ok(ProgressStyle::with_template(template)?)
}

impl Hook for Progress {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let Some(state) = cx.state() else { return Ok(()) };
        self.pace = Some(Pace { began: Instant::now(), step: state.step, tokens: state.tokens_seen });
        if matches!(self.screen, Screen::Unknown) {
            self.screen = match std::io::stderr().is_terminal() {
                true => Screen::Bar(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())),
                false => Screen::Plain(None),
            };
        }
        if let Screen::Bar(bar) = &self.screen {
            bar.set_style(style(state.total_steps.is_some())?);
            if let Some(total) = state.total_steps {
                bar.set_length(total);
            }
            // After a restart the bar begins where the run is, and the time that is left is judged by the steps to come.
            bar.set_position(state.step);
            bar.reset_eta();
            cx.board().put_for_run(OnScreen(bar.clone()));
        }
        Ok(())
    }

    fn on_metrics(&mut self, row: &MetricsRow, cx: &mut Cx) -> HookResult {
        let Some(state) = cx.state().filter(|_| is_step_row(row)) else { return Ok(()) };
        let message = self.message(row, state);
        let line = self.plain_line(row, state);
        match &mut self.screen {
            Screen::Unknown => {}
            Screen::Bar(bar) => {
                bar.set_message(message);
                bar.set_position(state.step);
            }
            Screen::Plain(last) => {
                let wait = Duration::from_secs_f64(self.options.plain_every_s);
                if last.is_none_or(|last| last.elapsed() >= wait) {
                    *last = Some(Instant::now());
                    self.console.line(&line);
                }
            }
        }
        Ok(())
    }

    fn on_exception(&mut self, _error: &str, _cx: &mut Cx) -> HookResult {
        self.finish();
        Ok(())
    }

    fn on_train_end(&mut self, status: RunStatus, cx: &mut Cx) -> HookResult {
        self.finish();
        if let (Screen::Plain(_), Some(state)) = (&self.screen, cx.state()) {
            let took = self.pace.as_ref().map(|pace| HumanDuration(pace.began.elapsed()));
            let took = took.map(|took| format!(" after {took}")).unwrap_or_default();
            self.console.line(&format!("{} at step {}{took}", status.as_str(), state.step));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tenterhook_hooks::{Event, MockTrainer};

    /// A terminal that keeps everything that was ever drawn.
    #[derive(Clone, Debug, Default)]
    struct Drawn(Arc<Mutex<String>>);

    impl TermLike for Drawn {
        fn width(&self) -> u16 {
            200
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)?;
            self.write_str("\n")
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.write_str("\n")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn on_terminal(total: Option<u64>, done: u64) -> (MockTrainer, Arc<Mutex<String>>) {
        let screen = Drawn::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(screen.clone()), 255);
        let hook = Progress::new(ProgressOptions::default()).unwrap().on(Console::buffer().0, Some(target));
        let mut trainer = MockTrainer::new();
        trainer.state.total_steps = total;
        trainer.state.step = done;
        trainer.attach(hook).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        (trainer, screen.0)
    }

    #[test]
    fn the_bar_begins_where_the_run_is_and_stays_where_it_ends() {
        for end in [true, false] {
            let (mut trainer, screen) = on_terminal(Some(40), 20);
            assert!(screen.lock().unwrap().contains("20/40"), "{:?}", screen.lock().unwrap());
            trainer.step(2.5).unwrap();
            match end {
                true => trainer.end(RunStatus::Stopped).unwrap(),
                false => trainer.fire(Event::Exception("no")).unwrap(),
            }
            let text = screen.lock().unwrap().clone();
            let last = text.lines().rev().find(|line| line.contains("/40")).unwrap();
            assert!(last.contains("21/40") && last.contains("loss 2.5000  lr 1.0e-3"), "{text}");
        }
    }

    #[test]
    fn without_a_known_length_it_counts() {
        let (mut trainer, screen) = on_terminal(None, 0);
        trainer.step(0.5).unwrap();
        trainer.end(RunStatus::Completed).unwrap();
        let text = screen.lock().unwrap().clone();
        assert!(text.contains(" 1  loss 0.5000"), "{text}");
    }

    fn plain(plain_every_s: f64) -> Vec<String> {
        let (console, text) = Console::buffer();
        let mut trainer = MockTrainer::new();
        let hook = Progress::new(ProgressOptions { plain_every_s }).unwrap().on(console, None);
        trainer.attach(hook).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        for _ in 0..3 {
            trainer.step(1.5).unwrap();
        }
        trainer.validate(&[("val/loss", 1.0)]).unwrap();
        trainer.end(RunStatus::Completed).unwrap();
        text.lock().unwrap().lines().map(str::to_string).collect()
    }

    #[test]
    fn without_a_terminal_there_are_lines() {
        let all = plain(0.0);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all[1].starts_with("step 2/1000  epoch 0  loss 1.5000  lr 1.0e-3"), "{all:?}");
        assert!(all[1].contains(" tokens/s  ") && all[1].ends_with(" left"), "{all:?}");
        assert!(all[3].starts_with("completed at step 3 after "), "{all:?}");
        let few = plain(1000.0);
        assert_eq!(few.len(), 2, "the first step and the end: {few:?}");
        assert!(Progress::new(ProgressOptions { plain_every_s: f64::NAN }).is_err());
    }

    #[test]
    fn lines_of_others_stand_above_the_bar() {
        struct Printer(Drawn);
        impl Hook for Printer {
            fn kind(&self) -> &str {
                "printer"
            }
            fn on_epoch_start(&mut self, _epoch: u64, cx: &mut Cx) -> HookResult {
                above_bar(cx, || drop(self.0.write_str("<hello>\n")));
                Ok(())
            }
        }
        let (mut trainer, screen) = on_terminal(Some(40), 0);
        trainer.attach(Printer(Drawn(screen.clone()))).unwrap();
        trainer.step(2.5).unwrap();
        trainer.fire(Event::EpochStart(1)).unwrap();
        let text = screen.lock().unwrap().clone();
        let after = text.split("<hello>").nth(1).unwrap();
        assert!(after.contains("1/40"), "the bar is drawn again: {text}");
    }
}
