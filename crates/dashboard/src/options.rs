//! What a dashboard shows, and to whom.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::StartError;

/// The port where none was asked for and it is free.
pub(crate) const USUAL_PORT: u16 = 7878;
/// The shortest token that is taken.
const SHORTEST_TOKEN: usize = 16;

/// What a dashboard shows, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of all runs; it may not be there yet.
    pub runs_dir: PathBuf,
    /// The address to listen at. Any but a loopback address needs a token.
    pub address: IpAddr,
    /// The port; 0 is any free one. Where none is given it is 7878, or any free one when that is taken.
    pub port: Option<u16>,
    /// What a browser must know: to see anything where the address is not a loopback one, and to change anything. With
    /// `control` one is made where none is given.
    pub token: Option<String>,
    /// Whether hooks of runs can be enabled and disabled.
    pub control: bool,
    /// A directory of captured activations, beside those of the runs.
    pub captures: Option<PathBuf>,
    /// How long a client may take no byte that is sent to it, or be silent, before it is dropped.
    pub patience: Duration,
}

impl Options {
    /// A dashboard that this machine alone sees, and that changes nothing.
    pub fn new(runs_dir: &Path) -> Self {
        Self {
            runs_dir: runs_dir.to_path_buf(),
            address: Ipv4Addr::LOCALHOST.into(),
            port: None,
            token: None,
            control: false,
            captures: None,
            patience: Duration::from_secs(30),
        }
    }

    /// Whether others than this machine may reach it.
    pub fn is_open(&self) -> bool {
        !self.address.is_loopback()
    }

    /// A token nobody can guess.
    pub fn new_token() -> Result<String, StartError> {
        let mut bytes = [0; 24];
        getrandom::fill(&mut bytes).map_err(|error| StartError::NoRandomness(error.to_string()))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token in use, once everything that could be wrong was looked at.
    pub(crate) fn checked_token(&self) -> Result<Option<String>, StartError> {
        match &self.token {
            Some(token) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                match token.len() >= SHORTEST_TOKEN && token.len() <= 256 && token.bytes().all(plain) {
                    true => Ok(Some(token.clone())),
                    false => Err(StartError::WeakToken),
                }
            }
            None if self.is_open() => Err(StartError::NoToken { address: self.address }),
            None if self.control => Self::new_token().map(Some),
            None => Ok(None),
        }
    }
}
