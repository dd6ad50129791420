//! Models by name: from the cache, from a server, and what is said when neither has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use candle_core::{DType, Device};
use tenterhook_models::Transformer;
use tenterhook_models::hub::Hub;

use crate::hub_server::{COMMIT, HubServer, Manner};
use crate::support::data;

const REPO: &str = "some-owner/tiny.gpt2";

fn files(family: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &str| (name.to_string(), fs::read(data().join(family).join(name)).unwrap());
    ["config.json", "model.safetensors"].map(read).into()
}

/// The same weights in two files and an index.
fn sharded() -> BTreeMap<String, Vec<u8>> {
    let whole = files("gpt2");
    let tensors = safetensors::SafeTensors::deserialize(&whole["model.safetensors"]).unwrap();
    let mut shards = [Vec::new(), Vec::new()];
    let mut map = BTreeMap::new();
    for (i, (name, view)) in tensors.tensors().into_iter().enumerate() {
        map.insert(name.clone(), format!("model-0000{}-of-00002.safetensors", 1 + i % 2));
        shards[i % 2].push((name, view));
    }
    let mut all = BTreeMap::from([("config.json".to_string(), whole["config.json"].clone())]);
    for (i, shard) in shards.into_iter().enumerate() {
        let bytes = safetensors::serialize(shard, None).unwrap();
        all.insert(format!("model-0000{}-of-00002.safetensors", 1 + i), bytes);
    }
    let index = serde_json::json!({ "weight_map": map });
    all.insert("model.safetensors.index.json".to_string(), index.to_string().into_bytes());
    all
}

fn hub(cache: &Path, server: &HubServer) -> Hub {
    Hub { endpoint: server.address.clone(), patience: Duration::from_secs(20), ..Hub::new(cache) }
}

fn load(dir: &Path) -> Vec<u8> {
    let model = Transformer::load(dir, DType::F32, &Device::Cpu).unwrap();
    model.params().iter().flat_map(|param| param.name().bytes().collect::<Vec<_>>()).collect()
}

#[test]
fn a_model_is_downloaded_once_and_then_found_in_the_cache() {
    for (files, count) in [(files("gpt2"), 2), (sharded(), 4)] {
        let cache = tempfile::tempdir().unwrap();
        let mut files = files;
        files.insert("tokenizer.json".into(), b"{}".to_vec());
        files.insert("pytorch_model.bin".into(), b"never".to_vec());
        let server = HubServer::start(REPO, files, Manner::Right);
        let hub = Hub { token: Some("hf_canary".into()), ..hub(cache.path(), &server) };
        let dir = hub.find(REPO).unwrap();
        assert!(!load(&dir).is_empty());
        assert!(dir.join("tokenizer.json").is_file());
        assert!(dir.starts_with(cache.path().join("models--some-owner--tiny.gpt2/snapshots").join(COMMIT)));
        let asked = server.asked();
        assert!(asked.iter().all(|line| line.ends_with("Bearer hf_canary")), "{asked:?}");
        assert!(!asked.iter().any(|line| line.contains("pytorch_model.bin")), "{asked:?}");
        assert_eq!(asked.len(), 1 + 3 * (count + 1), "{asked:?}");
        assert_eq!(hub.find(REPO).unwrap(), dir);
        assert_eq!(server.asked().len(), asked.len(), "nobody was asked again");
        let offline = Hub { offline: true, ..Hub::new(cache.path()) };
        assert_eq!(offline.find(REPO).unwrap(), dir);
        assert_eq!(offline.find(&format!("{REPO}@{COMMIT}")).unwrap(), dir, "by its commit");
        assert!(offline.find(&format!("{REPO}@v1")).is_err());
        assert_eq!(hub.find(&format!("{REPO}@v1")).unwrap(), dir);
        assert_eq!(offline.find(&format!("{REPO}@v1")).unwrap(), dir, "the revision is known now");
    }
}

#[test]
fn a_directory_comes_before_the_hub() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { offline: true, ..Hub::new(cache.path()) };
    let dir = data().join("gpt2");
    assert_eq!(hub.find(dir.to_str().unwrap()).unwrap(), dir);
}

#[test]
fn a_cache_that_has_not_everything_is_completed() {
    let cache = tempfile::tempdir().unwrap();
    let server = HubServer::start(REPO, sharded(), Manner::Right);
    let hub = hub(cache.path(), &server);
    let dir = hub.find(REPO).unwrap();
    let whole = load(&dir);
    let shard = dir.join("model-00002-of-00002.safetensors");
    fs::remove_file(fs::canonicalize(&shard).unwrap()).unwrap();
    fs::remove_file(&shard).unwrap();
    let offline = Hub { offline: true, ..hub.clone() };
    let error = offline.find(REPO).unwrap_err().to_string();
    assert!(error.contains(&format!("hf download {REPO}")) && error.contains("HF_HUB_OFFLINE=0"), "{error}");
    assert_eq!(load(&hub.find(REPO).unwrap()), whole);
}

#[test]
fn what_an_earlier_try_left_does_not_stand_in_the_way() {
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--some-owner--tiny.gpt2/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("etag_config_json.part"), vec![b'x'; 100_000]).unwrap();
    let server = HubServer::start(REPO, files("gpt2"), Manner::Right);
    assert!(!load(&hub(cache.path(), &server).find(REPO).unwrap()).is_empty());
}

#[test]
fn what_cannot_be_had_is_said_with_a_way_out() {
    let bin = || {
        BTreeMap::from([
            ("config.json".to_string(), b"{}".to_vec()),
            ("pytorch_model.bin".to_string(), b"x".to_vec()),
        ])
    };
    for (files, manner, words) in [
        (files("gpt2"), Manner::Status(404), &["no such model or revision"][..]),
        (files("gpt2"), Manner::Status(401), &["HF_TOKEN"]),
        (files("gpt2"), Manner::Status(403), &["HF_TOKEN"]),
        (files("gpt2"), Manner::Status(500), &["hf download some-owner/tiny.gpt2", "500"]),
        (files("gpt2"), Manner::Silent, &["nothing came for 1 seconds", "hf download"]),
        (files("gpt2"), Manner::Half, &["config.json", "hf download"]),
        (files("gpt2"), Manner::Etag("../../../evil"), &["which cannot be"]),
        (bin(), Manner::Right, &["pickle", "never read"]),
        (BTreeMap::new(), Manner::Right, &["no config.json"]),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let server = HubServer::start(REPO, files, manner);
        let token = Some("hf_canary".to_string());
        let hub = Hub { token, patience: Duration::from_secs(1), ..hub(cache.path(), &server) };
        let error = hub.find(REPO).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{manner:?}: {error}");
        assert!(error.starts_with(REPO) && !error.contains("hf_canary"), "{error}");
    }
    let cache = tempfile::tempdir().unwrap();
    assert!(!cache.path().parent().unwrap().join("evil").exists());
    // Nobody listens there.
    let hub = Hub { endpoint: "http://someone:p4ssword@127.0.0.1:9".into(), ..Hub::new(cache.path()) };
    let error = hub.find(REPO).unwrap_err().to_string();
    assert!(error.contains("hf download") && !error.contains("p4ssword"), "{error}");
    for name in ["no/such/directory", "../nowhere", "/nowhere", "a b"] {
        let error = hub.find(name).unwrap_err().to_string();
        assert!(error.contains("does not exist") && error.contains("config.json"), "{error}");
    }
    assert!(!format!("{:?}", Hub { token: Some("hf_canary".into()), ..hub }).contains("hf_canary"));
}

#[test]
fn a_download_that_broke_off_goes_on() {
    let cache = tempfile::tempdir().unwrap();
    let half = HubServer::start(REPO, files("gpt2"), Manner::Half);
    assert!(hub(cache.path(), &half).find(REPO).is_err());
    assert!(Hub { offline: true, ..Hub::new(cache.path()) }.find(REPO).is_err(), "half a model is none");
    let right = HubServer::start(REPO, files("gpt2"), Manner::Right);
    let dir = hub(cache.path(), &right).find(REPO).unwrap();
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), files("gpt2")["config.json"]);
    assert!(!load(&dir).is_empty());
}
