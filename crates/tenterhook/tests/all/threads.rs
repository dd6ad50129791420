//! The same seed gives the same run, whatever the number of threads.

use crate::lab::Lab;
use crate::support::Ran;

/// Large enough for several threads to have something to do.
const WIDE: &str = r#"
[run]
name = "wide"
seed = 11

[model]
kind = "gpt"
vocab = 31
context = 24
d_model = 96
n_heads = 4
n_layers = 2
d_mlp = 384
dropout = 0.1

[data.train]
kind = "induction"
examples = 40
block = 24
batch = 8

[data.val]
kind = "induction"
examples = 8
block = 24
batch = 8

[train]
steps = 6
grad_clip = 1.0
validate_every = 3

[[optimizer]]
kind = "adamw"
lr = 1e-3

[[hooks]]
kind = "gradient_monitor"
log_frequency = 1

[[hooks]]
kind = "activation_stats"
points = "*"
"#;

#[test]
fn p17_the_same_seed_is_the_same_run_at_any_number_of_threads() {
    let mut first = None;
    for threads in ["1", "2", "4"] {
        for how in ["environment", "environment", "option"] {
            let lab = Lab::with(WIDE);
            let option = format!("train.threads={threads}");
            let mut args = vec!["train", "run.toml", "--quiet"];
            if how == "option" {
                args.extend(["--set", &option]);
            }
            let mut command = lab.command(&args);
            match how {
                "option" => command.env_remove("RAYON_NUM_THREADS"),
                _ => command.env("RAYON_NUM_THREADS", threads),
            };
            let ran = Ran::of(command);
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            assert_eq!(lab.record("wide")["threads"].to_string(), threads, "{how}");
            let run = (lab.digest("wide"), lab.metrics("wide"));
            let first = first.get_or_insert_with(|| run.clone());
            assert_eq!(run, *first, "{threads} threads by {how}");
        }
    }
}
