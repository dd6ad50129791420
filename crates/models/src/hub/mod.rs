//! Models by name: a directory, the Hugging Face cache, or a download from the hub.
//!
//! The cache is the one that Hugging Face's own programs use, in both directions: what they downloaded is found here, and what is downloaded here
//! is found by them.

mod download;
mod name;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::ModelError;
use crate::files::{CONFIG, INDEX, WEIGHTS, shards_of};
pub use name::HubName;

const ENDPOINT: &str = "https://huggingface.co";
/// How long nothing may come before a download is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where models by name come from.
///
/// ```
/// use std::path::Path;
/// use tenterhook_models::hub::Hub;
///
/// let hub = Hub { offline: true, ..Hub::new("some/cache") };
/// let error = hub.find("openai-community/gpt2").unwrap_err().to_string();
/// assert!(error.contains("hf download openai-community/gpt2"), "{error}");
/// ```
#[derive(Clone)]
pub struct Hub {
    /// The directory with `models--owner--name`.
    pub cache: PathBuf,
    /// The server.
    pub endpoint: String,
    /// Sent to the server, and never shown.
    pub token: Option<String>,
    /// Asks nobody.
    pub offline: bool,
    /// How long nothing may come before a download is given up.
    pub patience: Duration,
}

/// Without the token.
impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "...");
        f.debug_struct("Hub")
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .field("token", &token)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The public hub with this cache, and no token.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: ENDPOINT.to_string(),
            token: None,
            offline: false,
            patience: PATIENCE,
        }
    }

    /// What the environment says: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `~/.cache/huggingface`; `HF_ENDPOINT`; `HF_TOKEN`, or the file `token` in
    /// `HF_HOME`; `HF_HUB_OFFLINE`; `HF_HUB_DOWNLOAD_TIMEOUT` in seconds.
    pub fn from_env() -> Self {
        let given = |name: &str| {
            env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
        };
        let home = given("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = given("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| env::home_dir().map(|home| home.join(".cache")));
            cache.unwrap_or_default().join("huggingface")
        });
        let saved = || fs::read_to_string(home.join("token")).ok().map(|token| token.trim().to_string());
        let on = |value: String| !["0", "false", "no", "off"].contains(&value.to_ascii_lowercase().as_str());
        let seconds = given("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|value| value.parse().ok());
        let base = Self::new(given("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from));
        Self {
            endpoint: given("HF_ENDPOINT")
                .map_or(base.endpoint, |given| given.trim_end_matches('/').to_string()),
            token: given("HF_TOKEN").or_else(saved).filter(|token| !token.is_empty()),
            offline: given("HF_HUB_OFFLINE").is_some_and(on),
            patience: seconds.map_or(PATIENCE, Duration::from_secs),
            ..base
        }
    }

    /// The directory of a model: the one of this name where there is one, else what the cache has under this name, else what is downloaded into it.
    /// A name may end in `@revision`.
    pub fn find(&self, name: &str) -> Result<PathBuf, ModelError> {
        let dir = Path::new(name);
        if dir.exists() {
            return Ok(dir.to_path_buf());
        }
        let name = HubName::parse(name).map_err(|problem| ModelError::NotAModel {
            path: dir.to_path_buf(),
            problem: format!(
                "does not exist; give a model directory with {CONFIG} and {WEIGHTS}, or a name on the hub such as `gpt2` or `owner/name`; as a \
                 name, {problem}"
            ),
        })?;
        if let Some(snapshot) = self.cached(&name) {
            return Ok(snapshot);
        }
        if self.offline {
            return Err(ModelError::hub(
                &name,
                format!(
                    "is no directory, and not in the cache {}; HF_HUB_OFFLINE is set. Run `hf download {}` where there is a network, or set HF_HUB_OFFLINE=0",
                    self.cache.display(),
                    name.command(),
                ),
            ));
        }
        self.download(&name)
    }

    /// What the cache has, if that is a whole model.
    fn cached(&self, name: &HubName) -> Option<PathBuf> {
        let repo = self.repo_dir(name);
        // A revision that is a commit needs no reference.
        let commit = fs::read_to_string(repo.join("refs").join(name.revision())).ok();
        let commit = commit.map_or_else(|| name.revision().to_string(), |commit| commit.trim().to_string());
        let snapshot = repo.join("snapshots").join(&commit);
        (name::is_plain(&commit) && is_whole(&snapshot)).then_some(snapshot)
    }

    fn repo_dir(&self, name: &HubName) -> PathBuf {
        self.cache.join(format!("models--{}", name.repo().replace('/', "--")))
    }
}

/// Whether a directory has a configuration and all its weights. A tokenizer is downloaded before the weights, if there is one.
fn is_whole(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).is_file();
    let shards = || shards_of(&dir.join(INDEX)).is_ok_and(|shards| shards.iter().all(|shard| has(shard)));
    has(CONFIG) && (has(WEIGHTS) || has(INDEX) && shards())
}
