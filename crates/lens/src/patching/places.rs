//! Where paths begin and end.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tenterhook_models::config::TransformerConfig;

use crate::error::LensError;

/// What sends: something that writes to the residual stream. As text `9.6` (a head), `9.attn`, `9.mlp` or `embed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sender {
    /// What the tokens and positions put into the stream.
    Embed,
    /// One head.
    Head {
        /// Its block.
        layer: usize,
        /// Its number.
        head: usize,
    },
    /// All heads of a block.
    Attn {
        /// The block.
        layer: usize,
    },
    /// An MLP.
    Mlp {
        /// The block.
        layer: usize,
    },
}

/// What receives: something that reads the residual stream. As text `9.6.q`, `9.6.k`, `9.6.v`, `9.mlp` or `final`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receiver {
    /// The queries of a head.
    Query {
        /// Its block.
        layer: usize,
        /// Its number.
        head: usize,
    },
    /// The keys of a key and value head.
    Key {
        /// Its block.
        layer: usize,
        /// Its number.
        head: usize,
    },
    /// The values of a key and value head.
    Value {
        /// Its block.
        layer: usize,
        /// Its number.
        head: usize,
    },
    /// An MLP.
    Mlp {
        /// The block.
        layer: usize,
    },
    /// The stream behind the last block, from which the logits are made.
    Final,
}

impl Sender {
    pub(super) fn check(&self, config: &TransformerConfig) -> Result<(), LensError> {
        match *self {
            Sender::Embed => Ok(()),
            Sender::Head { layer, head } => {
                check_layer(self, layer, config)?;
                check_head(self, head, config.heads, "heads")
            }
            Sender::Attn { layer } => check_layer(self, layer, config),
            Sender::Mlp { layer } => check_mlp(self, layer, config),
        }
    }

    /// How far down the stream it writes, on a scale on which a reader of [`Receiver::reads_at`] sees what is smaller.
    pub(super) fn writes_at(&self, config: &TransformerConfig) -> usize {
        match self {
            Sender::Embed => 0,
            Sender::Head { layer, .. } | Sender::Attn { layer } => 2 * layer + 1,
            // Beside attention, not after it.
            Sender::Mlp { layer } if config.parallel_residual => 2 * layer + 1,
            Sender::Mlp { layer } => 2 * layer + 2,
        }
    }

    /// The first block that has to be run again when it sends something else.
    pub(super) fn block(&self) -> usize {
        match self {
            Sender::Embed => 0,
            Sender::Head { layer, .. } | Sender::Attn { layer } | Sender::Mlp { layer } => *layer,
        }
    }
}

impl Receiver {
    pub(super) fn check(&self, config: &TransformerConfig) -> Result<(), LensError> {
        match *self {
            Receiver::Final => Ok(()),
            Receiver::Query { layer, head } => {
                check_layer(self, layer, config)?;
                check_head(self, head, config.heads, "heads")
            }
            Receiver::Key { layer, head } | Receiver::Value { layer, head } => {
                check_layer(self, layer, config)?;
                check_head(self, head, config.kv_heads, "key and value heads")
            }
            Receiver::Mlp { layer } => check_mlp(self, layer, config),
        }
    }

    pub(super) fn reads_at(&self, config: &TransformerConfig) -> usize {
        match self {
            Receiver::Final => usize::MAX,
            Receiver::Mlp { layer } if !config.parallel_residual => 2 * layer + 2,
            Receiver::Query { layer, .. }
            | Receiver::Key { layer, .. }
            | Receiver::Value { layer, .. }
            | Receiver::Mlp { layer } => 2 * layer + 1,
        }
    }

    /// The block in which it reads; the last one for the final stream.
    pub(super) fn block(&self, config: &TransformerConfig) -> usize {
        match self {
            Receiver::Final => config.layers.saturating_sub(1),
            Receiver::Query { layer, .. }
            | Receiver::Key { layer, .. }
            | Receiver::Value { layer, .. }
            | Receiver::Mlp { layer } => *layer,
        }
    }

    /// The point where its input passes, and the head there.
    pub(super) fn point(&self, config: &TransformerConfig) -> (String, Option<usize>) {
        match self {
            Receiver::Query { layer, head } => (format!("blocks.{layer}.hook_q_input"), Some(*head)),
            Receiver::Key { layer, head } => (format!("blocks.{layer}.hook_k_input"), Some(*head)),
            Receiver::Value { layer, head } => (format!("blocks.{layer}.hook_v_input"), Some(*head)),
            Receiver::Mlp { layer } => (format!("blocks.{layer}.hook_mlp_in"), None),
            Receiver::Final => (format!("blocks.{}.hook_resid_post", self.block(config)), None),
        }
    }
}

fn check_layer(what: &impl fmt::Display, layer: usize, config: &TransformerConfig) -> Result<(), LensError> {
    let layers = config.layers;
    match layer < layers {
        true => Ok(()),
        false => {
            Err(LensError::BadInput(format!("`{what}`: there is no block {layer}, the model has {layers}")))
        }
    }
}

fn check_head(what: &impl fmt::Display, head: usize, heads: usize, word: &str) -> Result<(), LensError> {
    match head < heads {
        true => Ok(()),
        false => {
            Err(LensError::BadInput(format!("`{what}`: there is no head {head}, a block has {heads} {word}")))
        }
    }
}

fn check_mlp(what: &impl fmt::Display, layer: usize, config: &TransformerConfig) -> Result<(), LensError> {
    if config.mlp_width == 0 {
        return Err(LensError::BadInput(format!("`{what}`: the model has no MLPs")));
    }
    check_layer(what, layer, config)
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sender::Embed => f.write_str("embed"),
            Sender::Head { layer, head } => write!(f, "{layer}.{head}"),
            Sender::Attn { layer } => write!(f, "{layer}.attn"),
            Sender::Mlp { layer } => write!(f, "{layer}.mlp"),
        }
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Receiver::Query { layer, head } => write!(f, "{layer}.{head}.q"),
            Receiver::Key { layer, head } => write!(f, "{layer}.{head}.k"),
            Receiver::Value { layer, head } => write!(f, "{layer}.{head}.v"),
            Receiver::Mlp { layer } => write!(f, "{layer}.mlp"),
            Receiver::Final => f.write_str("final"),
        }
    }
}

impl FromStr for Sender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no sender: give `9.6` for a head, `9.attn`, `9.mlp` or `embed`");
        if text == "embed" {
            return Ok(Sender::Embed);
        }
        let (layer, what) = text.split_once('.').ok_or_else(wrong)?;
        let layer = layer.parse().map_err(|_| wrong())?;
        Ok(match what {
            "attn" => Sender::Attn { layer },
            "mlp" => Sender::Mlp { layer },
            head => Sender::Head { layer, head: head.parse().map_err(|_| wrong())? },
        })
    }
}

impl FromStr for Receiver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no receiver: give `9.6.q`, `9.6.k`, `9.6.v`, `9.mlp` or `final`");
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        Ok(match text.split('.').collect::<Vec<_>>()[..] {
            ["final"] => Receiver::Final,
            [layer, "mlp"] => Receiver::Mlp { layer: number(layer)? },
            [layer, head, "q"] => Receiver::Query { layer: number(layer)?, head: number(head)? },
            [layer, head, "k"] => Receiver::Key { layer: number(layer)?, head: number(head)? },
            [layer, head, "v"] => Receiver::Value { layer: number(layer)?, head: number(head)? },
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["embed", "9.6", "0.attn", "11.mlp"] {
            assert_eq!(text.parse::<Sender>().unwrap().to_string(), text);
        }
        for text in ["9.6.q", "9.6.k", "0.1.v", "3.mlp", "final"] {
            assert_eq!(text.parse::<Receiver>().unwrap().to_string(), text);
        }
        for text in ["", "9", "9.", "a.1", "9.6.q", "-1.2", "9.logits"] {
            assert!(text.parse::<Sender>().unwrap_err().contains("is no sender"), "{text}");
        }
        for text in ["", "9.6", "9.6.z", "mlp", "9.6.q.1"] {
            assert!(text.parse::<Receiver>().unwrap_err().contains("is no receiver"), "{text}");
        }
    }

    #[test]
    fn readers_see_what_was_written_before_them() {
        let mut config = TransformerConfig::gpt2(20, 8, 8, 2, 4);
        let sees = |config: &TransformerConfig, receiver: &str, sender: &str| {
            let (receiver, sender): (Receiver, Sender) = (receiver.parse().unwrap(), sender.parse().unwrap());
            sender.writes_at(config) < receiver.reads_at(config)
        };
        assert!(
            sees(&config, "0.mlp", "0.1")
                && sees(&config, "1.0.q", "0.mlp")
                && sees(&config, "0.0.k", "embed")
        );
        assert!(
            !sees(&config, "1.0.v", "1.1")
                && !sees(&config, "0.mlp", "0.mlp")
                && sees(&config, "final", "1.mlp")
        );
        config.parallel_residual = true;
        assert!(!sees(&config, "0.mlp", "0.1") && sees(&config, "1.mlp", "0.1"));
    }
}
