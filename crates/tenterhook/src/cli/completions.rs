//! `tenterhook completions`: scripts that complete commands and options.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::error::CliError;
use super::{Cli, Outcome, output};

/// Print a script that completes commands and options in a shell.
#[derive(Args)]
#[command(after_help = "To install it, once:
  bash        tenterhook completions bash > ~/.local/share/bash-completion/completions/tenterhook
  zsh         tenterhook completions zsh > ~/.zfunc/_tenterhook
              with `fpath=(~/.zfunc $fpath)` before `compinit` in ~/.zshrc
  fish        tenterhook completions fish > ~/.config/fish/completions/tenterhook.fish
  elvish      tenterhook completions elvish > ~/.config/elvish/lib/tenterhook-completions.elv
              with `use tenterhook-completions` in ~/.config/elvish/rc.elv
  powershell  tenterhook completions powershell >> $PROFILE
or for one session of bash: source <(tenterhook completions bash)")]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<Outcome, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenterhook", &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}
