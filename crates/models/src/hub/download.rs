//! Downloading a model into the cache.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::name::is_plain;
use super::{Hub, HubName};
use crate::error::ModelError;
use crate::files::{CONFIG, INDEX, PICKLES, TOKENIZER, WEIGHTS, shards_of};

/// What the thread that downloads has to say.
enum News {
    /// Something has come.
    Alive,
    Done(Result<PathBuf, String>),
}

impl Hub {
    /// Downloads a model and gives its directory in the cache. Files that are there already are not downloaded again, and one that was interrupted is
    /// gone on with. The revision points to the files only when all of them are there.
    pub(super) fn download(&self, name: &HubName) -> Result<PathBuf, ModelError> {
        let failed = |problem: String| ModelError::hub(name, self.explain(name, &problem));
        let (send, news) = channel();
        let (hub, wanted) = (self.clone(), name.clone());
        let work = move || {
            let job = || hub.fetch(&wanted, &send);
            let done = catch_unwind(AssertUnwindSafe(job))
                .unwrap_or_else(|_| Err("the server's answer makes no sense".to_string()));
            // Whoever has lost patience does not listen any more.
            let _ = send.send(News::Done(done));
        };
        // A server that never answers must not hang us: the library has no limit for that.
        thread::Builder::new().name("hub".into()).spawn(work).map_err(|error| failed(error.to_string()))?;
        loop {
            match news.recv_timeout(self.patience) {
                Ok(News::Alive) => {}
                Ok(News::Done(done)) => return done.map_err(failed),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(failed(format!("nothing came for {} seconds", self.patience.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(failed("the download ended".to_string())),
            }
        }
    }

    fn fetch(&self, name: &HubName, news: &Sender<News>) -> Result<PathBuf, String> {
        let api = self.api()?;
        let at = |revision: &str| {
            api.repo(Repo::with_revision(name.repo().to_string(), RepoType::Model, revision.to_string()))
        };
        let info = at(name.revision()).info().map_err(|error| error.to_string())?;
        if !is_plain(&info.sha) {
            return Err("the server names a commit that cannot be one".to_string());
        }
        let has = |file: &str| info.siblings.iter().any(|sibling| sibling.rfilename == file);
        if !has(CONFIG) {
            return Err(format!("has no {CONFIG} on the hub: it is not a model for transformers"));
        }
        // All files are of one commit, whatever happens on the hub meanwhile.
        let repo = at(&info.sha);
        let blobs = self.repo_dir(name).join("blobs");
        let get = |file: &str| self.get(&repo, &blobs, file, news);
        let config = get(CONFIG)?;
        let snapshot = config.parent().map(Path::to_path_buf).ok_or("the cache has no directory for it")?;
        // Before the weights, so that weights that are there mean that nothing is missing.
        if has(TOKENIZER) {
            get(TOKENIZER)?;
        }
        if has(WEIGHTS) {
            get(WEIGHTS)?;
        } else if has(INDEX) {
            let shards: BTreeSet<String> = shards_of(&get(INDEX)?).map_err(|error| error.to_string())?;
            shards.iter().try_for_each(|shard| get(shard).map(drop))?;
        } else if let Some(pickle) = PICKLES.iter().find(|file| has(file)) {
            return Err(format!(
                "has its weights only as {pickle}, a pickle file, which can run code and is never read; look for a revision or a copy with {WEIGHTS}"
            ));
        } else {
            return Err(format!("has no weights on the hub: neither {WEIGHTS} nor {INDEX}"));
        }
        if name.revision() != info.sha {
            self.point_to(name, &info.sha)?;
        }
        Ok(snapshot)
    }

    /// One file, and where it is then.
    fn get(&self, repo: &ApiRepo, blobs: &Path, file: &str, news: &Sender<News>) -> Result<PathBuf, String> {
        let about = self.api()?.metadata(&repo.url(file)).map_err(|error| format!("{file}: {error}"))?;
        // The server's words become names of files.
        if !is_plain(about.etag()) || !is_plain(about.commit_hash()) {
            return Err(format!("{file}: the server names it {:?}, which cannot be", about.etag()));
        }
        let _ = news.send(News::Alive);
        let bar = || Bar { bar: ProgressBar::hidden(), news: news.clone() };
        let path = match repo.download_with_progress(file, bar()) {
            // What an earlier try left is longer than the file: it cannot be gone on with.
            Err(ApiError::InvalidResume) => {
                let _ = fs::remove_file(blobs.join(about.etag()).with_extension("part"));
                repo.download_with_progress(file, bar())
            }
            done => done,
        };
        let path = path.map_err(|error| format!("{file}: {error}"))?;
        match fs::metadata(&path).map(|found| found.len()) {
            Ok(bytes) if bytes == about.size() as u64 => Ok(path),
            Ok(bytes) => {
                // Not whole: the next try begins anew.
                let blob = fs::canonicalize(&path);
                let _ = fs::remove_file(&path);
                let _ = blob.map(fs::remove_file);
                Err(format!("{file}: {bytes} bytes came, {} were announced", about.size()))
            }
            Err(error) => Err(format!("{file}: {error}")),
        }
    }

    /// Lets the revision mean this commit.
    fn point_to(&self, name: &HubName, commit: &str) -> Result<(), String> {
        let reference = self.repo_dir(name).join("refs").join(name.revision());
        let write = || {
            reference.parent().map_or(Ok(()), tenterhook_record::disk::create_dir_all)?;
            tenterhook_record::disk::atomic_write(&reference, |to| to.write_all(commit.as_bytes()))
        };
        write().map_err(|error| format!("cannot write {}: {error}", reference.display()))
    }

    fn api(&self) -> Result<Api, String> {
        let builder = ApiBuilder::from_cache(hf_hub::Cache::new(self.cache.clone()));
        let builder = builder.with_endpoint(self.endpoint.clone()).with_token(self.token.clone());
        builder
            .with_user_agent("tenterhook", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| error.to_string())
    }

    /// A problem with the way out of it, and without the token.
    fn explain(&self, name: &HubName, problem: &str) -> String {
        let mut problem = problem.to_string();
        for secret in self.token.iter().map(String::as_str).chain(user_info(&self.endpoint)) {
            problem = problem.replace(secret, "...");
        }
        let advice = if problem.contains("status: 404") {
            "there is no such model or revision there".to_string()
        } else if problem.contains("status: 401") || problem.contains("status: 403") {
            "there is no such model there, or it is not for everybody: set HF_TOKEN to a token that may read it".to_string()
        } else if problem.starts_with("has ") {
            return problem;
        } else {
            format!(
                "run `hf download {}` where there is a network, or give a model directory; with HF_HUB_OFFLINE=1 nobody is asked",
                name.command()
            )
        };
        format!(
            "is no directory, is not in the cache {}, and cannot be downloaded: {problem}; {advice}",
            self.cache.display()
        )
    }
}

/// What stands before `@` in an address: a name and a password.
fn user_info(endpoint: &str) -> Option<&str> {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.rsplit_once('@').map(|(user, _)| user).filter(|user| !user.is_empty())
}

/// Shows how far a download is, on a terminal only, and tells that it is alive.
struct Bar {
    bar: ProgressBar,
    news: Sender<News>,
}

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        // It begins twice: before the request, and with the answer.
        if self.bar.is_hidden() {
            let style =
                ProgressStyle::with_template("{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
            self.bar = ProgressBar::with_draw_target(Some(size as u64), ProgressDrawTarget::stderr());
            self.bar.set_prefix(filename.to_string());
            if let Ok(style) = style {
                self.bar.set_style(style);
            }
        }
        let _ = self.news.send(News::Alive);
    }

    fn update(&mut self, size: usize) {
        self.bar.inc(size as u64);
        let _ = self.news.send(News::Alive);
    }

    fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}
