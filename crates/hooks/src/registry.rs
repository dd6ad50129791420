//! Hooks by name, as configuration files have them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{AttachError, HookResult, nearest};
use crate::hook::Hook;
use crate::kinds::capture::Capture;
use crate::kinds::debug::Debug;
use crate::kinds::gradient_flow::GradientFlow;
use crate::kinds::monitor::Monitor;
use crate::manager::HookManager;
use crate::options::HookOptions;

/// A sort of hook that a registry can make.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindInfo {
    /// The name in configurations, such as `capture` or `my_crate.hooks.Peak`.
    pub name: String,
    /// What it does, in a sentence.
    pub doc: String,
    /// Whether its hooks run after the user's.
    pub builtin: bool,
    /// Its own options; every kind also has [`HookRegistry::common_options`].
    pub options: Vec<OptionInfo>,
}

/// An option of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptionInfo {
    /// The key.
    pub name: String,
    /// Other keys for the same.
    pub aliases: Vec<String>,
    /// What it is for.
    pub doc: String,
    /// The value without the option; `None` when it must be given.
    pub default: Option<Value>,
    /// Whether it must be given.
    pub required: bool,
    /// The JSON schema of its values.
    pub schema: Value,
}

/// Makes a hook of the options of its kind, or says everything that is wrong with them.
type Build = dyn Fn(&Map<String, Value>) -> Result<Box<dyn Hook>, Vec<String>> + Send + Sync;

#[derive(Clone)]
struct Kind {
    info: KindInfo,
    build: Arc<Build>,
}

/// The kinds of hooks that can be made from configuration: a name, options, and a factory for each.
///
/// ```
/// # use schemars::JsonSchema;
/// # use serde::Deserialize;
/// use serde_json::json;
/// use tenterhook_hooks::{Hook, HookManager, HookRegistry, Point, PointTable, hook_fn};
///
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct ScaleOptions {
///     /// Where.
///     points: String,
///     /// By how much.
///     by: f64,
/// }
///
/// let mut registry = HookRegistry::standard();
/// registry.register::<ScaleOptions>("my_crate.Scale", "multiplies values", |options| {
///     Ok(Box::new(hook_fn::edit(options.points, move |_, x, _| Ok(Some((x * options.by)?)))))
/// })?;
///
/// let mut points = PointTable::builder();
/// points.point(Point::new("blocks.0.hook_mlp_out", "batch pos d_model"))?;
/// let hooks = HookManager::new(points.build());
/// registry.attach(&hooks, &json!({"kind": "my_crate.Scale", "points": "*.hook_mlp_out", "by": 0.5, "id": "half"}))?;
///
/// let error = registry.attach(&hooks, &json!({"kind": "my_crate.Scale", "point": "*", "every": "day"})).unwrap_err();
/// assert!(error.to_string().contains("unknown option `point`; nearest: `points`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct HookRegistry {
    kinds: BTreeMap<String, Kind>,
}

impl HookRegistry {
    /// A registry without any kind.
    pub fn new() -> Self {
        Self::default()
    }

    /// The kinds of this crate: `capture`, `debug`, `gradient_flow` and `monitor`.
    pub fn standard() -> Self {
        let mut kinds = Self::new();
        kinds.put(Capture::KIND, "keeps tensors", true, |options| Ok(Box::new(Capture::new(options)?)));
        kinds.put(Debug::KIND, "looks for NaN, infinity, thresholds and wrong shapes", true, |options| {
            Ok(Box::new(Debug::new(options)?))
        });
        kinds.put(
            GradientFlow::KIND,
            "says which layers get too little or too much gradient",
            true,
            |options| Ok(Box::new(GradientFlow::new(options)?)),
        );
        kinds.put(Monitor::KIND, "measures tensors: mean, norm, percentiles, time", true, |options| {
            Ok(Box::new(Monitor::new(options)?))
        });
        kinds
    }

    /// Adds a kind that comes with Tenterhook: its hooks run after the user's. Otherwise like [`register`](Self::register).
    pub fn register_builtin<Options: DeserializeOwned + JsonSchema + 'static>(
        &mut self,
        kind: &str,
        doc: &str,
        factory: impl Fn(Options) -> HookResult<Box<dyn Hook>> + Send + Sync + 'static,
    ) -> Result<(), AttachError> {
        self.check(kind, &options_of::<Options>())?;
        self.put(kind, doc, true, factory);
        Ok(())
    }

    /// Adds a kind of the user's. Its name may be like a path. A name that is taken, or an option named like a common one, is an error.
    ///
    /// An option with `#[serde(alias = "x")]` says so in its schema too: `#[schemars(extend("aliases" = ["x"]))]`.
    pub fn register<Options: DeserializeOwned + JsonSchema + 'static>(
        &mut self,
        kind: &str,
        doc: &str,
        factory: impl Fn(Options) -> HookResult<Box<dyn Hook>> + Send + Sync + 'static,
    ) -> Result<(), AttachError> {
        self.check(kind, &options_of::<Options>())?;
        self.put(kind, doc, false, factory);
        Ok(())
    }

    fn check(&self, kind: &str, options: &[OptionInfo]) -> Result<(), AttachError> {
        if self.kinds.contains_key(kind) {
            return Err(AttachError::DuplicateKind(kind.to_string()));
        }
        let common = Self::common_options();
        let reserved = |name: &str| name == "kind" || find(&common, name).is_some();
        let clashing = options.iter().flat_map(OptionInfo::names).filter(|name| reserved(name));
        let problems: Vec<String> =
            clashing.map(|name| format!("option `{name}` would hide the one that every hook has")).collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(AttachError::BadOptions { kind: kind.to_string(), problems }),
        }
    }

    fn put<Options: DeserializeOwned + JsonSchema + 'static>(
        &mut self,
        kind: &str,
        doc: &str,
        builtin: bool,
        factory: impl Fn(Options) -> HookResult<Box<dyn Hook>> + Send + Sync + 'static,
    ) {
        let options = options_of::<Options>();
        let known = options.clone();
        let build = move |given: &Map<String, Value>| factory(parse(given, &known)?).map_err(problems_of);
        let info = KindInfo { name: kind.to_string(), doc: doc.to_string(), builtin, options };
        self.kinds.insert(kind.to_string(), Kind { info, build: Arc::new(build) });
    }

    /// Every kind, by name.
    pub fn kinds(&self) -> impl Iterator<Item = &KindInfo> {
        self.kinds.values().map(|kind| &kind.info)
    }

    /// One kind.
    pub fn kind(&self, name: &str) -> Result<&KindInfo, AttachError> {
        self.find(name).map(|kind| &kind.info)
    }

    /// The options that every kind has.
    pub fn common_options() -> Vec<OptionInfo> {
        options_of::<HookOptions>()
    }

    /// Makes a hook of a table with `kind`, common options and options of the kind. All problems are told at once.
    pub fn build(&self, spec: &Value) -> Result<(Box<dyn Hook>, HookOptions), AttachError> {
        let no_kind = || AttachError::BadOptions {
            kind: "?".to_string(),
            problems: vec!["a hook is a table with `kind` and options".to_string()],
        };
        let spec = spec.as_object().ok_or_else(no_kind)?;
        let name = spec.get("kind").and_then(Value::as_str).ok_or_else(no_kind)?;
        let kind = self.find(name)?;

        let common = Self::common_options();
        let (mut for_common, mut for_kind, mut problems) = (Map::new(), Map::new(), Vec::new());
        for (key, value) in spec.iter().filter(|(key, _)| *key != "kind") {
            if find(&common, key).is_some() {
                for_common.insert(key.clone(), value.clone());
            } else if find(&kind.info.options, key).is_some() {
                for_kind.insert(key.clone(), value.clone());
            } else {
                problems.push(unknown_option(key, kind.info.options.iter().chain(&common)));
            }
        }
        let hook = (kind.build)(&for_kind).map_err(|more| problems.extend(more)).ok();
        let options = parse::<HookOptions>(&for_common, &common).and_then(|options| {
            let wrong = options.problems();
            if wrong.is_empty() { Ok(options) } else { Err(wrong) }
        });
        match (hook, options) {
            (Some(hook), Ok(options)) if problems.is_empty() => {
                Ok((hook, HookOptions { builtin: kind.info.builtin, ..options }))
            }
            (_, options) => {
                problems.extend(options.err().unwrap_or_default());
                Err(AttachError::BadOptions { kind: name.to_string(), problems })
            }
        }
    }

    /// The same description with the files that it names by their full path: those that are not are looked for in `base`, the
    /// directory of the file it stands in.
    pub fn with_full_paths(&self, spec: &Value, base: &Path) -> Value {
        let mut spec = spec.clone();
        let kind = spec.get("kind").and_then(Value::as_str).and_then(|name| self.kinds.get(name));
        let is_path = |option: &&OptionInfo| option.schema["format"] == "path";
        let names: Vec<String> =
            kind.iter().flat_map(|kind| &kind.info.options).filter(is_path).map(|o| o.name.clone()).collect();
        for name in names {
            if let Some(Value::String(path)) = spec.get_mut(&name)
                && !path.is_empty()
                && let Ok(full) = std::path::absolute(base.join(&*path))
            {
                *path = full.to_string_lossy().into_owned();
            }
        }
        spec
    }

    /// Makes a hook and registers it; returns its id.
    pub fn attach(&self, hooks: &HookManager, spec: &Value) -> Result<String, AttachError> {
        let (hook, options) = self.build(spec)?;
        hooks.register_boxed(hook, options)
    }

    fn find(&self, name: &str) -> Result<&Kind, AttachError> {
        self.kinds.get(name).ok_or_else(|| AttachError::UnknownKind {
            kind: name.to_string(),
            nearest: nearest(name, self.kinds.keys().map(String::as_str), 3),
        })
    }
}

impl OptionInfo {
    /// A value to begin with: the one its author gives as an example.
    pub fn example(&self) -> Option<&Value> {
        self.schema["examples"].get(0)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

fn find<'a>(options: &'a [OptionInfo], name: &str) -> Option<&'a OptionInfo> {
    options.iter().find(|option| option.names().any(|known| known == name))
}

fn unknown_option<'a>(key: &str, known: impl Iterator<Item = &'a OptionInfo>) -> String {
    let nearest = nearest(key, known.flat_map(OptionInfo::names), 3);
    let names: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    let hint = if names.is_empty() { String::new() } else { format!("; nearest: {}", names.join(", ")) };
    format!("unknown option `{key}`{hint}")
}

/// Reads options. serde stops at the first mistake, so on failure every option is tried by itself, beside examples of those that must
/// be there.
fn parse<Options: DeserializeOwned>(
    given: &Map<String, Value>,
    known: &[OptionInfo],
) -> Result<Options, Vec<String>> {
    let read = |options: Map<String, Value>| Options::deserialize(Value::Object(options));
    let whole = match read(given.clone()) {
        Ok(options) => return Ok(options),
        Err(error) => error.to_string(),
    };
    let absent =
        |option: &&OptionInfo| option.required && !option.names().any(|name| given.contains_key(name));
    let missing: Vec<String> = known.iter().filter(absent).map(|option| option.name.clone()).collect();
    let is_about_another = |text: &str| {
        let required = known.iter().filter(|option| option.required);
        required.flat_map(OptionInfo::names).any(|name| text == format!("missing field `{name}`"))
    };
    let examples = known.iter().filter(|option| option.required);
    let examples: Map<String, Value> =
        examples.filter_map(|o| Some((o.name.clone(), o.example()?.clone()))).collect();
    let alone = given.iter().filter_map(|(key, value)| {
        let mut beside = examples.clone();
        if let Some(option) = known.iter().find(|option| option.names().any(|name| name == key)) {
            beside.remove(&option.name);
        }
        beside.insert(key.clone(), value.clone());
        let text = read(beside).err()?.to_string();
        (!is_about_another(&text)).then(|| format!("`{key}`: {text}"))
    });
    let mut problems: Vec<String> = alone.collect();
    problems.extend(missing.iter().map(|name| format!("option `{name}` is missing")));
    Err(if problems.is_empty() { vec![whole] } else { problems })
}

fn problems_of(error: crate::error::BoxError) -> Vec<String> {
    match error.downcast_ref::<AttachError>() {
        Some(AttachError::BadOptions { problems, .. }) => problems.clone(),
        _ => vec![error.to_string()],
    }
}

/// The options of a struct, as its JSON schema describes them.
fn options_of<Options: JsonSchema>() -> Vec<OptionInfo> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = Value::from(settings.into_generator().into_root_schema_for::<Options>());
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|field| field == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    properties
        .map(|(name, schema)| OptionInfo {
            name: name.clone(),
            aliases: schema["aliases"].as_array().into_iter().flatten().map(text).collect(),
            doc: text(&schema["description"]),
            default: schema.get("default").cloned(),
            required: required(name),
            schema: schema.clone(),
        })
        .collect()
}
