//! The configuration of a run.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::document::Document;
use super::hooks_config::HooksConfig;
use super::path;
use super::problems::Problems;
use super::ranks::RanksSection;
use super::section::{check_section, unknown_key};
use super::train::TrainSection;
use super::write::without_nulls;

/// The sections that a configuration can have.
const SECTIONS: [&str; 9] =
    ["run", "model", "data", "train", "optimizer", "schedule", "ranks", "hooks", "hooks_config"];

/// What the run is called and where its files go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// Everything random depends on it.
    pub seed: u64,
    /// A name to find the run by.
    pub name: Option<String>,
    /// Every run gets a directory in this one.
    pub dir: PathBuf,
}

impl Default for RunSection {
    fn default() -> Self {
        Self { seed: 42, name: None, dir: PathBuf::from("runs") }
    }
}

impl RunSection {
    /// What is wrong with the values: key and message.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, message: &str| problems.push((key.to_string(), message.to_string()));
        if i64::try_from(self.seed).is_err() {
            wrong("seed", "is above 9223372036854775807");
        }
        if self.name.as_deref().is_some_and(|name| name.trim().is_empty()) {
            wrong("name", "is empty; leave it out");
        }
        if self.dir.as_os_str().is_empty() {
            wrong("dir", "is empty; `.` is the current directory");
        }
        problems
    }
}

/// A part of a configuration that is read by its owner.
#[derive(Clone, PartialEq)]
pub struct Section {
    /// Where it stands, such as `data.train[1]`.
    pub path: String,
    /// What it says.
    pub value: Value,
}

impl Section {
    /// Reads it, see [`check_section`], and fills in the defaults.
    pub fn resolve<T: DeserializeOwned + Serialize + JsonSchema>(
        &mut self,
        problems: &mut Problems,
        wrong_values: impl Fn(&T) -> Vec<(String, String)>,
    ) -> Option<T> {
        let section: T = check_section(&self.value, &self.path, problems, wrong_values)?;
        match serde_json::to_value(&section) {
            Ok(value) => self.value = without_nulls(value),
            Err(error) => {
                problems.add(self.path.clone(), error.to_string());
                return None;
            }
        }
        Some(section)
    }
}

/// The data sets of a run.
#[derive(Clone, PartialEq)]
pub struct DataSection {
    /// For training.
    pub train: Vec<Section>,
    /// For validation.
    pub val: Vec<Section>,
}

/// The configuration of a run.
///
/// ```
/// use tenterhook_train::config::{DEFAULT_TOML, Document, Format, RunConfig};
/// let mut document = Document::parse(DEFAULT_TOML, Format::Toml)?;
/// document.set("train.steps=500")?;
/// let mut problems = document.problems();
/// let config = RunConfig::from_document(&document, &mut problems).ok_or(problems)?;
/// assert_eq!(config.train.steps, Some(500));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct RunConfig {
    /// Name, seed and directory.
    pub run: RunSection,
    /// The model.
    pub model: Section,
    /// The data sets.
    pub data: DataSection,
    /// How long and how it trains.
    pub train: TrainSection,
    /// The optimizers, at least one.
    pub optimizer: Vec<Section>,
    /// How the learning rate changes; constant without one.
    pub schedule: Option<Section>,
    /// How several processes train together.
    pub ranks: RanksSection,
    /// The hooks: those of `[[hooks]]`, then those of `[hooks_config]`.
    pub hooks: Vec<Section>,
}

impl RunConfig {
    /// Reads a document. Notes everything that is wrong, and returns `None` when there is anything.
    pub fn from_document(document: &Document, problems: &mut Problems) -> Option<Self> {
        let before = problems.len();
        let empty = Map::new();
        let root = document.value().as_object().unwrap_or(&empty);
        let run = typed(root, "run", problems, RunSection::problems);
        let train = typed(root, "train", problems, TrainSection::problems);
        let ranks = typed(root, "ranks", problems, RanksSection::problems);
        let model = table(root, "model", problems);
        if !root.contains_key("model") {
            problems.add("model", "missing section, such as [model] with kind = \"gpt\"");
        }
        let data = data(root, problems);
        let optimizer = list(root.get("optimizer"), "optimizer", problems);
        if optimizer.is_empty() && root.get("optimizer").is_none_or(Value::is_array) {
            problems.add(
                "optimizer",
                "missing section, such as [[optimizer]] with kind = \"adamw\" and lr = 3e-4",
            );
        }
        let schedule = table(root, "schedule", problems);
        let hooks = Self::hooks_of(document, problems);
        let (run, model, train, ranks) = (run?, model?, train?, ranks?);
        let config = Self { run, model, data, train, optimizer, schedule, ranks, hooks };
        (problems.len() == before).then_some(config)
    }

    /// The hooks of a document, of which nothing else is looked at but the names of its sections.
    pub fn hooks_of(document: &Document, problems: &mut Problems) -> Vec<Section> {
        let empty = Map::new();
        let root = document.value().as_object().unwrap_or(&empty);
        for key in root.keys().filter(|key| !SECTIONS.contains(&key.as_str())) {
            let (_, near) = unknown_key(key, SECTIONS.to_vec());
            problems.suggest(
                path::join("", key),
                format!("unknown section; there are {}", SECTIONS.join(", ")),
                near,
            );
        }
        let mut hooks = list(root.get("hooks"), "hooks", problems);
        let config: Option<HooksConfig> = typed(root, "hooks_config", problems, |_| Vec::new());
        hooks.extend(
            config.iter().flat_map(|config| config.expand("hooks_config", problems)).collect::<Vec<_>>(),
        );
        check_names(&hooks, problems);
        hooks
    }
}

impl RunConfig {
    /// The sections of a document that cannot be read as a whole, so that their owners may check them all the same: what is broken has its
    /// default, a model that is not there is null.
    pub fn lenient(document: &Document) -> Self {
        let (empty, mut unheard) = (Map::new(), Problems::default());
        let root = document.value().as_object().unwrap_or(&empty);
        let nothing = Section { path: "model".to_string(), value: Value::Null };
        let mut hooks = list(root.get("hooks"), "hooks", &mut unheard);
        let config: Option<HooksConfig> = typed(root, "hooks_config", &mut unheard, |_| Vec::new());
        hooks.extend(
            config.iter().flat_map(|config| config.expand("hooks_config", &mut unheard)).collect::<Vec<_>>(),
        );
        Self {
            run: typed(root, "run", &mut unheard, |_| Vec::new()).unwrap_or_default(),
            model: table(root, "model", &mut unheard).unwrap_or(nothing),
            data: data(root, &mut unheard),
            train: typed(root, "train", &mut unheard, |_| Vec::new()).unwrap_or_default(),
            optimizer: list(root.get("optimizer"), "optimizer", &mut unheard),
            schedule: table(root, "schedule", &mut unheard),
            ranks: typed(root, "ranks", &mut unheard, |_| Vec::new()).unwrap_or_default(),
            hooks,
        }
    }
}

fn typed<T: DeserializeOwned + JsonSchema>(
    root: &Map<String, Value>,
    key: &str,
    problems: &mut Problems,
    wrong_values: impl Fn(&T) -> Vec<(String, String)>,
) -> Option<T> {
    let empty = Value::Object(Map::new());
    check_section(root.get(key).unwrap_or(&empty), key, problems, wrong_values)
}

fn table(root: &Map<String, Value>, key: &str, problems: &mut Problems) -> Option<Section> {
    let value = root.get(key)?;
    if !value.is_object() {
        problems.add(key, format!("must be a table, as in [{key}]"));
        return None;
    }
    Some(Section { path: key.to_string(), value: value.clone() })
}

/// A table counts as a list of one.
fn list(value: Option<&Value>, at: &str, problems: &mut Problems) -> Vec<Section> {
    let sections = match value {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            let place = |(index, value): (usize, &Value)| (path::element(at, index), value.clone());
            list.iter().enumerate().map(place).collect()
        }
        Some(value) => vec![(at.to_string(), value.clone())],
    };
    let mut tables = Vec::new();
    for (path, value) in sections {
        match value.is_object() {
            true => tables.push(Section { path, value }),
            false => problems.add(path, format!("must be a table, as in [[{at}]]")),
        }
    }
    tables
}

fn data(root: &Map<String, Value>, problems: &mut Problems) -> DataSection {
    let empty = Map::new();
    let sets = match root.get("data") {
        Some(Value::Object(sets)) => sets,
        Some(_) => {
            problems.add("data", "must be a table, as in [data.train]");
            return DataSection { train: Vec::new(), val: Vec::new() };
        }
        None => &empty,
    };
    for key in sets.keys().filter(|key| *key != "train" && *key != "val") {
        let (_, near) = unknown_key(key, vec!["train", "val"]);
        problems.suggest(
            path::join("data", key),
            "unknown key; data sets are [data.train] and [data.val]",
            near,
        );
    }
    if sets.get("train").is_none_or(|train| train.as_array().is_some_and(Vec::is_empty)) {
        problems.add("data.train", "missing section, such as [data.train] with kind = \"text\" and a path");
    }
    let train = list(sets.get("train"), "data.train", problems);
    let val = list(sets.get("val"), "data.val", problems);
    for sets in [&train, &val].into_iter().filter(|sets| sets.len() > 1) {
        let mut seen = BTreeSet::new();
        for set in sets {
            match set.value.get("name").and_then(Value::as_str) {
                None => problems
                    .add(path::join(&set.path, "name"), "missing key; among several sets each has a name"),
                Some(name) if !seen.insert(name) => {
                    problems.add(path::join(&set.path, "name"), format!("another set is named `{name}`"));
                }
                Some(_) => {}
            }
        }
    }
    DataSection { train, val }
}

/// Every hook has a kind, and no two the same id.
fn check_names(hooks: &[Section], problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for hook in hooks {
        match hook.value.get("kind") {
            None => {
                problems.add(path::join(&hook.path, "kind"), "missing key, such as kind = \"console_log\"")
            }
            Some(Value::String(_)) => {}
            Some(_) => {
                problems.add(path::join(&hook.path, "kind"), "must be a text, such as \"console_log\"")
            }
        }
        let id = hook.value.get("id").and_then(Value::as_str);
        if let Some(id) = id.filter(|id| !seen.insert(*id)) {
            problems.add(path::join(&hook.path, "id"), format!("another hook has the id `{id}`"));
        }
    }
}

/// As it is recorded: without secrets.
impl fmt::Debug for RunConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunConfig({})", self.to_value())
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
