//! The hook that puts an autoencoder into a model.

use super::cases::{Case, case, check};
use super::see::weights;

macro_rules! data {
    ($name:literal) => {
        concat!("'", env!("CARGO_MANIFEST_DIR"), "/../sae/tests/data/", $name, "'")
    };
}

const WITH: &str = concat!(
    "path = '",
    env!("CARGO_MANIFEST_DIR"),
    "/../sae/tests/data/topk'\npoints = \"blocks.0.hook_resid_post\"\n"
);

const EDITS: &str = concat!(
    "path = '",
    env!("CARGO_MANIFEST_DIR"),
    "/../sae/tests/data/topk'\npoints = \"blocks.0.hook_resid_post\"\nlatents = [{latent = 3, add = 1.0}]\n"
);

const POINTS: &str = concat!(
    "path = '",
    env!("CARGO_MANIFEST_DIR"),
    "/../sae/tests/data/topk'\nlatents = [{latent = 3, add = 1.0}]\n"
);

const NAMED: &str = concat!(
    "path = '",
    env!("CARGO_MANIFEST_DIR"),
    "/../sae/tests/data/topk'\npoints = \"blocks.0.hook_resid_post\"\nlatents = [{latent = \"days\", add = 1.0}]\n"
);

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("sae.path", [data!("topk"), data!("jumprelu")], weights)
            .with("points = \"blocks.0.hook_resid_post\"\nlatents = [{latent = 3, add = 1.0}]\n"),
        case("sae.points", ["\"blocks.0.hook_resid_pre\"", "\"blocks.0.hook_mlp_out\""], weights)
            .with(POINTS),
        // Only the last position is asked for its answer.
        case("sae.positions", ["0", "[-1]"], weights).with(EDITS),
        case("sae.error_term", ["true", "false"], weights).with(EDITS),
        case("sae.latents", ["[{latent = 3, add = 1.0}]", "[{latent = 3, set = 1.0, max = 0.5}]"], weights)
            .with(WITH),
        case("sae.names", [data!("names_a.csv"), data!("names_b.csv")], weights).with(NAMED),
        case("sae.strength", ["1.0", "0.5"], weights).with(EDITS),
    ]
}

#[test]
fn every_option_of_an_autoencoder_makes_a_difference() {
    check(&cases());
}
