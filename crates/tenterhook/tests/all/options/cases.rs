//! A case: an option, two values, and where the difference shows.

use tenterhook::hooks::OptionInfo;

use super::all_options;
use super::scene::{Config, Seen, inside, outside};

/// An option with two values that lead to different runs.
#[derive(Clone)]
pub(super) struct Case {
    /// `kind.option`, or `common.option`.
    pub(super) option: &'static str,
    kind: &'static str,
    values: [&'static str; 2],
    with: &'static str,
    beside: &'static str,
    set: Vec<&'static str>,
    in_process: bool,
    see: fn(&Seen) -> String,
    by: Option<fn(&str) -> String>,
}

/// An option of a kind, two values as TOML (empty: left out), and what must differ.
pub(super) fn case(option: &'static str, values: [&'static str; 2], see: fn(&Seen) -> String) -> Case {
    let kind = option.split('.').next().unwrap();
    Case { option, kind, values, with: "", beside: "", set: vec![], in_process: true, see, by: None }
}

impl Case {
    /// The kind that an option of all kinds is tried on.
    pub(super) fn on(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    /// Further options of the same hook.
    pub(super) fn with(self, with: &'static str) -> Self {
        Self { with, ..self }
    }

    /// Further hooks, `[[hooks]]` included.
    pub(super) fn beside(self, beside: &'static str) -> Self {
        Self { beside, ..self }
    }

    /// Changes the configuration, as `--set` does.
    pub(super) fn set(mut self, assignment: &'static str) -> Self {
        self.set.push(assignment);
        self
    }

    /// Runs the binary: for what is seen on the terminal.
    pub(super) fn outside(self) -> Self {
        Self { in_process: false, ..self }
    }

    /// Does it another way: with this function, which gets the line of the option and says what is seen.
    pub(super) fn by(self, run: fn(&str) -> String) -> Self {
        Self { by: Some(run), ..self }
    }

    fn run(&self, key: &str, value: &str) -> String {
        let line = if value.is_empty() { String::new() } else { format!("{key} = {value}") };
        if let Some(run) = self.by {
            return run(&line);
        }
        let hooks = format!("[[hooks]]\nkind = \"{}\"\n{}\n{line}\n{}", self.kind, self.with, self.beside);
        let config = Config { hooks, set: self.set.clone() };
        let seen = if self.in_process { inside(&config) } else { outside(&config, &[]) };
        (self.see)(&seen)
    }

    /// What is wrong, if anything.
    fn problem(&self, option: &OptionInfo) -> Option<String> {
        let name = self.option;
        let [first, second] = self.values;
        let (a, again) = (self.run(&option.name, first), self.run(&option.name, first));
        if a != again {
            return Some(format!("`{name} = {first}` does not lead to the same twice:\n{a}\n{again}"));
        }
        if a == self.run(&option.name, second) {
            return Some(format!("`{name}`: {first} and {second} lead to the same:\n{a}"));
        }
        let other = option.aliases.iter().find(|alias| self.run(alias, first) != a);
        other.map(|alias| format!("`{alias}` should be another word for `{name}`"))
    }
}

pub(super) fn check(cases: &[Case]) {
    let options = all_options();
    let option = |case: &Case| options.iter().find(|(name, _)| name == case.option).unwrap().1.clone();
    let problems: Vec<String> = cases.iter().filter_map(|case| case.problem(&option(case))).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
