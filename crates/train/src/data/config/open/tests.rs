//! Configurations as files have them, opened against a directory.

use std::fs;

use candle_core::Device;
use tenterhook_hooks::BoxError;

use super::*;

const MODEL: ModelFacts = ModelFacts { vocab: Some(300), context: Some(16) };

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<u8> = (0..200u16).flat_map(u16::to_le_bytes).collect();
        fs::write(dir.path().join("train.bin"), tokens).unwrap();
        fs::write(dir.path().join("a.txt"), "a rose is a rose is a rose, ".repeat(10)).unwrap();
        fs::write(dir.path().join("a.jsonl"), "{\"body\": \"one two three four\"}\n".repeat(10)).unwrap();
        Self(dir)
    }

    fn open_with(
        &self,
        text: &str,
        role: Role,
        model: ModelFacts,
        encode: Option<&Encode>,
    ) -> Result<Loader, DataError> {
        let config: DataConfig = toml::from_str(text).unwrap();
        config.open(role.name(), role, self.0.path(), &model, 42, encode)
    }

    fn open(&self, text: &str, role: Role) -> Loader {
        self.open_with(text, role, MODEL, None).unwrap()
    }

    fn fails(&self, text: &str, model: ModelFacts, part: &str) {
        let error = self.open_with(text, Role::Train, model, None).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn words(text: &str) -> Result<Vec<u32>, BoxError> {
    Ok(text.split(' ').map(|word| word.len() as u32).collect())
}

fn inputs(loader: &Loader) -> Vec<Vec<u32>> {
    let all: Vec<u64> = (0..loader.dataset.len()).collect();
    loader.dataset.batch(&all, &Device::Cpu).unwrap().get("inputs").unwrap().to_vec2().unwrap()
}

#[test]
fn defaults_come_from_role_and_model() {
    let place = Place::new();
    let text = "kind = \"tokens\"\npath = \"train.bin\"";
    let train = place.open(text, Role::Train);
    assert_eq!((train.name.as_str(), train.batch, train.shuffle, train.seed), ("train", 8, true, 42));
    assert_eq!((train.dataset.sequence_length(), train.dataset.vocab()), (Some(16), Some(200)));
    assert!(!place.open(text, Role::Val).shuffle);
    let other = place.open(
        "kind = \"text\"\npath = \"a.txt\"\nname = \"roses\"\nseed = 1\nblock = 4\nshuffle = true",
        Role::Val,
    );
    assert_eq!((other.name.as_str(), other.shuffle, other.seed), ("roses", true, 1));
    assert_eq!(inputs(&other)[0], [97, 32, 114, 111]);
}

#[test]
fn the_tokenizer_is_the_callers_unless_bytes_are_asked_for() {
    let place = Place::new();
    let vocab = |text: &str, encode: Option<&Encode>| {
        place.open_with(text, Role::Train, MODEL, encode).map(|loader| loader.dataset.vocab())
    };
    let text = "kind = \"jsonl\"\npath = \"a.jsonl\"\nfield = \"body\"\nseparator = 9\n";
    assert_eq!(vocab(text, Some(&words)).unwrap(), Some(10));
    assert_eq!(vocab(text, None).unwrap(), Some(256));
    assert_eq!(vocab(&format!("{text}tokenizer = \"byte\""), Some(&words)).unwrap(), Some(256));
    assert_eq!(vocab(&format!("{text}tokenizer = \"t.json\""), Some(&words)).unwrap(), Some(10));
    let error = vocab(&format!("{text}tokenizer = \"t.json\""), None).unwrap_err().to_string();
    assert!(error.contains("`train` wants tokenizer `t.json`"), "{error}");
}

#[test]
fn a_split_file_serves_for_both_without_overlap() {
    let place = Place::new();
    let text = "kind = \"tokens\"\npath = \"train.bin\"\nblock = 10\nsplit = 0.8";
    let [train, val] = [Role::Train, Role::Val].map(|role| inputs(&place.open(text, role)));
    assert_eq!((train.len(), val.len()), (15, 4));
    assert!([train, val].concat().concat().into_iter().eq(0..190));
    place.fails(
        "kind = \"tokens\"\npath = \"train.bin\"\nblock = 16\nsplit = 0.01",
        MODEL,
        "leaves none for train",
    );
}

#[test]
fn generated_validation_is_not_what_was_trained_on() {
    let place = Place::new();
    let induction = "kind = \"induction\"\nexamples = 200\nseed = 3";
    let [train, val] = [Role::Train, Role::Val].map(|role| inputs(&place.open(induction, role)));
    assert!(val.iter().all(|row| !train.contains(row)));
    assert_eq!(place.open("kind = \"induction\"", Role::Train).dataset.len(), 8192);
    assert_eq!(place.open("kind = \"induction\"", Role::Val).dataset.len(), 512);
    let named = format!("{induction}\nname = \"more\"");
    assert!(inputs(&place.open(&named, Role::Train)).iter().all(|row| !train.contains(row)));

    let [train, val] =
        [Role::Train, Role::Val].map(|role| inputs(&place.open("kind = \"modular_addition\"", role)));
    assert_eq!((train.len(), train.len() + val.len()), (3831, 113 * 113));
    let mut both = [train, val].concat();
    both.sort_unstable();
    both.dedup();
    assert_eq!(both.len(), 113 * 113);
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    let place = Place::new();
    let small = ModelFacts { vocab: Some(100), context: Some(16) };
    place.fails("kind = \"tokens\"\npath = \"train.bin\"", small, "token 100 of ");
    place.fails(
        "kind = \"text\"\npath = \"a.txt\"",
        small,
        "`train` needs a vocabulary of 256, and there is one of 100",
    );
    place.fails("kind = \"modular_addition\"", small, "needs a vocabulary of 114");
    place.fails("kind = \"induction\"\nvocab = 101", small, "needs a vocabulary of 101");
    place.fails(
        "kind = \"induction\"\nblock = 17",
        MODEL,
        "examples of 17 positions, and the model takes 16; use a smaller `block`",
    );
    place.fails("kind = \"tokens\"\npath = \"train.bin\"\nvocab = 150", MODEL, "token 150 of ");
    let tiny = ModelFacts { vocab: Some(300), context: Some(2) };
    place.fails("kind = \"modular_addition\"", tiny, "use a model that takes more");
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    let place = Place::new();
    let unknown = ModelFacts::default();
    place.fails("kind = \"induction\"\nblock = 16", unknown, "`vocab` is missing");
    place.fails("kind = \"text\"\npath = \"a.txt\"", unknown, "`block` is missing");
    place.fails(
        "kind = \"text\"\nbatch = 0",
        MODEL,
        "data set `train`: `path` is missing: `text` reads a file; `batch` is 0",
    );
    place.fails("kind = \"text\"\npath = \"b.txt\"", MODEL, "b.txt");
    let text = "kind = \"tokens\"\npath = \"train.bin\"\nblock = 16";
    assert_eq!(place.open_with(text, Role::Train, unknown, None).unwrap().dataset.vocab(), None);
}
