//! Which optimizer updates which parameter, and with which settings.

use std::collections::BTreeSet;

use candle_core::DType;
use tenterhook_hooks::nearest;
use tenterhook_nn::Params;

use super::config::{self, Kind, OptimizerConfig};
use super::error::OptimError;

/// Parameters of an optimizer that share their settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// `decay` or `no_decay`.
    pub name: String,
    /// The rule.
    pub kind: Kind,
    /// The learning rate of the next step.
    pub lr: f64,
    /// The learning rate before the schedule.
    pub base_lr: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The betas, for adamw.
    pub betas: [f64; 2],
    /// The eps, for adamw.
    pub eps: f64,
    /// The momentum, for sgd.
    pub momentum: f64,
    /// Whether it is Nesterov's, for sgd.
    pub nesterov: bool,
    /// The parameters, by name.
    pub params: Vec<String>,
}

impl Group {
    fn new(config: &OptimizerConfig, decays: bool, params: Vec<String>) -> Self {
        Self {
            name: if decays { "decay" } else { "no_decay" }.to_string(),
            kind: config.kind,
            lr: config.lr,
            base_lr: config.lr,
            weight_decay: if decays { config.decay() } else { 0.0 },
            betas: config.betas,
            eps: config.eps,
            momentum: config.momentum,
            nesterov: config.nesterov,
            params,
        }
    }

    /// The names of what is kept per parameter.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::AdamW => &super::adamw::AdamW::STATE,
            Kind::Sgd if self.momentum == 0.0 => &[],
            Kind::Sgd => &super::sgd::Sgd::STATE,
        }
    }
}

/// The names of the optimizers: given, or made of kind and place.
pub(super) fn names(configs: &[OptimizerConfig]) -> Result<Vec<String>, OptimError> {
    let mut names: Vec<String> = Vec::new();
    for (i, config) in configs.iter().enumerate() {
        let name = config.name.clone().unwrap_or_else(|| format!("{}.{i}", config.kind.name()));
        if names.contains(&name) {
            let problem = "is the name of two optimizers; give each its own".to_string();
            return Err(OptimError::Config { optimizer: name, key: "name".into(), problem });
        }
        names.push(name);
    }
    Ok(names)
}

/// The groups of every optimizer. Each parameter goes to the first one that matches it.
pub(super) fn assign(
    configs: &[OptimizerConfig],
    names: &[String],
    params: &Params,
    allow_unassigned: bool,
) -> Result<Vec<Vec<Group>>, OptimError> {
    let mut free: BTreeSet<&str> = params.iter().map(|param| param.name()).collect();
    let mut all = Vec::new();
    for (config, optimizer) in configs.iter().zip(names) {
        if let Some((key, problem)) = config.problems().into_iter().next() {
            return Err(OptimError::Config { optimizer: optimizer.clone(), key, problem });
        }
        check_patterns(config, optimizer, params)?;
        let (mut decay, mut no_decay) = (Vec::new(), Vec::new());
        for param in params.iter().filter(|param| config.params.matches(param.name())) {
            if !free.remove(param.name()) {
                continue;
            }
            let dtype = param.value().dtype();
            if !matches!(dtype, DType::F32 | DType::F64) {
                return Err(OptimError::DType {
                    param: param.name().to_string(),
                    dtype: dtype.as_str().to_string(),
                });
            }
            let decays = param.value().rank() >= 2 || config.decay_norms_and_biases;
            (if decays { &mut decay } else { &mut no_decay }).push(param.name().to_string());
        }
        let groups: Vec<Group> = [(true, decay), (false, no_decay)]
            .into_iter()
            .filter(|(_, params)| !params.is_empty())
            .map(|(decays, params)| Group::new(config, decays, params))
            .collect();
        if groups.is_empty() {
            return Err(OptimError::NothingLeft(optimizer.clone()));
        }
        all.push(groups);
    }
    match free.is_empty() || allow_unassigned {
        true => Ok(all),
        false => Err(OptimError::Unassigned(free.into_iter().map(str::to_string).collect())),
    }
}

fn check_patterns(config: &OptimizerConfig, optimizer: &str, params: &Params) -> Result<(), OptimError> {
    let names = || params.iter().map(|param| param.name());
    for pattern in config.params.iter() {
        if !names().any(|name| config::matches(pattern, name)) {
            return Err(OptimError::NoMatch {
                optimizer: optimizer.to_string(),
                pattern: pattern.to_string(),
                nearest: nearest(pattern, names(), 3),
            });
        }
    }
    Ok(())
}
