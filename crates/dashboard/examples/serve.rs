//! Serves a directory of runs: `cargo run -p tenterhook-dashboard --example serve -- RUNS_DIR PORT [control] [CAPTURES_DIR]`.

use std::path::PathBuf;

use tenterhook_dashboard::{Options, Server};

#[allow(clippy::print_stdout, reason = "it is a program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut options = Options::new(&PathBuf::from(args.next().ok_or("no directory of runs")?));
    options.port = args.next().map(|port| port.parse()).transpose()?;
    options.control = args.next().is_some_and(|word| word == "control");
    options.captures = args.next().map(PathBuf::from);
    let server = Server::start(options)?;
    println!("{}", server.url());
    server.token().into_iter().for_each(|token| println!("token {token}"));
    loop {
        std::thread::park();
    }
}
