//! `config.json` of a model, and `[model]` of a run.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenterhook::models::ModelDescription;
use tenterhook::models::config::TransformerConfig;

fuzz_target!(|bytes: &[u8]| {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    if let Ok(config) = TransformerConfig::from_hf(&json) {
        let written = config.to_hf();
        assert!(TransformerConfig::from_hf(&written).is_ok(), "{written} does not read back");
    }
    if let Ok(described) = serde_json::from_value::<ModelDescription>(json) {
        described.problems();
    }
});
