//! The dashboard: what runs leave on the disk, in a browser.
//!
//! It reads files and nothing else, on threads of the lowest priority, with bounded memory: so it cannot disturb a run, whoever
//! looks at it, and whether it runs in the same process or in another one.
//!
//! ```
//! use tenterhook_dashboard::{Options, Server};
//!
//! let runs = tempfile::tempdir()?;
//! let server = Server::start(Options { port: Some(0), ..Options::new(runs.path()) })?;
//! assert!(server.url().starts_with("http://127.0.0.1:"));
//! server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod account;
mod api;
mod assets;
mod body;
mod captures;
mod error;
mod events;
mod follow;
mod guard;
mod listen;
mod options;
mod places;
mod runs;
mod server;

pub use assets::plotly_js;
pub use error::StartError;
pub use options::Options;
pub use server::Server;
