//! The language in which faults are asked for.

use std::io;
use std::time::Duration;

/// What happens when a point is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Abort,
    NoSpace,
    NoAccess,
    Broken,
    Short,
    Sleep(Duration),
}

impl Action {
    /// The error an operation at this point gets; those that do not fail have none.
    pub(super) fn error(self, point: &str) -> Option<io::Error> {
        let (kind, words) = match self {
            Action::NoSpace | Action::Short => (io::ErrorKind::StorageFull, "no space left on device"),
            Action::NoAccess => (io::ErrorKind::PermissionDenied, "permission denied"),
            Action::Broken => (io::ErrorKind::Other, "input/output error"),
            Action::Abort | Action::Sleep(_) => return None,
        };
        Some(io::Error::new(kind, format!("{words} (injected at `{point}`)")))
    }
}

/// One `name=action[@n]`, and how often it was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    name: String,
    action: Action,
    only: Option<u64>,
    hits: u64,
}

impl Rule {
    /// Counts a hit and tells what to do.
    pub(super) fn hit(&mut self, point: &str) -> Option<Action> {
        let matches = match self.name.strip_suffix('*') {
            Some(start) => point.starts_with(start),
            None => point == self.name,
        };
        if !matches {
            return None;
        }
        self.hits += 1;
        (self.only.is_none_or(|only| only == self.hits)).then_some(self.action)
    }
}

/// Reads a specification such as `disk.sync=eio@2;save.*=abort`.
pub(super) fn parse(spec: &str) -> Result<Vec<Rule>, String> {
    spec.split(';').map(str::trim).filter(|part| !part.is_empty()).map(rule).collect()
}

fn rule(part: &str) -> Result<Rule, String> {
    let form = || format!("fault `{part}` is not of the form `name=action[@n]`");
    let (name, action) = part.split_once('=').ok_or_else(form)?;
    let (action, only) = match action.split_once('@') {
        None => (action, None),
        Some((action, n)) => (action, Some(n.parse().ok().filter(|n| *n > 0).ok_or_else(form)?)),
    };
    let action = match action.split_once(':') {
        Some(("sleep", ms)) => Action::Sleep(Duration::from_millis(ms.parse().map_err(|_| form())?)),
        _ => match action {
            "abort" | "kill" => Action::Abort,
            "enospc" => Action::NoSpace,
            "eacces" => Action::NoAccess,
            "eio" => Action::Broken,
            "short" => Action::Short,
            _ => {
                return Err(format!(
                    "fault `{part}` has no action that exists: abort, kill, enospc, eacces, eio, short, sleep:MS"
                ));
            }
        },
    };
    match name.trim() {
        "" => Err(form()),
        name => Ok(Rule { name: name.to_string(), action, only, hits: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_its_hits() {
        let mut rules = parse("disk.*=eio@2 ; save.done=sleep:5;").unwrap();
        assert_eq!(rules.len(), 2);
        let hits: Vec<_> =
            ["disk.sync", "save.done", "disk.write", "disk.sync"].map(|point| rules[0].hit(point)).into();
        assert_eq!(hits, [None, None, Some(Action::Broken), None]);
        assert_eq!(rules[1].hit("save.done"), Some(Action::Sleep(Duration::from_millis(5))));
        assert_eq!(rules[1].hit("save.done.too"), None);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for bad in ["disk.sync", "=eio", "disk.sync=boom", "a=eio@0", "a=eio@x", "a=sleep", "a=sleep:x"] {
            assert!(parse(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
