//! A name matches the right points, or is an error that shows the way.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tenterhook_hooks::{
    AttachError, HookManager, Point, PointTable, Selector, Site, glob_matches, hook_fn, nearest,
};

use crate::support::Mlp;

/// A glob, read one token at a time.
enum Token {
    Anything,
    One,
    Literal(char),
    Class { negated: bool, members: Vec<char> },
}

fn tokens(pattern: &[char]) -> Vec<Token> {
    let Some((first, rest)) = pattern.split_first() else { return Vec::new() };
    let (token, rest) = match first {
        '*' => (Token::Anything, rest),
        '?' => (Token::One, rest),
        '[' => {
            let negated = rest.first() == Some(&'!');
            let inside = if negated { &rest[1..] } else { rest };
            match inside.iter().skip(1).position(|c| *c == ']') {
                Some(end) => {
                    (Token::Class { negated, members: members(&inside[..=end]) }, &inside[end + 2..])
                }
                None => (Token::Literal('['), rest),
            }
        }
        c => (Token::Literal(*c), rest),
    };
    let mut all = vec![token];
    all.extend(tokens(rest));
    all
}

fn members(class: &[char]) -> Vec<char> {
    match class {
        [from, '-', to, rest @ ..] => (*from..=*to).chain(members(rest)).collect(),
        [c, rest @ ..] => std::iter::once(*c).chain(members(rest)).collect(),
        [] => Vec::new(),
    }
}

/// The definition, with no thought for speed.
fn matches_by_definition(pattern: &[Token], text: &[char]) -> bool {
    let Some((token, rest)) = pattern.split_first() else { return text.is_empty() };
    if let Token::Anything = token {
        return (0..=text.len()).any(|skip| matches_by_definition(rest, &text[skip..]));
    }
    let Some((c, after)) = text.split_first() else { return false };
    let fits = match token {
        Token::One | Token::Anything => true,
        Token::Literal(literal) => literal == c,
        Token::Class { negated, members } => members.contains(c) != *negated,
    };
    fits && matches_by_definition(rest, after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn p20_globs_match_what_the_definition_says(pattern in r"[a-c.*?\[\]!\-]{0,9}", text in r"[a-c.\[\]!\-]{0,10}") {
        let chars: Vec<char> = pattern.chars().collect();
        let by_definition = matches_by_definition(&tokens(&chars), &text.chars().collect::<Vec<_>>());
        prop_assert_eq!(glob_matches(&pattern, &text), by_definition);
    }
}

/// A hundred thousand points in ten thousand blocks.
static LARGE: LazyLock<Arc<PointTable>> = LazyLock::new(|| {
    let mut points = PointTable::builder();
    for i in 0..100_000 {
        let (block, part) = (i / 10, i % 10);
        points
            .point(
                Point::new(format!("blocks.{block}.attn.hook_part_{part}"), "d")
                    .alias(format!("model.h.{block}.p{part}")),
            )
            .unwrap();
    }
    points.build()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn p20_any_name_is_a_right_match_or_an_error_with_suggestions(name in r"\PC{0,40}|layers\.[0-4*?]\.hook_(in|ot|ut|pre|\*)|[layers.012hok_]{1,20}") {
        let table = Mlp::new().table;
        match Selector::Name(name.clone()).resolve(&table, Site::Forward) {
            Ok(found) => {
                prop_assert!(!found.is_empty());
                for found in found {
                    let known = table.point(found.point).names().any(|known| known == &*found.name);
                    prop_assert!(known && (*found.name == *name || glob_matches(&name, &found.name)));
                }
            }
            Err(AttachError::NoMatch { selector, nearest, .. }) => {
                prop_assert_eq!(&selector, &name);
                prop_assert!(nearest.len() <= 3 && nearest.iter().all(|near| table.find(near).is_some()));
                let any_matches = table.all_names().any(|known| known == name || glob_matches(&name, known));
                prop_assert!(!any_matches, "{} should have matched", name);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// The quick way to the nearest names finds what comparing all of them finds.
    #[test]
    fn nearest_names_are_the_nearest(wanted in "[abc._é]{0,8}", names in proptest::collection::vec("[abc._é]{0,8}", 0..30)) {
        let mut all: Vec<(f64, &str)> =
            names.iter().map(|name| (strsim_likeness(&wanted, name), name.as_str())).filter(|(score, _)| *score > 0.2).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        all.dedup();
        let want: Vec<&str> = all.iter().take(3).map(|(_, name)| *name).collect();
        prop_assert_eq!(nearest(&wanted, names.iter().map(String::as_str), 3), want);
    }
}

/// What `nearest` ranks by, asked for one name at a time.
fn strsim_likeness(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(a, b)
}

/// Work that grows exponentially would take hours: a watchdog, not a measurement.
fn quickly<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < Duration::from_secs(60), "{what} took {:?}", begin.elapsed());
    result
}

#[test]
fn p20_no_glob_takes_exponential_time() {
    let text = "a".repeat(2000);
    let hard = format!("{}b", "a*".repeat(500));
    assert!(!quickly("many stars", || glob_matches(&hard, &text)));
    assert!(!quickly("many classes", || glob_matches(&"*[!b]".repeat(2001), &text)));
    assert!(!quickly("many open brackets", || glob_matches(&"*[".repeat(2000), &text)));
}

#[test]
fn p20_a_hundred_thousand_points_are_found_or_not_in_time() {
    let table = &*LARGE;
    let count =
        |selector: &str| Selector::from(selector).resolve(table, Site::Forward).map(|found| found.len());
    assert_eq!(quickly("all", || count("*")), Ok(100_000));
    assert_eq!(quickly("a tenth", || count("blocks.*.hook_part_7")), Ok(10_000));
    assert_eq!(quickly("aliases", || count("model.h.*.p3")), Ok(10_000));
    assert_eq!(quickly("one", || count("blocks.777.attn.hook_part_7")), Ok(1));
    let error = quickly("a misspelt name", || count("blocks.777.attn.hok_part_7")).unwrap_err();
    assert!(error.to_string().contains("nearest: `blocks.777.attn.hook_part_7`"), "{error}");
    let endless = "blocks.".repeat(20_000);
    assert!(quickly("an endless name", || count(&endless)).is_err());
    assert!(quickly("an endless glob", || count(&format!("{endless}*"))).is_err());
    assert!(quickly("nothing alike", || count("\u{1F980}")).is_err());

    let hooks = HookManager::new(table.clone());
    let id = quickly("registering", || hooks.register(hook_fn::observe("*", |_, _, _| Ok(())))).unwrap();
    assert_eq!(hooks.list_hooks()[0].matched.len(), 100_000);
    hooks.remove_hook(&id).unwrap();
}

#[test]
fn selectors_choose_what_they_say() {
    let table = Mlp::new().table;
    let names = |selector: Selector, site: Site| -> Result<Vec<String>, AttachError> {
        Ok(selector.resolve(&table, site)?.into_iter().map(|found| found.name.to_string()).collect())
    };
    assert_eq!(names("layers.1".into(), Site::Forward).unwrap(), ["layers.1"]);
    assert_eq!(names("layers.1".into(), Site::PreForward).unwrap(), ["layers.1.hook_in"]);
    assert_eq!(names((-1).into(), Site::Forward).unwrap(), ["layers.2"]);
    assert_eq!(names("0".into(), Site::PreGradient).unwrap(), ["layers.0.hook_in"]);
    assert_eq!(names("layers.?.hook_pre".into(), Site::Forward).unwrap().len(), 3);
    let list: Selector = vec!["layers.2.hook_pre", "layers.0.hook_*", "layers.0.hook_in"].into();
    let want = ["layers.0.hook_in", "layers.0.hook_pre", "layers.0.hook_out", "layers.2.hook_pre"];
    assert_eq!(names(list, Site::Forward).unwrap(), want, "each once, in the order of the table");
    assert_eq!(names(3.into(), Site::Forward), Err(AttachError::NoBlock { index: 3, blocks: 3 }));
    assert!(names(Vec::<&str>::new().into(), Site::Forward).is_err());
    let error = names(vec!["layers.0", "nowhere.*"].into(), Site::Forward).unwrap_err();
    assert!(
        error.to_string().contains("`nowhere.*`"),
        "one of a list that matches nothing is an error: {error}"
    );
}

#[test]
fn names_with_brackets_can_be_said_literally() {
    let mut points = PointTable::builder();
    points.point(Point::new("experts[0].out", "d")).unwrap();
    points.point(Point::new("experts0.out", "d")).unwrap();
    let points = points.build();
    let found = Selector::from("experts[0].out").resolve(&points, Site::Forward).unwrap();
    assert_eq!(found.iter().map(|found| &*found.name).collect::<Vec<_>>(), ["experts[0].out"]);
}
