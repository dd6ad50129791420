//! Who attends to whom.

use serde::Serialize;
use tenterhook_hooks::{Report, Selector};

use super::components::rows;
use super::tokens::Token;
use crate::cache::CacheOptions;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// The attention patterns of a text.
#[derive(Clone, Debug, Serialize)]
pub struct AttentionPatterns {
    /// The text.
    pub tokens: Vec<Token>,
    /// The heads that were asked for.
    pub heads: Vec<HeadPattern>,
    /// What the hooks did that are registered.
    #[serde(skip)]
    pub report: Report,
}

/// The attention pattern of one head.
#[derive(Clone, Debug, Serialize)]
pub struct HeadPattern {
    /// Its block.
    pub block: usize,
    /// Its number in the block.
    pub head: usize,
    /// `pattern[query][key]`: how much of the attention from one token goes to another. Rows sum to 1.
    pub pattern: Vec<Vec<f32>>,
}

impl LanguageModel {
    /// The attention patterns of a text, of these blocks and these heads of each, or of all.
    pub fn attention_patterns(
        &self,
        ids: &[u32],
        blocks: Option<&[usize]>,
        heads: Option<&[usize]>,
    ) -> Result<AttentionPatterns, LensError> {
        self.check_tokens(ids)?;
        let (blocks, heads) = (self.chosen_blocks(blocks)?, self.chosen_heads(heads)?);
        let name = |block: &usize| format!("blocks.{block}.attn.hook_pattern");
        let points = Selector::Any(blocks.iter().map(|block| Selector::Name(name(block))).collect());
        let (_, cache, report) = self.run_with_cache(&self.batch_of(ids)?, &CacheOptions::points(points))?;
        let mut found = Vec::new();
        for block in blocks {
            let patterns = rows(&cache, &name(&block))?;
            for head in &heads {
                let pattern = patterns.get(*head)?.to_vec2()?;
                found.push(HeadPattern { block, head: *head, pattern });
            }
        }
        let tokens = ids.iter().map(|id| self.token(*id)).collect();
        Ok(AttentionPatterns { tokens, heads: found, report })
    }
}
