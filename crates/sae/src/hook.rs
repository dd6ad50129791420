//! The hook kind `sae`: a model that sees its activations through an autoencoder, with some latents changed.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use candle_core::{D, DType, Tensor};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenterhook_hooks::{
    At, AttachError, Chosen, Cx, Hook, HookRegistry, HookResult, Part, Point, Positions, Refused, Selector,
    Want,
};

use crate::error::SaeError;
use crate::layer::Encoded;
use crate::names::ConceptNames;
use crate::sae::Sae;

/// What a [`SaeHook`] does, and where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaeOptions {
    /// The directory of the autoencoder, as SAELens writes it.
    #[schemars(extend("format" = "path", "examples" = ["sae"]))]
    pub path: PathBuf,
    /// The points or layers; by default the one that the autoencoder's `cfg.json` names.
    #[serde(default)]
    #[schemars(extend("examples" = ["blocks.0.hook_resid_post"]))]
    pub points: Option<Selector>,
    /// Only these positions of the text, one or a list; negative from its end.
    #[serde(default)]
    pub positions: Option<Positions>,
    /// Keeps what the autoencoder misses: with no latent changed, nothing changes. Without, activations become their reconstruction.
    #[serde(default = "yes")]
    pub error_term: bool,
    /// Which latents are changed, and how: `{latent = 12, scale = 0}`, `{latent = "days", add = 5.0}`; `set`, `min` and `max` too.
    #[serde(default)]
    #[schemars(extend("examples" = [[{"latent": 12, "add": 5.0}]]))]
    pub latents: Vec<LatentEdit>,
    /// A CSV or JSON file with names of latents.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub names: Option<PathBuf>,
    /// How much of it is done: 0 changes nothing, 1 does it in full.
    #[serde(default = "in_full")]
    pub strength: f64,
}

fn yes() -> bool {
    true
}

fn in_full() -> f64 {
    1.0
}

impl SaeOptions {
    /// The autoencoder in this directory, at the point that it is for, with nothing changed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            points: None,
            positions: None,
            error_term: true,
            latents: Vec::new(),
            names: None,
            strength: 1.0,
        }
    }
}

/// How one latent is changed: multiplied, then set, then added to, then kept between `min` and `max`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentEdit {
    /// The number of the latent, or its name.
    pub latent: LatentRef,
    /// Multiplies its activation.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Makes its activation this, wherever it was.
    #[serde(default)]
    pub set: Option<f64>,
    /// Adds to its activation.
    #[serde(default)]
    pub add: Option<f64>,
    /// The least it may be.
    #[serde(default)]
    pub min: Option<f64>,
    /// The most it may be.
    #[serde(default)]
    pub max: Option<f64>,
}

impl LatentEdit {
    /// A latent that is not changed yet.
    pub fn of(latent: impl Into<LatentRef>) -> Self {
        Self { latent: latent.into(), scale: None, set: None, add: None, min: None, max: None }
    }

    fn problem(&self) -> Option<String> {
        let given = [self.scale, self.set, self.add, self.min, self.max];
        let latent = &self.latent;
        if given.iter().all(Option::is_none) {
            return Some(format!(
                "latent {latent}: nothing is changed; give `scale`, `set`, `add`, `min` or `max`"
            ));
        }
        if given.iter().flatten().any(|value| !value.is_finite()) {
            return Some(format!("latent {latent}: all numbers must be finite"));
        }
        if self.set.is_some() && self.scale.is_some() {
            return Some(format!("latent {latent}: `scale` has no effect beside `set`"));
        }
        self.min
            .zip(self.max)
            .filter(|(min, max)| min > max)
            .map(|(min, max)| format!("latent {latent}: `min` {min} is above `max` {max}"))
    }

    fn apply(&self, act: &Tensor) -> candle_core::Result<Tensor> {
        let mut act = match (self.set, self.scale) {
            (Some(value), _) => act.affine(0.0, value)?,
            (None, Some(scale)) => (act * scale)?,
            (None, None) => act.clone(),
        };
        if let Some(add) = self.add {
            act = (act + add)?;
        }
        if let Some(min) = self.min {
            act = act.maximum(min)?;
        }
        if let Some(max) = self.max {
            act = act.minimum(max)?;
        }
        Ok(act)
    }
}

/// A latent by number or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatentRef {
    /// Its number, from 0.
    Number(usize),
    /// Its name in the file of names.
    Name(String),
}

impl From<usize> for LatentRef {
    fn from(number: usize) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for LatentRef {
    fn from(name: &str) -> Self {
        Self::Name(name.to_string())
    }
}

impl fmt::Display for LatentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "`{name}`"),
        }
    }
}

impl Serialize for LatentRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number as u64),
            Self::Name(name) => serializer.serialize_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for LatentRef {
    fn deserialize<De: Deserializer<'de>>(deserializer: De) -> Result<Self, De::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = LatentRef;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a latent, or its name")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<LatentRef, E> {
                usize::try_from(number).map(LatentRef::Number).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LatentRef, E> {
                usize::try_from(number)
                    .map(LatentRef::Number)
                    .map_err(|_| E::custom("latents are counted from 0"))
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<LatentRef, E> {
                Ok(name.into())
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for LatentRef {
    fn schema_name() -> Cow<'static, str> {
        "LatentRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}] })
    }
}

/// Puts an autoencoder into a model: activations become their reconstruction, or keep what it misses and change by what some latents
/// change. It does the same while a model trains, is evaluated and generates.
///
/// ```no_run
/// use tenterhook_lens::LanguageModel;
/// use tenterhook_sae::{LatentEdit, SaeHook, SaeOptions};
///
/// let lm = LanguageModel::from_pretrained("path/to/gpt2")?;
/// let options = SaeOptions::new("saes/blocks.8.hook_resid_pre");
/// let more = SaeOptions { latents: vec![LatentEdit { add: Some(20.0), ..LatentEdit::of(1234) }], ..options };
/// lm.hooks().register(SaeHook::new(more)?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SaeHook {
    sae: Sae,
    points: Selector,
    part: Part,
    error_term: bool,
    edits: Vec<(u32, LatentEdit)>,
    strength: f64,
}

impl SaeHook {
    /// The kind's name.
    pub const KIND: &'static str = "sae";

    /// Reads the autoencoder. Everything that is wrong with the options is told at once.
    pub fn new(options: SaeOptions) -> Result<Self, AttachError> {
        let bad = |problems: Vec<String>| AttachError::BadOptions { kind: Self::KIND.to_string(), problems };
        let read = Sae::load(&options.path);
        let names = options.names.as_deref().map(ConceptNames::load).transpose();
        match (read, names) {
            (Ok(sae), Ok(names)) => Self::with(sae, &names.unwrap_or_default(), options).map_err(bad),
            (sae, names) => {
                let problems =
                    sae.err().into_iter().chain(names.err()).map(|error: SaeError| error.to_string());
                Err(bad(problems.collect()))
            }
        }
    }

    /// The same with an autoencoder and names that are there already; `path` and `names` of the options are not looked at.
    pub fn with(sae: Sae, names: &ConceptNames, options: SaeOptions) -> Result<Self, Vec<String>> {
        let mut problems: Vec<String> = options.latents.iter().filter_map(LatentEdit::problem).collect();
        let part = Part { positions: options.positions, ..Part::default() };
        problems.extend(part.problems());
        if !options.strength.is_finite() {
            problems.push(format!("`strength` is {}, it must be a finite number", options.strength));
        }
        if options.latents.is_empty() && options.error_term {
            problems.push(
                "nothing would change: choose `latents`, or set `error_term = false` to replace activations by their reconstruction"
                    .to_string(),
            );
        }
        if let Some(head) = sae.config().hook_head_index() {
            problems.push(format!("the autoencoder is for head {head} alone, which is not supported"));
        }
        let points = options.points.or_else(|| sae.config().hook_name().map(Selector::from));
        if points.is_none() {
            problems.push("`points` is missing, and the autoencoder's cfg.json names no hook".to_string());
        }
        let mut edits: Vec<(u32, LatentEdit)> = Vec::new();
        for edit in options.latents {
            let latent = match &edit.latent {
                LatentRef::Number(number) => names.resolve(&number.to_string(), sae.config().d_sae),
                LatentRef::Name(name) => {
                    names.find(name).and_then(|latent| names.resolve(&latent.to_string(), sae.config().d_sae))
                }
            };
            match latent {
                Ok(latent) if edits.iter().any(|(other, _)| *other as usize == latent) => {
                    problems.push(format!("latent {latent} is changed twice"));
                }
                Ok(latent) => edits.push((latent as u32, edit)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        match points {
            Some(points) if problems.is_empty() => Ok(Self {
                sae,
                points,
                part,
                error_term: options.error_term,
                edits,
                strength: options.strength,
            }),
            _ => Err(problems),
        }
    }

    /// By how much the chosen latents change, `[.., edits]`.
    fn changes(&self, encoded: &Encoded, latents: &[u32]) -> candle_core::Result<Tensor> {
        let acts = &encoded.acts;
        let device = acts.device();
        let old = acts.index_select(&Tensor::new(latents, device)?, acts.rank() - 1)?;
        let columns = self.edits.iter().enumerate().map(|(i, (_, edit))| {
            let column = old.narrow(D::Minus1, i, 1)?;
            edit.apply(&column)? - column
        });
        Tensor::cat(&columns.collect::<candle_core::Result<Vec<_>>>()?, acts.rank() - 1)
    }

    fn edited(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let encoded = self.sae.encode(x)?;
        let latents: Vec<u32> = self.edits.iter().map(|(latent, _)| *latent).collect();
        let effect = match latents.is_empty() {
            true => None,
            false => Some(self.sae.layer().effect(&encoded, &latents, &self.changes(&encoded, &latents)?)?),
        };
        let change = match (self.error_term, effect) {
            (true, Some(effect)) => effect,
            (true, None) => return Ok(x.clone()),
            (false, effect) => {
                let missed = (self.sae.decode(&encoded)? - x.to_dtype(DType::F32)?)?;
                effect.map_or_else(|| Ok(missed.clone()), |effect| &missed + effect)?
            }
        };
        x + (change * self.strength)?.to_dtype(x.dtype())?
    }
}

impl Hook for SaeHook {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::edit(self.points.clone())]
    }

    fn fits(&self, point: &Point) -> HookResult {
        self.part.fits(point)
    }

    fn edit(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult<Option<Tensor>> {
        let width: usize = x.dims().iter().skip(2).product();
        if width != self.sae.config().d_in {
            return Err(Box::new(Refused(format!(
                "the autoencoder is for activations {} wide, and those at `{}` are {width} wide",
                self.sae.config().d_in,
                at.name()
            ))));
        }
        let chosen = self.part.choose(at, x, cx)?;
        match chosen {
            Chosen::Nothing => Ok(None),
            chosen => chosen.put(x, &self.edited(x)?),
        }
    }
}

/// Adds the kind `sae` to a registry. A name that is taken is an error.
pub fn register_kinds(registry: &mut HookRegistry) -> Result<(), AttachError> {
    registry.register_builtin::<SaeOptions>(
        SaeHook::KIND,
        "replaces activations by a sparse autoencoder's reconstruction, or changes some of its latents",
        |options| Ok(Box::new(SaeHook::new(options)?)),
    )
}
