//! Hooks by layer.

use tenterhook_hooks::hook_fn;

use crate::support::*;

#[test]
fn hooks_are_found_switched_and_removed_by_layer() {
    let lm = lm("gpt2");
    let layers = lm.layers();
    let listed = layers.list_layers();
    let pattern = listed.iter().find(|layer| layer.name == "blocks.0.attn.hook_pattern").unwrap();
    assert_eq!((pattern.block, pattern.axes.as_str()), (Some(0), "batch head query_pos key_pos"));
    assert!(listed.iter().any(|layer| layer.aliases.contains(&"transformer.h.1".to_string())));

    let nothing = || hook_fn::observe("hook_embed", |_, _, _| Ok(()));
    let by_path = layers.register_hook("transformer.h.0", nothing()).unwrap();
    let by_index = layers.register_hook("-1", nothing()).unwrap();
    assert_eq!(layers.get_hooks("blocks.0.hook_resid_post").unwrap()[0].id, by_path);
    assert_eq!(layers.get_hooks("blocks.1.hook_resid_post").unwrap()[0].id, by_index);
    assert!(layers.get_hooks("hook_embed").unwrap().is_empty(), "where it listens is said at registration");

    layers.disable_all().unwrap();
    layers.enable_hook(&by_index).unwrap();
    let (_, report) = lm.forward(&lm.batch_of(&ids(3, 0)).unwrap()).unwrap();
    let fired = |id: &str| report.receipt(id).unwrap().fired;
    assert_eq!((fired(&by_path), fired(&by_index)), (0, 1));
    layers.disable_hook(&by_index).unwrap();
    layers.unregister_hook(&by_path).unwrap();
    assert!(layers.unregister_hook(&by_path).is_err());

    let error = layers.register_hook("transformer.h.0.atn", nothing()).unwrap_err().to_string();
    assert!(error.contains("transformer.h.0.attn"), "{error}");
}
