//! What is trained: one autoencoder, or several on the activations of one pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Result, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::{Batch, Mode, Pass, PointTable};
use tenterhook_nn::ops::sparse::{JumpSpec, row_norms};
use tenterhook_nn::{Init, Params, Scope, Weights};
use tenterhook_train::data::Dataset;
use tenterhook_train::{Evaluation, TrainModel};

use super::latents::{Latents, Pending};
use super::losses::{Forward, decoded_dead};
use super::options::SaeTraining;
use crate::cfg_json::to_json;
use crate::config::{Architecture, Normalize, SaeConfig};
use crate::error::SaeError;
use crate::init::FreshWeights;
use crate::layer::{Bias, SaeLayer};
use crate::sae::Sae;

/// The terms of the loss, then what only is measured.
const LOSSES: [&str; 4] = ["mse", "sparsity_loss", "aux_loss", "pre_act_loss"];
const MEASURED: [&str; 2] = ["l0", "explained_variance"];

/// One autoencoder in training.
pub(crate) struct Entry {
    /// What its weights, points and metrics begin with, and the tensor of a batch that it gets. Empty for the only one, which gets `inputs`.
    pub(crate) name: String,
    pub(crate) layer: SaeLayer,
}

/// What is trained: one autoencoder, or several side by side, each on its own tensor of the batch. They share nothing, so that each ends
/// up as it would alone.
pub struct SaeTask {
    pub(crate) entries: Vec<Entry>,
    points: Arc<PointTable>,
    params: Params,
    options: SaeTraining,
    live: Mutex<Vec<(Latents, Pending)>>,
}

impl SaeTask {
    /// One autoencoder, trained on the `inputs` of every batch.
    pub fn single(config: SaeConfig, options: SaeTraining, seed: u64) -> std::result::Result<Self, SaeError> {
        Self::new(vec![(String::new(), config)], options, seed, &Device::Cpu)
    }

    /// Several by name: each is trained on the tensor of its name, and its weights and points have the name in front.
    pub fn new(
        saes: Vec<(String, SaeConfig)>,
        options: SaeTraining,
        seed: u64,
        device: &Device,
    ) -> std::result::Result<Self, SaeError> {
        let fresh = FreshWeights {
            seed,
            decoder_init_norm: if options.unit_norm_decoder { Some(1.0) } else { options.decoder_init_norm },
            threshold: options.jumprelu_init_threshold,
        };
        Self::with_weights(saes, options, fresh, device)
    }

    /// The same with given weights.
    pub fn with_weights(
        saes: Vec<(String, SaeConfig)>,
        options: SaeTraining,
        weights: impl Weights,
        device: &Device,
    ) -> std::result::Result<Self, SaeError> {
        if saes.is_empty() {
            return Err(SaeError::bad("there is no autoencoder to train"));
        }
        for (name, config) in &saes {
            options.check(config)?;
            if saes.iter().filter(|(other, _)| other == name).count() > 1 {
                return Err(SaeError::bad(format!("two autoencoders are named `{name}`")));
            }
        }
        let scope = Scope::new(weights, DType::F32, device);
        let jump =
            JumpSpec { bandwidth: options.jumprelu_bandwidth, to_input: options.jumprelu_ste_to_input };
        let mut entries = Vec::new();
        for (name, config) in saes {
            let mut layer = SaeLayer::new(&scope.pp(&name), config)?;
            layer.jump = jump;
            entries.push(Entry { name, layer });
        }
        let live = entries.iter().map(|entry| (Latents::new(entry.layer.config().d_sae), Pending::default()));
        let live = Mutex::new(live.collect());
        let (points, params) = scope.finish();
        Ok(Self { entries, points, params, options, live })
    }

    /// How it is trained.
    pub fn options(&self) -> &SaeTraining {
        &self.options
    }

    /// The names of the autoencoders; empty for a single one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// What each looks like, as `cfg.json` has it.
    pub fn configs(&self) -> Vec<Value> {
        self.entries.iter().map(|entry| to_json(entry.layer.config())).collect()
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, Vec<(Latents, Pending)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the factor of `expected_average_only_in` from the first examples of the data: a run that goes on has it from its checkpoint.
    pub fn find_scale(
        &self,
        data: &dyn Dataset,
        examples: u64,
        device: &Device,
    ) -> std::result::Result<(), SaeError> {
        let wanted =
            |entry: &Entry| entry.layer.config().normalize_activations == Normalize::ExpectedAverageOnlyIn;
        if !self.entries.iter().any(wanted) {
            return Ok(());
        }
        let indices: Vec<u64> = (0..examples.min(data.len())).collect();
        let mut norms = vec![(0.0, 0u64); self.entries.len()];
        for indices in indices.chunks(4096) {
            let batch = data.batch(indices, device)?;
            for (entry, (sum, count)) in
                self.entries.iter().zip(&mut norms).filter(|(entry, _)| wanted(entry))
            {
                let of_rows = row_norms(batch.get(entry.input())?)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
                *sum += of_rows.iter().sum::<f64>();
                *count += of_rows.len() as u64;
            }
        }
        let mut live = self.live();
        for ((entry, (latents, _)), (sum, count)) in self.entries.iter().zip(live.iter_mut()).zip(norms) {
            if wanted(entry) {
                let factor = (entry.layer.config().d_in as f64).sqrt() / (sum / count as f64);
                if !factor.is_finite() {
                    return Err(SaeError::bad(
                        "the activations have no length to be normalised by: they are all 0, or not finite",
                    ));
                }
                latents.scaling_factor = Some(factor);
            }
        }
        Ok(())
    }

    /// One autoencoder as it is now, for use: the factor of its inputs and the norms of its decoder are folded into the weights, and a
    /// BatchTopK is a JumpReLU with the threshold that was found.
    pub fn to_sae(&self, index: usize) -> std::result::Result<Sae, SaeError> {
        let entry = self
            .entries
            .get(index)
            .ok_or_else(|| SaeError::bad(format!("there is no autoencoder {index}")))?;
        let (latents, dead) = {
            let live = self.live();
            (live[index].0.clone(), live[index].0.dead_count(self.options.dead_after_tokens))
        };
        let layer = &entry.layer;
        let mut config = layer.config().clone();
        config.metadata.insert("training_architecture".to_string(), config.architecture.name().into());
        config
            .metadata
            .insert("training_architecture_details".to_string(), self.options.details(&config).into());
        config.metadata.insert("num_dead_features".to_string(), dead.into());
        let (mut w_enc, mut w_dec) = (layer.w_enc.value().clone(), layer.w_dec.value().clone());
        let mut b_dec = layer.b_dec.value().clone();
        let mut threshold = latents.topk_threshold;
        if let Some(factor) = latents.scaling_factor {
            (w_enc, w_dec, b_dec) = ((w_enc * factor)?, (w_dec / factor)?, (b_dec / factor)?);
            threshold = if config.architecture.rescales() { threshold / factor } else { threshold };
            config.normalize_activations = Normalize::None;
        }
        let mut others: Vec<(&str, Tensor)> = match &layer.bias {
            Bias::Plain(b_enc) => vec![("b_enc", b_enc.value().clone())],
            Bias::Jump { b_enc, threshold } => {
                vec![("b_enc", b_enc.value().clone()), ("threshold", threshold.value().clone())]
            }
            Bias::Gated { b_gate, b_mag, r_mag } => {
                let pairs = [("b_gate", b_gate), ("b_mag", b_mag), ("r_mag", r_mag)];
                pairs.map(|(name, param)| (name, param.value().clone())).to_vec()
            }
        };
        if config.architecture.rescales() {
            let norms = row_norms(&w_dec)?.clamp(1e-8, f64::INFINITY)?;
            w_enc = w_enc.broadcast_mul(&norms)?;
            w_dec = w_dec.broadcast_div(&norms.unsqueeze(1)?)?;
            others[0].1 = (&others[0].1 * norms)?;
        }
        if let Architecture::BatchTopK { .. } = config.architecture {
            others.push(("threshold", Tensor::full(threshold as f32, config.d_sae, w_dec.device())?));
            config.architecture = Architecture::JumpRelu;
        }
        others.extend([("W_enc", w_enc), ("W_dec", w_dec), ("b_dec", b_dec)]);
        let device = layer.w_dec.value().device().clone();
        Ok(Sae::new(config, Given(others), DType::F32, &device)?)
    }
}

impl Entry {
    /// The tensor of a batch that it gets.
    pub(crate) fn input(&self) -> &str {
        if self.name.is_empty() { "inputs" } else { &self.name }
    }

    /// A metric of its own.
    pub(crate) fn metric(&self, what: &str) -> String {
        if self.name.is_empty() { format!("sae/{what}") } else { format!("sae/{}/{what}", self.name) }
    }
}

/// Weights that are there already.
struct Given(Vec<(&'static str, Tensor)>);

impl Weights for Given {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        match self.0.iter().find(|(given, _)| *given == name) {
            Some((_, tensor)) if tensor.dims() == shape => tensor.copy()?.to_dtype(dtype)?.to_device(device),
            _ => candle_core::bail!("there is no weight `{name}` of shape {shape:?}"),
        }
    }
}

impl TrainModel for SaeTask {
    fn points(&self) -> &Arc<PointTable> {
        &self.points
    }

    fn params(&self) -> &Params {
        &self.params
    }

    /// The terms of the loss and what is measured, `[autoencoders, 6]`.
    fn forward(&self, batch: &Batch, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.points)?;
        let trains = pass.setup().mode == Mode::Train;
        let mut rows = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let (factor, dead) = {
                let (latents, _) = &self.live()[index];
                (latents.scaling_factor, latents.dead(self.options.dead_after_tokens))
            };
            let x = batch.get(entry.input())?.to_dtype(DType::F32)?;
            let x = factor.map_or_else(|| Ok(x.clone()), |factor| &x * factor)?;
            let dead = dead.filter(|_| trains);
            let also = decoded_dead(entry.layer.config(), &self.options, dead.as_ref());
            let step = entry.layer.step(&x, also, pass)?;
            let forward =
                Forward { layer: &entry.layer, options: &self.options, pass, x: &x, step: &step, dead };
            let terms = forward.terms()?;
            let (active, output) = (step.activity, step.output);
            let due = !trains || pass.setup().clock.step.is_multiple_of(self.options.metrics_every);
            let measured = match due {
                true => {
                    [active.total() as f64 / x.dims()[0] as f64, explained_variance(&x, &output.detach())?]
                }
                false => [0.0; 2],
            };
            if trains {
                let missed =
                    self.resamples_at(pass.setup().clock.step).then(|| missed(&x, &output)).transpose()?;
                let mut live = self.live();
                let pending = &mut live[index].1;
                pending.add(x.dims()[0] as u64, active);
                pending.missed = missed;
                let losses = [&terms.mse, &terms.sparsity, &terms.aux, &terms.pre_act];
                if due {
                    let losses =
                        losses.iter().map(|term| term.detach().to_dtype(DType::F64)?.to_scalar::<f64>());
                    let losses = losses.collect::<Result<Vec<f64>>>()?;
                    pending.metrics =
                        LOSSES.into_iter().zip(losses).chain(MEASURED.into_iter().zip(measured)).collect();
                }
            }
            let measured = Tensor::new(measured.map(|value| value as f32).as_slice(), x.device())?;
            let terms = Tensor::stack(&[terms.mse, terms.sparsity, terms.aux, terms.pre_act], 0)?;
            rows.push(Tensor::cat(&[terms, measured.to_dtype(x.dtype())?], 0)?);
        }
        Tensor::stack(&rows, 0)
    }

    fn loss(&self, output: &Tensor, _batch: &Batch) -> Result<Tensor> {
        output.narrow(1, 0, LOSSES.len())?.sum_all()
    }

    fn evaluate(&self, output: &Tensor, batch: &Batch) -> Result<Evaluation> {
        let rows = output.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let loss = rows.iter().map(|row| row[..LOSSES.len()].iter().sum::<f64>()).sum();
        let mut values = vec![("loss".to_string(), loss)];
        for (entry, row) in self.entries.iter().zip(rows) {
            let named = LOSSES.into_iter().chain(MEASURED).zip(row);
            values.extend(named.map(|(name, value)| (entry.metric(name), value)));
        }
        Ok(Evaluation { weight: batch.get(self.entries[0].input())?.dims()[0] as f64, values })
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let of = |entry: &Entry| {
            let mut json = to_json(entry.layer.config());
            json["metadata"]["training_architecture_details"] =
                self.options.details(entry.layer.config()).into();
            (entry.name.clone(), json)
        };
        let saes: serde_json::Map<String, Value> = self.entries.iter().map(of).collect();
        vec![("saes.json".to_string(), format!("{:#}\n", json!(saes)).into_bytes())]
    }
}

/// The share of the variance in a batch that a reconstruction has: 1 less the squares it misses, over the squares around the mean.
fn explained_variance(x: &Tensor, output: &Tensor) -> Result<f64> {
    let squares = |x: Tensor| x.sqr()?.sum_all()?.to_dtype(DType::F64)?.to_scalar::<f64>();
    let around_mean = squares(x.broadcast_sub(&x.mean_keepdim(0)?)?)?;
    Ok(1.0 - squares((x - output)?)? / around_mean)
}

/// The inputs, and how badly each is reconstructed.
fn missed(x: &Tensor, output: &Tensor) -> Result<(Tensor, Vec<f64>)> {
    let squares = (x - output)?.detach().sqr()?.sum(1)?.to_dtype(DType::F64)?.to_vec1()?;
    Ok((x.detach(), squares))
}
