//! Every option of every kind of hook does something: two runs that differ in nothing else differ in what they leave behind.

mod autoencoder;
mod cases;
mod common;
mod controllers;
mod kinds;
mod logs;
mod scene;
mod see;
mod steering;
mod watching;
mod webhook;

use std::collections::BTreeSet;

use tenterhook::hooks::{HookRegistry, OptionInfo};
use tenterhook::training::registry;

use cases::Case;

/// All cases: those of the options that every hook has begin with `common.`.
fn all_cases() -> Vec<Case> {
    [
        autoencoder::cases(),
        common::cases(),
        controllers::cases(),
        logs::cases(),
        steering::cases(),
        watching::cases(),
        webhook::cases(),
    ]
    .concat()
}

/// Every option by the name that cases have.
fn all_options() -> Vec<(String, OptionInfo)> {
    let named = |kind: &str, options: Vec<OptionInfo>| {
        options.into_iter().map(|option| (format!("{kind}.{}", option.name), option)).collect::<Vec<_>>()
    };
    let registry = registry();
    let own = registry.kinds().flat_map(|kind| named(&kind.name, kind.options.clone()));
    own.chain(named("common", HookRegistry::common_options())).collect()
}

#[test]
fn every_option_of_every_kind_has_a_case() {
    let cases: BTreeSet<String> = all_cases().into_iter().map(|case| case.option.to_string()).collect();
    let options = all_options();
    let without: Vec<String> = options
        .iter()
        .filter(|(name, _)| !cases.contains(name))
        .map(|(name, _)| format!("no case for `{name}`"))
        .collect();
    assert!(without.is_empty(), "{without:#?}");
    let idle: Vec<&String> =
        cases.iter().filter(|case| !options.iter().any(|(name, _)| name == *case)).collect();
    assert!(idle.is_empty(), "cases for options that do not exist: {idle:?}");
}

/// A kind that takes no options must still be known to somebody.
#[test]
fn only_the_identity_has_no_options() {
    let registry = registry();
    let bare: Vec<&str> =
        registry.kinds().filter(|kind| kind.options.is_empty()).map(|kind| kind.name.as_str()).collect();
    assert_eq!(bare, ["identity_update"]);
}
