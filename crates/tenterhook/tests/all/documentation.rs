//! The guide: what is generated is up to date, and links lead somewhere. Its Rust code is run as doc tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tenterhook::train::config::{Document, Format};
use tenterhook::training::registry;

use crate::example_files::example_files;
use crate::support::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that people read.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name));
    top.into_iter().chain(docs).collect()
}

/// A page is what a command prints.
fn check_generated(page: &str, args: &[&str]) {
    let ran = tenterhook(args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let written = fs::read_to_string(root().join(page)).unwrap();
    let differs = written.lines().zip(ran.stdout.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(written.lines().count().min(ran.stdout.lines().count())) + 1;
    assert!(
        written == ran.stdout,
        "{page} is not what the code says, from line {line} on. To write it again:\n  {} {} > {page}",
        env!("CARGO_BIN_EXE_tenterhook"),
        args.join(" ")
    );
}

#[test]
fn the_page_of_hooks_is_up_to_date() {
    check_generated("docs/hooks.md", &["hooks", "--markdown"]);
}

#[test]
fn the_page_of_commands_is_up_to_date() {
    check_generated("docs/commands.md", &["commands"]);
}

#[test]
fn the_page_of_commands_has_all_of_them() {
    let page = tenterhook(&["commands"]).stdout;
    for heading in [
        "## tenterhook train",
        "### tenterhook runs rerun",
        "### tenterhook sae top",
        "## tenterhook completions",
    ] {
        assert!(page.lines().any(|line| line == heading), "{heading}");
    }
    assert!(!page.contains("## tenterhook commands") && !page.contains("## tenterhook help"), "{page}");
    assert!(page.contains("--set <KEY=VALUE>") && page.contains("One of `standard`, `topk`"), "{page}");
}

/// The fenced blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("\n```{language}\n");
    page.split(open.as_str()).skip(1).map(|rest| rest.split_once("\n```").unwrap().0).collect()
}

/// Every hook that a page shows can be made.
#[test]
fn every_table_of_a_hook_in_the_guide_is_right() {
    let registry = registry();
    let mut seen = BTreeSet::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in blocks(&text, "toml") {
            let document = Document::parse(block, Format::Toml)
                .unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()));
            for hook in document.value()["hooks"].as_array().into_iter().flatten() {
                let kind = hook["kind"].as_str().unwrap().to_string();
                // A reader's own kinds are made by the programs beside them.
                if kind.contains('.') {
                    continue;
                }
                match registry.build(&registry.with_full_paths(hook, example_files())) {
                    Ok(_) => drop(seen.insert(kind)),
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains("is not set"), "{}: {error}\n{block}", page.display());
                    }
                }
            }
        }
    }
    assert!(seen.len() > 25, "{seen:?}");
}

/// Where the links of a text lead, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code
    });
    let mut found = Vec::new();
    for line in prose {
        let without_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("");
        let targets = without_code.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| target.to_string()));
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let has_anchor = || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
            if !target.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", page.file_name().unwrap().to_string_lossy()));
            }
        }
    }
    assert!(broken.is_empty(), "these lead nowhere:\n{}", broken.join("\n"));
    assert!(count > 50, "only {count} links were found");
}

#[test]
fn links_are_found_and_broken_ones_too() {
    let text = "# A b: `c`!\n\nsee [x](y.md#z) and `[no](code)`\n\n```text\n[no](code)\n```\n[w](../w)\n";
    assert_eq!(links(text), ["y.md#z", "../w"]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-b-c"]);
}
