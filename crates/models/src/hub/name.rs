//! Names on the hub.

use std::fmt;

/// A model's name on the hub: `name` or `owner/name`, with `@revision` behind it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    repo: String,
    revision: Option<String>,
}

impl HubName {
    /// The name, if it can be one. The error completes "as a name, ...".
    ///
    /// ```
    /// use tenterhook_models::hub::HubName;
    ///
    /// assert_eq!(HubName::parse("EleutherAI/pythia-70m@step3000").unwrap().revision(), "step3000");
    /// assert!(HubName::parse("../gpt2").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (text, None),
        };
        if repo.len() > 96 || repo.matches('/').count() > 1 {
            return Err("it is longer than 96 characters or has more than one `/`");
        }
        if !repo.split('/').all(is_plain) {
            return Err(
                "it has characters other than letters, digits, `-`, `_` and `.`, or begins or ends with one of them",
            );
        }
        if revision.is_some_and(|revision| !is_plain(revision)) {
            return Err("its revision is not a plain word");
        }
        Ok(Self { repo: repo.to_string(), revision: revision.map(str::to_string) })
    }

    /// `owner/name`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// What `hf download` wants to hear.
    pub(super) fn command(&self) -> String {
        match &self.revision {
            Some(revision) => format!("{} --revision {revision}", self.repo),
            None => self.repo.clone(),
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            Some(revision) => write!(f, "{}@{revision}", self.repo),
            None => f.write_str(&self.repo),
        }
    }
}

/// One word that becomes a part of an address and of a path, and can lead nowhere else.
pub(super) fn is_plain(word: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    word.len() <= 200
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && edge(word.chars().next())
        && edge(word.chars().next_back())
        && !word.contains("..")
        && !word.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p32_names_on_the_hub_lead_nowhere_else() {
        for good in ["gpt2", "openai-community/gpt2", "a/b.c_d-e", "gpt2@main", "gpt2@v1.0", "x/y@0123abc"] {
            assert_eq!(HubName::parse(good).unwrap().to_string(), good);
        }
        let long = "x".repeat(97);
        for bad in [
            "", ".", "..", "../gpt2", "a/../b", "/gpt2", "gpt2/", "a/b/c", "a//b", "a\\b", "C:x", "a b",
            "a\0b", "ä/b", "-a", "a-", "a--b", ".a/b", "a/b@", "a/b@../x", "a/b@x/y", "http://x", "a?b",
            "a%2e", "a#b", &long,
        ] {
            assert!(HubName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
