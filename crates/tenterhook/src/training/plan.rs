//! A configuration that has been read and checked: everything that can be known to be wrong is known before anything starts.

use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::Serialize;
use serde_json::{Value, json};
use tenterhook_hooks::{AttachError, BoxError, HookManager, HookRegistry};
use tenterhook_models::error::ModelError;
use tenterhook_models::tokenizer::Tokenizer;
use tenterhook_models::{Model, ModelDescription};
use tenterhook_record::name::check_run_name;
use tenterhook_record::run::RunDir;
use tenterhook_train::config::{
    BatchOf, Document, Problems, RunConfig, Section, SubSchemas, resume_differences, schema_of,
};
use tenterhook_train::data::{DataConfig, DataKind, Loader, Mixture, ModelFacts, Role};
use tenterhook_train::optim::{Optimizer, OptimizerConfig};
use tenterhook_train::schedule::{ScheduleConfig, ScheduleError};
use tenterhook_train::{Settings, TrainError, Trainer, World};

use super::LanguageTask;
use super::place::Place;

/// Sequences longer than this are asked for by name: some models allow far more than anybody trains on.
const LONGEST_UNASKED: usize = 8192;

/// A configuration, read and checked.
pub struct Plan {
    /// The whole configuration with its defaults filled in.
    pub config: RunConfig,
    model: ModelDescription,
    train: Vec<DataConfig>,
    val: Vec<DataConfig>,
    optimizers: Vec<OptimizerConfig>,
    schedule: ScheduleConfig,
    world: World,
    /// No problems, with the lines of the file: for those that show only when the run is put together.
    no_problems: Problems,
}

/// A trainer that has no record yet.
pub(crate) struct Assembled {
    pub(crate) trainer: Trainer,
    /// Which data it reads.
    pub(crate) data: Value,
}

/// A run in numbers, before it starts.
#[derive(Clone, Debug, Serialize)]
pub struct Outline {
    /// Numbers in the model that can be trained.
    pub parameters: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Batches of training data in an epoch.
    pub batches_per_epoch: u64,
    /// The ids of the hooks in the order in which they run.
    pub hooks: Vec<String>,
    /// Which data it reads.
    pub data: Value,
}

impl Plan {
    /// Reads a configuration and checks all of it: the keys, the values, the files it names, the hooks.
    pub fn check(document: &Document, registry: &HookRegistry) -> Result<Self, Problems> {
        let mut problems = document.problems();
        let config = RunConfig::from_document(document, &mut problems);
        let mut config = match config {
            Some(config) => config,
            // The other sections are worth a look too: all mistakes at once.
            None => {
                check_rest(document, registry, &mut problems);
                return Err(problems);
            }
        };
        let directory = document.directory();
        for hook in &mut config.hooks {
            hook.value = registry.with_full_paths(&hook.value, &directory);
        }
        let plan = Self::resolve(&mut config, registry, &mut problems);
        match plan {
            Some(plan) if problems.is_empty() => Ok(Self { config, no_problems: problems, ..plan }),
            _ => Err(problems),
        }
    }

    fn resolve(config: &mut RunConfig, registry: &HookRegistry, problems: &mut Problems) -> Option<Self> {
        let model = match config.model.value.is_null() {
            true => None,
            false => config.model.resolve(problems, ModelDescription::problems),
        };
        let train = data_sets(&mut config.data.train, Role::Train, problems);
        let val = data_sets(&mut config.data.val, Role::Val, problems);
        let mut optimizers = Vec::new();
        for section in &mut config.optimizer {
            optimizers.extend(section.resolve(problems, OptimizerConfig::problems));
        }
        let schedule = match &mut config.schedule {
            None => Some(ScheduleConfig::default()),
            Some(section) => section.resolve(problems, ScheduleConfig::problems),
        };
        config.check_hooks(registry, problems);
        if let Some(name) = &config.run.name
            && let Err(error) = check_run_name(name)
        {
            problems.add("run.name", error.to_string());
        }
        if let Some(from) = model.as_ref().and_then(|model| model.from.as_deref())
            && !from.is_dir()
        {
            problems.add("model.from", format!("there is no directory {}", from.display()));
        }
        let (world, no_problems) = (World::alone(), Problems::default());
        let (config, model, schedule) = (config.clone(), model?, schedule?);
        Some(Self { config, model, train, val, optimizers, schedule, world, no_problems })
    }

    /// As [`check`](Self::check), for a new run: its directory must be one that can be made, in `runs_dir` where that is given.
    pub fn check_new(
        document: &Document,
        registry: &HookRegistry,
        runs_dir: Option<&Path>,
    ) -> Result<Self, Problems> {
        let run = RunConfig::lenient(document).run;
        let place = Place { runs: runs_dir.unwrap_or(&run.dir), name: run.name.as_deref() };
        let checked = Self::check(document, registry);
        let mut problems = checked.as_ref().err().cloned().unwrap_or_else(|| document.problems());
        match place.problem() {
            Some((key, problem)) if key == "dir" && runs_dir.is_some() => problems.add("--runs-dir", problem),
            problem => problems.add_keys("run", problem),
        }
        match checked {
            Ok(mut plan) if problems.is_empty() => {
                plan.config.run.dir = place.runs.to_path_buf();
                Ok(plan)
            }
            _ => Err(problems),
        }
    }

    /// The same for a run that several processes train together, of which this is one.
    pub fn in_world(self, world: World) -> Self {
        Self { world, ..self }
    }

    /// The processes that train together; this one alone, unless it was told of others.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What has changed since a run was recorded, and may not change when it is resumed.
    pub fn changed_since(&self, run: &RunDir) -> Result<Vec<String>, Problems> {
        let old = Document::read(&run.config_path())?;
        Ok(resume_differences(old.value(), &self.recorded().to_value()))
    }

    /// The `config.json` of the model that is trained, without building it.
    pub(crate) fn model_json(&self) -> Result<Value, ModelError> {
        self.model.config_json(Path::new(""))
    }

    /// Sequences in a batch of the first training set, and tokens in each; `None` where the model or the data decides.
    pub(crate) fn batch_shape(&self) -> (usize, Option<usize>) {
        self.train.first().map_or((1, None), |set| (set.batch, set.block))
    }

    /// Builds the model, opens the data and makes a trainer of it, with the hooks of the configuration attached.
    pub(crate) fn assemble(&self, registry: &HookRegistry, device: &Device) -> Result<Assembled, Problems> {
        let mut problems = self.no_problems.clone();
        let seed = self.config.run.seed;
        let base = Path::new("");
        let model = match self.model.build(base, seed, device) {
            Ok(model) => model,
            Err(error) => {
                problems.add("model", error.to_string());
                return Err(problems);
            }
        };
        let train = self.open(&self.config.data.train, &self.train, Role::Train, &model, &mut problems);
        let val = self.open(&self.config.data.val, &self.val, Role::Val, &model, &mut problems);
        let optimizers = Optimizer::build(&self.optimizers, model.params(), false);
        let optimizers = optimizers.map_err(|error| problems.add("optimizer", error.to_string())).ok();
        // Where there will be no trainer, the hooks are worth a look all the same: all mistakes at once.
        let hooks = HookManager::new(model.points().clone());
        if !problems.is_empty() {
            self.attach_hooks(&mut problems, |hook| registry.attach(&hooks, hook));
            return Err(problems);
        }
        let fingerprint =
            |loader: &Loader| json!({ "name": loader.name, "data": loader.dataset.fingerprint() });
        let data = json!({
            "train": train.iter().map(fingerprint).collect::<Vec<_>>(),
            "val": val.iter().map(fingerprint).collect::<Vec<_>>(),
        });
        let built = self.build(model, train, val, optimizers.unwrap_or_default());
        let mut trainer = match built {
            Ok(trainer) => trainer,
            Err(error) => {
                match error {
                    TrainError::Schedule(ScheduleError(wrong)) => problems.add_keys("schedule", wrong),
                    error => problems.add("train", error.to_string()),
                }
                self.attach_hooks(&mut problems, |hook| registry.attach(&hooks, hook));
                return Err(problems);
            }
        };
        self.attach_hooks(&mut problems, |hook| trainer.add_hook_from(registry, hook));
        if problems.is_empty() { Ok(Assembled { trainer, data }) } else { Err(problems) }
    }

    /// Puts the run together as if it were to start, and says what came of it. Nothing is made on the disk.
    pub fn outline(&self, registry: &HookRegistry, device: &Device) -> Result<Outline, Problems> {
        let Assembled { trainer, data } = self.assemble(registry, device)?;
        let state = trainer.state();
        Ok(Outline {
            parameters: state.model_params,
            steps: state.total_steps.unwrap_or(0),
            batches_per_epoch: state.batches_per_epoch,
            hooks: trainer.list_hooks().into_iter().map(|hook| hook.id).collect(),
            data,
        })
    }

    /// A trainer for validation alone: it has no record, and of the hooks those that listen inside the model.
    pub fn evaluator(&self, registry: &HookRegistry, device: &Device) -> Result<Trainer, Problems> {
        let trainer = self.assemble(registry, device)?.trainer;
        for hook in trainer.list_hooks().iter().filter(|hook| hook.matched.is_empty()) {
            // It was in the list a moment ago, and nobody else knows this trainer.
            let _ = trainer.hooks().remove_hook(&hook.id);
        }
        Ok(trainer)
    }

    fn build(
        &self,
        model: Model,
        train: Vec<Loader>,
        val: Vec<Loader>,
        optimizers: Vec<Optimizer>,
    ) -> Result<Trainer, TrainError> {
        let seed = self.config.run.seed;
        let mixture = Mixture::new(train, self.config.train.loader_strategy, seed)?;
        let ranks = self.config.ranks.clone();
        let settings = Settings { ranks, ..Settings::from_config(&self.config.train, seed, &mixture) };
        let task =
            LanguageTask::new(model).map_err(|error| TrainError::Setup(format!("the tokenizer: {error}")))?;
        let trainer = Trainer::new(std::sync::Arc::new(task), mixture, optimizers, settings)?;
        Ok(trainer.with_schedule(&self.schedule)?.with_validation(val).with_world(self.world.clone()))
    }

    /// The hooks of the configuration. What every run has, the trainer has already.
    fn attach_hooks(
        &self,
        problems: &mut Problems,
        mut attach: impl FnMut(&Value) -> Result<String, AttachError>,
    ) {
        for section in &self.config.hooks {
            if let Err(error) = attach(&section.value) {
                problems.add(section.path.clone(), error.to_string());
            }
        }
        if let Some(limit) = self.config.train.max_time {
            let hook = json!({ "kind": "max_time", "duration": limit.duration().as_secs_f64() });
            if let Err(error) = attach(&hook) {
                problems.add("train.max_time", error.to_string());
            }
        }
    }

    fn open(
        &self,
        sections: &[Section],
        sets: &[DataConfig],
        role: Role,
        model: &Model,
        problems: &mut Problems,
    ) -> Vec<Loader> {
        let facts = ModelFacts { vocab: Some(model.vocab() as u64), context: Some(model.context()) };
        let usual = if role == Role::Train { "train" } else { "val" };
        let mut loaders = Vec::new();
        for (section, set) in sections.iter().zip(sets) {
            if set.block.is_none()
                && model.context() > LONGEST_UNASKED
                && set.kind != DataKind::ModularAddition
            {
                let context = model.context();
                problems.add(
                    format!("{}.block", section.path),
                    format!(
                        "missing key: the model takes up to {context} tokens, say how many an example has"
                    ),
                );
                continue;
            }
            let name = set.name.clone().unwrap_or_else(|| usual.to_string());
            match self.open_one(set, &name, role, model, &facts) {
                Ok(loader) => loaders.push(loader),
                Err(error) => problems.add(section.path.clone(), error.to_string()),
            }
        }
        loaders
    }

    fn open_one(
        &self,
        set: &DataConfig,
        name: &str,
        role: Role,
        model: &Model,
        facts: &ModelFacts,
    ) -> Result<Loader, BoxError> {
        let path = match set.tokenizer.as_deref() {
            Some("byte") => None,
            Some(path) => Some(PathBuf::from(path)),
            None => model.tokenizer().map(Path::to_path_buf),
        };
        let tokenizer = path.map(|path| Tokenizer::load(&path)).transpose()?;
        let encode = tokenizer.as_ref().map(|tokenizer| {
            move |text: &str| -> Result<Vec<u32>, BoxError> { Ok(tokenizer.encode(text, false)?) }
        });
        let encode = encode.as_ref().map(|encode| encode as &dyn Fn(&str) -> Result<Vec<u32>, BoxError>);
        let mut loader = set.open(name, role, Path::new(""), facts, self.config.run.seed, encode)?;
        if role == Role::Train && self.config.ranks.batch == BatchOf::EachRank {
            loader.batch = loader.batch.saturating_mul(self.world.size());
        }
        if let (Model::Mlp(_), Some(length)) = (model, loader.dataset.sequence_length())
            && length != model.context()
        {
            let context = model.context();
            return Err(format!("examples have {length} tokens, and this mlp takes exactly {context}: set `block` or `context`").into());
        }
        Ok(loader)
    }

    /// The configuration as it is recorded: files by their full path, so that the run can be repeated from anywhere.
    pub fn recorded(&self) -> RunConfig {
        let mut config = self.config.clone();
        let absolute = |value: &mut Value| {
            if let Some(path) = value.as_str()
                && let Ok(full) = std::path::absolute(path)
            {
                *value = full.to_string_lossy().into_owned().into();
            }
        };
        let sets = config.data.train.iter_mut().chain(&mut config.data.val);
        for section in sets.chain([&mut config.model]) {
            for key in ["path", "from"] {
                section.value.get_mut(key).into_iter().for_each(absolute);
            }
            section
                .value
                .get_mut("tokenizer")
                .filter(|value| **value != "byte")
                .into_iter()
                .for_each(absolute);
        }
        config
    }
}

fn data_sets(sections: &mut [Section], role: Role, problems: &mut Problems) -> Vec<DataConfig> {
    let wrong = |set: &DataConfig| {
        let problem = |path: &Path| match path.exists() {
            true => format!("{} is not a regular file", path.display()),
            false => format!("there is no file {}", path.display()),
        };
        let gone = set.path.as_deref().filter(|path| !path.is_file());
        let gone = gone.map(|path| ("path".to_string(), problem(path)));
        set.problems(role).into_iter().chain(gone).collect()
    };
    sections.iter_mut().filter_map(|section| section.resolve(problems, wrong)).collect()
}

/// When some section cannot even be read, the others are still checked.
fn check_rest(document: &Document, registry: &HookRegistry, problems: &mut Problems) {
    let mut rest = RunConfig::lenient(document);
    Plan::resolve(&mut rest, registry, problems);
}

/// The JSON schema of a configuration with these kinds of hooks.
pub fn schema(registry: &HookRegistry) -> Value {
    let parts = SubSchemas {
        model: schema_of::<ModelDescription>(),
        data: schema_of::<DataConfig>(),
        optimizer: schema_of::<OptimizerConfig>(),
        schedule: schema_of::<ScheduleConfig>(),
    };
    tenterhook_train::config::schema(parts, registry)
}
