//! Gradients by parameter name.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::error::{HookResult, nearest};

/// The gradients of all parameters, by name and in the order of their names.
///
/// An update hook replaces some of them with [`set`](NamedGrads::set); the set of names stays as it is.
#[derive(Clone, Debug, Default)]
pub struct NamedGrads(BTreeMap<String, Tensor>);

impl NamedGrads {
    /// The gradient of one parameter.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// All gradients by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, grad)| (name.as_str(), grad))
    }

    /// Replaces the gradient of a parameter that has one.
    pub fn set(&mut self, name: &str, grad: Tensor) -> HookResult {
        match self.0.get_mut(name) {
            Some(place) => *place = grad,
            None => {
                let near = nearest(name, self.0.keys().map(String::as_str), 3);
                return Err(
                    format!("no parameter `{name}` has a gradient; nearest: {}", near.join(", ")).into()
                );
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps only the gradients of some parameters.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }
}

impl FromIterator<(String, Tensor)> for NamedGrads {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(grads: I) -> Self {
        Self(grads.into_iter().collect())
    }
}
