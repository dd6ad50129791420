//! Everything that is wrong with a description, each with the way out.

use super::{ModelDescription, ModelKind};
use crate::config::{LARGEST_SIZE, MOST_LAYERS};

/// More than anybody trains from scratch in one process: the weights and what trains them would take 160 gigabytes.
const MOST_NEW_PARAMETERS: u128 = 10_000_000_000;

const TRANSFORMERS: &[ModelKind] = &[ModelKind::Gpt, ModelKind::Llama, ModelKind::Neox];
const ROTARY: &[ModelKind] = &[ModelKind::Llama, ModelKind::Neox];

/// The keys that only some kinds have, and what the others have instead.
const SPECIAL: [(&str, &[ModelKind], &str); 6] = [
    ("n_heads", TRANSFORMERS, "it has no attention"),
    ("n_kv_heads", &[ModelKind::Llama], "each of its heads has its own keys and values"),
    ("tied", TRANSFORMERS, "its head reads the last hidden layer"),
    ("init_std", TRANSFORMERS, "its weights begin by the size of what each layer reads"),
    ("rope_theta", ROTARY, "it has no rotary positions"),
    ("norm_eps", TRANSFORMERS, "it has no norms"),
];

impl ModelKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Llama => "llama",
            Self::Neox => "neox",
            Self::Mlp => "mlp",
        }
    }
}

/// Keys with what is wrong with them, in the order they were found.
#[derive(Default)]
struct Found(Vec<(String, String)>);

impl Found {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.0.push((key.to_string(), message.into()));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(found, _)| found == key)
    }
}

impl ModelDescription {
    /// Everything that is wrong, as far as it can be known without opening a file: the key, and what to do about it.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Found::default();
        self.check_values(&mut found);
        match (self.kind, &self.from) {
            (Some(kind), Some(_)) => {
                let kind = kind.name();
                let message = format!(
                    "a model is either new or loaded: remove `from` for a new {kind}, or `kind` and its sizes to \
                     load the directory"
                );
                found.add("from", message);
            }
            (None, None) => found.add(
                "kind",
                "is missing: `gpt`, `llama`, `neox` or `mlp` for a new model, or `from` with the directory of an \
                 existing one",
            ),
            (None, Some(_)) => self.check_loaded(&mut found),
            (Some(kind), None) => self.check_new(kind, &mut found),
        }
        found.0
    }

    /// The keys that describe a new model, and whether they are given.
    fn given(&self) -> [(&'static str, bool); 13] {
        [
            ("vocab", self.vocab.is_some()),
            ("context", self.context.is_some()),
            ("d_model", self.d_model.is_some()),
            ("n_heads", self.n_heads.is_some()),
            ("n_kv_heads", self.n_kv_heads.is_some()),
            ("n_layers", self.n_layers.is_some()),
            ("d_mlp", self.d_mlp.is_some()),
            ("activation", self.activation.is_some()),
            ("tied", self.tied.is_some()),
            ("init_std", self.init_std.is_some()),
            ("rope_theta", self.rope_theta.is_some()),
            ("norm_eps", self.norm_eps.is_some()),
            ("seed", self.seed.is_some()),
        ]
    }

    fn is_given(&self, key: &str) -> bool {
        self.given().contains(&(key, true))
    }

    fn check_values(&self, found: &mut Found) {
        let sizes = [
            ("vocab", self.vocab, LARGEST_SIZE),
            ("context", self.context, LARGEST_SIZE),
            ("d_model", self.d_model, LARGEST_SIZE),
            ("n_heads", self.n_heads, LARGEST_SIZE),
            ("n_kv_heads", self.n_kv_heads, LARGEST_SIZE),
            ("n_layers", self.n_layers, MOST_LAYERS),
        ];
        for (key, size, most) in sizes {
            if let Some(size) = size.filter(|size| !(1..=most).contains(size)) {
                found.add(key, format!("must be from 1 to {most}, not {size}"));
            }
        }
        if let Some(size) = self.d_mlp.filter(|size| *size > LARGEST_SIZE) {
            found.add("d_mlp", format!("must be from 0 (attention alone) to {LARGEST_SIZE}, not {size}"));
        }
        if let Some(rate) = self.dropout.filter(|rate| !(0.0..1.0).contains(rate)) {
            found.add("dropout", format!("must be a rate of at least 0 and below 1, not {rate}"));
        }
        for (key, number) in [("init_std", self.init_std), ("norm_eps", self.norm_eps)] {
            if let Some(number) = number.filter(|number| !(0.0..=1.0).contains(number)) {
                found.add(key, format!("must be from 0 to 1, not {number}"));
            }
        }
        if let Some(theta) = self.rope_theta.filter(|theta| !theta.is_finite() || *theta <= 0.0) {
            found.add("rope_theta", format!("must be a positive number such as 10000, not {theta}"));
        }
    }

    fn check_loaded(&self, found: &mut Found) {
        for (key, _) in self.given().into_iter().filter(|(_, given)| *given) {
            let why = match key {
                "seed" => "nothing in a loaded model is random",
                _ => "the model in `from` has its own",
            };
            found.add(key, format!("{why}: remove `{key}`, or `from` to describe a new model"));
        }
    }

    fn check_new(&self, kind: ModelKind, found: &mut Found) {
        let name = kind.name();
        for (key, kinds, why) in SPECIAL {
            if self.is_given(key) && !kinds.contains(&kind) {
                let kinds = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
                found.add(
                    key,
                    format!("does not belong to the kind `{name}`: {why}; remove it (it is for {kinds})"),
                );
            }
        }
        let heads = (kind != ModelKind::Mlp).then_some(("n_heads", "4"));
        let needed = [("context", "128"), ("d_model", "128"), ("n_layers", "4")];
        for (key, example) in needed.into_iter().chain(heads).filter(|(key, _)| !self.is_given(key)) {
            found.add(key, format!("is missing: a new {name} needs it, for example `{key} = {example}`"));
        }
        if self.vocab.is_none() && self.tokenizer.is_none() {
            let message = format!(
                "is missing: a new {name} needs to know how many token ids there are; give `vocab`, or a `tokenizer`"
            );
            found.add("vocab", message);
        }
        match (kind, self.d_mlp) {
            (ModelKind::Mlp, Some(0)) => {
                found.add("d_mlp", "an mlp without hidden layers is no mlp: at least 1")
            }
            (_, Some(0)) if self.activation.is_some() => {
                found.add("activation", "there is no MLP to have one (`d_mlp` is 0): remove it");
            }
            _ => {}
        }
        if kind != ModelKind::Mlp {
            self.check_heads(kind, found);
        }
        if found.is_empty() {
            self.check_whole(kind, found);
        }
    }

    /// How the heads divide the width.
    fn check_heads(&self, kind: ModelKind, found: &mut Found) {
        let (Some(d_model), Some(n_heads)) = (self.d_model, self.n_heads) else { return };
        if found.has("d_model") || found.has("n_heads") {
            return;
        }
        if !d_model.is_multiple_of(n_heads) {
            let near = divisors_near(d_model, n_heads);
            found.add(
                "n_heads",
                format!("{n_heads} heads cannot divide `d_model` {d_model} among themselves: {near} could"),
            );
            return;
        }
        let head = d_model / n_heads;
        let fits = match kind {
            ModelKind::Llama => head.is_multiple_of(2),
            ModelKind::Neox => head >= 2,
            ModelKind::Gpt | ModelKind::Mlp => true,
        };
        if !fits {
            let wanted = if kind == ModelKind::Llama { "an even size" } else { "a size of at least 2" };
            let message = format!(
                "`d_model` {d_model} over {n_heads} heads makes heads of size {head}: rotary positions turn pairs, \
                 so a head needs {wanted}; use fewer heads or another `d_model`"
            );
            found.add("n_heads", message);
        }
        if let Some(n_kv_heads) =
            self.n_kv_heads.filter(|_| kind == ModelKind::Llama && !found.has("n_kv_heads"))
            && !n_heads.is_multiple_of(n_kv_heads)
        {
            let near = divisors_near(n_heads, n_kv_heads);
            let message =
                format!("{n_kv_heads} kv heads cannot be shared evenly by {n_heads} heads: {near} could");
            found.add("n_kv_heads", message);
        }
    }

    /// What no single key is to blame for.
    fn check_whole(&self, kind: ModelKind, found: &mut Found) {
        // The tokenizer's ids are counted when it is loaded.
        let vocab = self.vocab.unwrap_or(1);
        let (parameters, valid) = match kind {
            ModelKind::Mlp => {
                let config = self.mlp_config(vocab);
                (config.parameters(), config.validate())
            }
            _ => {
                let config = self.transformer_config(kind, vocab);
                (config.parameters(), config.validate())
            }
        };
        if parameters > MOST_NEW_PARAMETERS {
            let message = format!(
                "these sizes make a model of {parameters} parameters, more than the {MOST_NEW_PARAMETERS} that a new one may \
                 have: use smaller ones"
            );
            found.add("d_model", message);
        } else if let Err(error) = valid {
            found.add("kind", error.to_string());
        }
    }
}

/// The nearest numbers that divide `whole`, for a message.
fn divisors_near(whole: usize, wanted: usize) -> String {
    let divisors = || {
        let small = (1..).take_while(move |n| n * n <= whole).filter(move |n| whole.is_multiple_of(*n));
        small.flat_map(move |n| [n, whole / n])
    };
    let below = divisors().filter(|n| *n <= wanted).max().unwrap_or(1);
    let above = divisors().filter(|n| *n >= wanted).min().unwrap_or(whole);
    if below == above { below.to_string() } else { format!("{below} or {above}") }
}
