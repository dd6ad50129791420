//! What can go wrong in an optimizer.

/// An optimizer could not be built, stepped or restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    /// A setting makes no sense.
    #[error("optimizer `{optimizer}`: `{key}` {problem}")]
    Config {
        /// The optimizer's name.
        optimizer: String,
        /// The setting.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A pattern chooses nothing.
    #[error("optimizer `{optimizer}`: no parameter matches `{pattern}`{}", or_nearest(.nearest))]
    NoMatch {
        /// The optimizer's name.
        optimizer: String,
        /// The pattern as it was written.
        pattern: String,
        /// The names nearest to it.
        nearest: Vec<String>,
    },
    /// Every parameter that an optimizer chooses went to one before it.
    #[error(
        "optimizer `{0}` gets no parameter: those before it take all that it matches; put it first, or remove it"
    )]
    NothingLeft(String),
    /// Parameters that no optimizer chooses.
    #[error("no optimizer updates {}; add a pattern that matches, or freeze what should stay as it is", some(.0))]
    Unassigned(Vec<String>),
    /// A parameter of a number type that optimizers cannot compute in.
    #[error(
        "parameter `{param}` is {dtype}: optimizers compute in f32 and f64; load the model in one of these"
    )]
    DType {
        /// The parameter.
        param: String,
        /// Its type.
        dtype: String,
    },
    /// A parameter that the optimizer updates is not among those given.
    #[error("optimizer `{optimizer}` updates `{param}`, which the model does not have")]
    NoParam {
        /// The optimizer's name.
        optimizer: String,
        /// The parameter.
        param: String,
    },
    /// A parameter that is not frozen has no gradient.
    #[error("no gradient for {}: freeze what the loss does not reach", some(.0))]
    NoGradient(Vec<String>),
    /// A gradient that does not fit its parameter.
    #[error("the gradient of `{param}` is {found}, the parameter is {wanted}")]
    Mismatch {
        /// The parameter.
        param: String,
        /// What the gradient is.
        found: String,
        /// What the parameter is.
        wanted: String,
    },
    /// A group's learning rate, or the scale of a step, is NaN or infinite.
    #[error("the {what} is {value}; no weight was changed")]
    NonFiniteSetting {
        /// Which number.
        what: String,
        /// Its value.
        value: f64,
    },
    /// The step would have made a weight, or a number the optimizer keeps for it, NaN or infinite.
    #[error(
        "the step would make {what} of `{param}` NaN or infinite; no weight was changed: lower the learning rate, or clip gradients"
    )]
    NonFinite {
        /// The parameter.
        param: String,
        /// "the weight", or the name of a state.
        what: String,
    },
    /// A gradient is NaN or infinite.
    #[error("the gradient of `{param}` has NaN or infinity; no weight was changed")]
    NonFiniteGradient {
        /// The parameter.
        param: String,
    },
    /// There is no such group.
    #[error("optimizer `{optimizer}` has {groups} groups, there is no group {index}")]
    NoGroup {
        /// The optimizer's name.
        optimizer: String,
        /// The index asked for.
        index: usize,
        /// How many groups there are.
        groups: usize,
    },
    /// A saved state that is not this optimizer's.
    #[error("the saved state of optimizer `{optimizer}` does not fit: {problem}")]
    State {
        /// The optimizer's name.
        optimizer: String,
        /// What is missing, too much, or of another shape.
        problem: String,
    },
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

fn or_nearest(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; nearest: {}", quoted(names)) }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The first few names, and how many more there are.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = quoted(&names[..names.len().min(SHOWN)]);
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}
