//! Whether a description can be a model at all, decided before anything is allocated for it.

use super::families::MOST_LAYERS;
use super::keys::{Keys, LARGEST_SIZE};
use super::{Positions, TransformerConfig};
use crate::error::{ConfigError, Problems};

/// Ten times the largest model in the world.
pub(super) const MOST_PARAMETERS: u128 = 10_u128.pow(13);

/// Features that some file of any family may ask for and that would change the numbers.
pub(super) fn unsupported_everywhere(keys: &mut Keys<'_>) {
    for name in ["quantization_config", "compression_config", "per_layer_config"] {
        if keys.value(&[name]).is_some() {
            keys.problem(|| format!("`{name}` is not supported"));
        }
    }
    for name in ["add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention"] {
        if keys.flag(name, false) {
            keys.problem(|| format!("`{name}` is not supported"));
        }
    }
}

/// How sizes must fit together. A size of 0 has been reported already.
pub(super) fn sizes(config: &TransformerConfig, problems: &mut Problems) {
    let TransformerConfig { heads, kv_heads, head_dim, .. } = *config;
    if heads > 0 && kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
        problems.add(|| {
            format!("`num_attention_heads` {heads} is not a multiple of `num_key_value_heads` {kv_heads}")
        });
    }
    if heads.saturating_mul(head_dim) > LARGEST_SIZE {
        problems.add(|| format!("{heads} heads of size {head_dim} are more than {LARGEST_SIZE} together"));
    }
    let parameters = parameters(config);
    if parameters > MOST_PARAMETERS {
        problems.add(|| {
            format!("the sizes make a model of {parameters} parameters, more than {MOST_PARAMETERS}")
        });
    }
}

/// The weights of all matrices. No factor exceeds 2^33, so nothing can overflow here.
pub(super) fn parameters(config: &TransformerConfig) -> u128 {
    let [vocab, context, width, layers, mlp_width] =
        [config.vocab, config.context, config.width, config.layers, config.mlp_width]
            .map(|size| size as u128);
    let [heads, kv_heads, head_dim] =
        [config.heads, config.kv_heads, config.head_dim].map(|size| size as u128);
    let embeddings = vocab * width * if config.tied_embeddings { 1 } else { 2 };
    let positions = if config.positions == Positions::Learned { context * width } else { 0 };
    let attention = width * head_dim * 2 * (heads + kv_heads);
    let mlp = width * mlp_width * if config.gated_mlp { 3 } else { 2 };
    embeddings + positions + layers * (attention + mlp)
}

impl TransformerConfig {
    /// Checks a description that was made by hand, as [`from_hf`](Self::from_hf) does for one that was read.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        let named = [
            ("vocab", self.vocab, LARGEST_SIZE),
            ("context", self.context, LARGEST_SIZE),
            ("width", self.width, LARGEST_SIZE),
            ("layers", self.layers, MOST_LAYERS),
            ("heads", self.heads, LARGEST_SIZE),
            ("kv_heads", self.kv_heads, LARGEST_SIZE),
            ("head_dim", self.head_dim, LARGEST_SIZE),
        ];
        for (name, size, largest) in named {
            if size == 0 || size > largest {
                problems.add(|| format!("`{name}` must be from 1 to {largest}, found {size}"));
            }
        }
        if self.mlp_width > LARGEST_SIZE {
            let found = self.mlp_width;
            problems.add(|| format!("`mlp_width` must be from 0 (no MLP) to {LARGEST_SIZE}, found {found}"));
        }
        if self.windows.len() != self.layers {
            problems
                .add(|| format!("`windows` has {} entries for {} layers", self.windows.len(), self.layers));
        }
        if self.windows.contains(&Some(0)) {
            problems.add(|| "a window of 0 keys sees nothing".to_string());
        }
        if let Positions::Rotary(rope) = &self.positions
            && (rope.dim == 0 || rope.dim > self.head_dim || rope.dim % 2 == 1)
        {
            let (dim, head_dim) = (rope.dim, self.head_dim);
            problems.add(|| {
                format!("the rotated part of a head must be even and from 2 to {head_dim}, found {dim}")
            });
        }
        if problems.is_empty() {
            sizes(self, &mut problems);
        }
        if problems.is_empty() {
            self.check_expressible(&mut problems);
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }

    /// A family has no place for everything: what its `config.json` cannot say, not even under the key `tenterhook`, would be lost when
    /// the model is saved, or was never built to begin with.
    fn check_expressible(&self, problems: &mut Problems) {
        let family = self.family.model_type();
        match Self::from_hf(&self.to_hf()) {
            Err(error) => problems.append(error.problems),
            Ok(read) => {
                let (ours, theirs) = (format!("{self:#?}"), format!("{read:#?}"));
                let differing = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
                if let Some((ours, theirs)) = differing {
                    let (ours, theirs) =
                        (ours.trim().trim_end_matches(','), theirs.trim().trim_end_matches(','));
                    problems.add(|| {
                        format!("a {family} model cannot have `{ours}`: it would be read back as `{theirs}`")
                    });
                }
            }
        }
    }
}
