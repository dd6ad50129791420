//! `tenterhook hooks`.

use serde_json::Value;
use tenterhook::hooks::HookRegistry;
use tenterhook::train::config::{Document, Format};
use tenterhook::training::registry;

use crate::example_files::example_files;
use crate::support::*;

fn json(args: &[&str]) -> Value {
    let ran = tenterhook(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn every_kind_is_listed_with_what_it_does() {
    let ran = tenterhook(&["hooks"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let registry = registry();
    for kind in registry.kinds() {
        let line = ran.stdout.lines().find(|line| line.starts_with(&format!("{} ", kind.name))).unwrap();
        assert!(line.ends_with(&kind.doc), "{line}");
    }
    let listed = json(&["hooks", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), registry.kinds().count());
}

#[test]
fn a_kind_is_shown_with_every_option() {
    let registry = registry();
    let common = HookRegistry::common_options();
    for kind in registry.kinds() {
        let ran = tenterhook(&["hooks", &kind.name]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        for option in kind.options.iter().chain(&common) {
            let line = ran.stdout.lines().find(|line| line.starts_with(&format!("{} ", option.name)));
            let line = line.unwrap_or_else(|| panic!("{}.{}: {}", kind.name, option.name, ran.stdout));
            assert_eq!(line.contains("required"), option.required, "{line}");
            assert!(option.aliases.iter().all(|alias| line.contains(alias.as_str())), "{line}");
        }
    }
    let shown = json(&["hooks", "early_stopping", "--json"]);
    assert_eq!(shown["options"][0]["name"], "monitor");
    assert_eq!(shown["common_options"].as_array().unwrap().len(), common.len());
}

#[test]
fn the_example_of_every_kind_can_be_pasted() {
    let registry = registry();
    for kind in registry.kinds() {
        let shown = json(&["hooks", &kind.name, "--json"]);
        let example = shown["example"].as_str().unwrap();
        let with_all = example.replace("\n# ", "\n");
        for text in [example, &with_all] {
            let document =
                Document::parse(text, Format::Toml).unwrap_or_else(|error| panic!("{text}: {error}"));
            let hook = registry.with_full_paths(&document.value()["hooks"][0], example_files());
            match registry.build(&hook) {
                Ok((hook, _)) => assert_eq!(hook.kind(), kind.name),
                // The variable is the reader's to set.
                Err(error) => {
                    assert!(error.to_string().contains("`CHAT_WEBHOOK_URL` is not set"), "{text}: {error}")
                }
            }
        }
    }
}

#[test]
fn one_kind_as_markdown_is_its_section_of_the_page() {
    let page = tenterhook(&["hooks", "--markdown"]).stdout;
    for kind in ["steer", "identity_update"] {
        let section = tenterhook(&["hooks", kind, "--markdown"]).stdout;
        assert!(section.starts_with(&format!("## {kind}\n")) && page.contains(section.trim()), "{section}");
    }
    assert_eq!(tenterhook(&["hooks", "--markdown", "--json"]).code, Some(2));
}

#[test]
fn p20_an_unknown_kind_is_an_error_with_the_nearest() {
    for (kind, words) in [
        ("early_stoping", ["`early_stopping`", "`tenterhook hooks` lists"]),
        ("zzzzzzzz", ["`zzzzzzzz`", "`tenterhook hooks` lists"]),
    ] {
        let ran = tenterhook(&["hooks", kind]);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{}", ran.stderr);
    }
}
