//! The forward in its stages: embedding, blocks, logits. Each can be run for itself, from a residual stream that was kept or changed.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use tenterhook_hooks::Pass;
use tenterhook_nn::ops::{cross_entropy, dropout, soft_cap};

use super::attention::Positioned;
use super::padding::Place;
use super::{KvCache, Transformer};

impl Transformer {
    /// The residual stream before the first block, `[batch, pos, d_model]`.
    pub fn embed(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let (_, count) = ids.dims2()?;
        self.check_length(pass.setup().first_position, count)?;
        let mut x = self.embed.forward(ids, self.config.embed_scale, pass)?;
        if let Some(positions) = &self.positions {
            let ids = Place::position_ids(ids, pass)?;
            x = (x + positions.forward(&ids, None, pass)?)?;
        }
        match self.config.dropout.embedding {
            rate if rate > 0.0 && pass.is_training() => {
                dropout(&x, rate, &pass.random().named("embedding"), pass.first_row())
            }
            _ => Ok(x),
        }
    }

    /// Some of the blocks on a residual stream `[batch, pos, d_model]`: `blocks(0..layers, ..)` are all of them.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use tenterhook_hooks::Pass;
    /// # use tenterhook_models::{Transformer, config::TransformerConfig};
    /// # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 2, 2), 42, DType::F32, &Device::Cpu)?;
    /// # let ids = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
    /// let pass = Pass::default();
    /// let before = model.blocks(0..1, model.embed(&ids, &pass)?, &pass)?;
    /// let logits = model.unembed(&model.blocks(1..2, before, &pass)?, &pass)?;
    /// assert_eq!(logits.to_vec3::<f32>()?, model.forward(&ids, &pass)?.to_vec3::<f32>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocks(&self, range: Range<usize>, x: Tensor, pass: &Pass) -> Result<Tensor> {
        self.run_blocks(range, x, None, pass)
    }

    /// The logits `[batch, pos, vocab]` of the residual stream after the last block.
    pub fn unembed(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let x = self.final_norm.forward(x, pass)?;
        let logits = self.head.forward(&x, pass)?;
        match self.config.logit_soft_cap {
            Some(cap) => soft_cap(&logits, cap),
            None => Ok(logits),
        }
    }

    /// What [`loss_of`](Self::loss_of) makes a loss of: the logits where somebody listens to them; else what they are made of, because they need
    /// not all be in memory then.
    pub fn forward_to_loss(&self, ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        if !self.fuses_loss(pass) {
            return self.forward(ids, pass);
        }
        let x = self.run_blocks(0..self.blocks.len(), self.embed(ids, pass)?, None, pass)?;
        self.final_norm.forward(&x, pass)
    }

    /// The mean cross entropy of the targets `[batch, pos]`, from what [`forward_to_loss`](Self::forward_to_loss) gave in the same pass. It has
    /// the same bits either way.
    pub fn loss_of(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignore_index: Option<i64>,
        pass: &Pass,
    ) -> Result<Tensor> {
        match self.fuses_loss(pass) {
            true => self.head.cross_entropy(output, targets, ignore_index, pass),
            false => cross_entropy(output, targets, ignore_index),
        }
    }

    fn fuses_loss(&self, pass: &Pass) -> bool {
        self.config.logit_soft_cap.is_none() && !self.head.is_watched(pass)
    }

    pub(super) fn run(&self, ids: &Tensor, cache: Option<&mut KvCache>, pass: &Pass) -> Result<Tensor> {
        let x = self.embed(ids, pass)?;
        let x = self.run_blocks(0..self.blocks.len(), x, cache, pass)?;
        self.unembed(&x, pass)
    }

    fn run_blocks(
        &self,
        range: Range<usize>,
        mut x: Tensor,
        mut cache: Option<&mut KvCache>,
        pass: &Pass,
    ) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let Some(blocks) = self.blocks.get(range.clone()) else {
            bail!("blocks {range:?} were asked for, and the model has {}", self.blocks.len());
        };
        let place = Place::of(&x, &self.config.positions, pass)?;
        for (block, i) in blocks.iter().zip(range) {
            let cache = cache.as_deref_mut().map(|cache| {
                let len = cache.len();
                (cache.layer(i), len)
            });
            x = block.forward(x, Positioned { place: &place, cache }, pass)?;
        }
        Ok(x)
    }

    fn check_length(&self, first: usize, count: usize) -> Result<()> {
        if count == 0 {
            candle_core::bail!("a sequence must have at least one token");
        }
        // Rotation has no end; a table of learned positions has.
        if self.positions.is_some() && first + count > self.config.context {
            candle_core::bail!(
                "positions {first} to {} were given; the model has {}",
                first + count - 1,
                self.config.context
            );
        }
        Ok(())
    }
}
