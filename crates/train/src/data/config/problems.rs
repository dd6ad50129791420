//! Everything that is wrong with the configuration of a data set, before a file is opened.

use super::{DataConfig, DataKind, Role};

/// More examples in one batch are a mistake.
const LARGEST_BATCH: usize = 1 << 20;

use DataKind::{Induction, Jsonl, ModularAddition, Text, Tokens};

const FILES: &[DataKind] = &[Tokens, Text, Jsonl];

impl DataConfig {
    /// Every option that is missing, out of range or of another kind: the key, and what is wrong with the way out.
    pub fn problems(&self, role: Role) -> Vec<(String, String)> {
        let mut found = self.foreign_options();
        found.extend(self.bad_values(role));
        found
    }

    fn foreign_options(&self) -> Vec<(String, String)> {
        // Which options are given, and the kinds they belong to.
        let options: [(&str, bool, &[DataKind]); 12] = [
            ("path", self.path.is_some(), FILES),
            ("block", self.block.is_some(), &[Tokens, Text, Jsonl, Induction]),
            ("dtype", self.dtype.is_some(), &[Tokens]),
            ("tokenizer", self.tokenizer.is_some(), &[Text, Jsonl]),
            ("field", self.field.is_some(), &[Jsonl]),
            ("separator", self.separator.is_some(), &[Jsonl]),
            ("split", self.split.is_some(), FILES),
            ("vocab", self.vocab.is_some(), &[Tokens, Induction]),
            ("examples", self.examples.is_some(), &[Induction]),
            ("predict", self.predict.is_some(), &[Induction]),
            ("modulus", self.modulus.is_some(), &[ModularAddition]),
            ("train_share", self.train_share.is_some(), &[ModularAddition]),
        ];
        let foreign = options.into_iter().filter(|(_, given, kinds)| *given && !kinds.contains(&self.kind));
        foreign
            .map(|(key, _, kinds)| {
                let kinds: Vec<String> = kinds.iter().map(|kind| format!("`{}`", kind.name())).collect();
                let problem = format!(
                    "is for {}, and the kind is `{}`; remove it",
                    kinds.join(" and "),
                    self.kind.name()
                );
                (key.to_string(), problem)
            })
            .collect()
    }

    fn bad_values(&self, role: Role) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut problem = |key: &str, problem: String| found.push((key.to_string(), problem));
        let between = |share: f64| share > 0.0 && share < 1.0;
        if FILES.contains(&self.kind) && self.path.is_none() {
            problem("path", format!("is missing: `{}` reads a file", self.kind.name()));
        }
        if self.path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            problem("path", "is empty; name a file".to_string());
        }
        if self.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            problem("name", "is empty; give a name, or leave it out".to_string());
        }
        if !(1..=LARGEST_BATCH).contains(&self.batch) {
            problem("batch", format!("is {}; use 1 to {LARGEST_BATCH}", self.batch));
        }
        if !(self.weight.is_finite() && self.weight > 0.0) {
            problem("weight", format!("is {}; use a number above 0", self.weight));
        }
        match self.block {
            Some(0) => problem("block", "is 0; use at least 1".to_string()),
            Some(block @ 1..16) if self.kind == Induction => {
                problem("block", format!("is {block}; `induction` needs at least 16, two periods of 8"));
            }
            _ => {}
        }
        if self.vocab.is_some_and(|vocab| !(2..=1 << 32).contains(&vocab)) {
            problem("vocab", format!("must be 2 to {}", 1u64 << 32));
        }
        if self.examples == Some(0) {
            problem("examples", "is 0; use at least 1".to_string());
        }
        if let Some(share) = self.split.filter(|share| !between(*share)) {
            let part = if role == Role::Train { "trains on" } else { "is not validated on" };
            problem("split", format!("is {share}; use a number between 0 and 1, the share that one {part}"));
        }
        if let Some(share) = self.train_share.filter(|share| !between(*share)) {
            problem("train_share", format!("is {share}; use a number between 0 and 1"));
        }
        if let Some(modulus) = self.modulus.filter(|modulus| !(2..=u64::from(u32::MAX)).contains(modulus)) {
            problem("modulus", format!("is {modulus}; use 2 to {}", u32::MAX));
        }
        if self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_empty()) {
            problem("tokenizer", "is empty; use \"byte\" or the path of a `tokenizer.json`".to_string());
        }
        if self.field.as_ref().is_some_and(|field| field.is_empty()) {
            problem("field", "is empty; name the key of the text".to_string());
        }
        found
    }
}

impl DataKind {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tokens => "tokens",
            Text => "text",
            Jsonl => "jsonl",
            Induction => "induction",
            ModularAddition => "modular_addition",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<String> {
        let config: DataConfig = toml::from_str(text).unwrap();
        let mut keys: Vec<String> =
            config.problems(Role::Train).into_iter().map(|(key, _)| key.to_string()).collect();
        keys.sort();
        keys
    }

    #[test]
    fn sound_configurations_have_none() {
        for text in [
            "kind = \"tokens\"\npath = \"a.bin\"\nblock = 8\ndtype = \"uint32\"\nvocab = 100\nsplit = 0.9\nseed = 1",
            "kind = \"text\"\npath = \"a.txt\"\ntokenizer = \"byte\"\nsplit = 0.5",
            "kind = \"jsonl\"\npath = \"a.jsonl\"\nfield = \"body\"\nseparator = 0\nweight = 0.1",
            "kind = \"induction\"\nblock = 16\nvocab = 2\nexamples = 1\npredict = \"all\"",
            "kind = \"modular_addition\"\nmodulus = 97\ntrain_share = 0.4\nshuffle = false",
        ] {
            assert_eq!(keys(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn every_problem_is_listed_with_its_key() {
        for (text, want) in [
            ("kind = \"tokens\"", vec!["path"]),
            (
                "kind = \"text\"\npath = \"\"\nbatch = 0\nblock = 0\nweight = 0.0",
                vec!["batch", "block", "path", "weight"],
            ),
            (
                "kind = \"jsonl\"\nfield = \"\"\ndtype = \"uint16\"\nname = \" \"",
                vec!["dtype", "field", "name", "path"],
            ),
            ("kind = \"induction\"\nblock = 15\nexamples = 0\nvocab = 1", vec!["block", "examples", "vocab"]),
            (
                "kind = \"induction\"\npath = \"x\"\nmodulus = 5\ntokenizer = \"byte\"",
                vec!["modulus", "path", "tokenizer"],
            ),
            (
                "kind = \"modular_addition\"\nblock = 3\nmodulus = 1\ntrain_share = 1.0",
                vec!["block", "modulus", "train_share"],
            ),
            (
                "kind = \"text\"\npath = \"x\"\nsplit = 1.0\nweight = nan\ntokenizer = \"\"",
                vec!["split", "tokenizer", "weight"],
            ),
            ("kind = \"text\"\npath = \"x\"\nbatch = 1048577\nseparator = 1", vec!["batch", "separator"]),
        ] {
            assert_eq!(keys(text), want, "{text}");
        }
    }

    #[test]
    fn the_way_out_is_said() {
        let config: DataConfig = toml::from_str("kind = \"induction\"\ndtype = \"uint16\"").unwrap();
        let problems = config.problems(Role::Val);
        assert_eq!(problems[0].1, "is for `tokens`, and the kind is `induction`; remove it");
    }
}
