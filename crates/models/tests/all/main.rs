//! All integration tests of the models, in one binary; a module per property.

mod cached;
mod reference;
mod saving;
mod support;
mod training;
mod watching;
