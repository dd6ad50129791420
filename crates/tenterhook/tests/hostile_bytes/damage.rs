//! Damaging good input, and feeding it to a parser.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::allocation::peak_of;

/// No input here is larger than some 100 KB, and no parser keeps more than a few copies of it as a tree. Most of this is for the
/// backtrace of a panic that is caught (a tokenizer's), where those are asked for: it reads the symbols of this program.
const MOST_BYTES: usize = 128 << 20;
const LONGEST: Duration = Duration::from_secs(20);

/// What hurts parsers: brackets, ends of strings, names that lead out, and bytes that are no text.
const SPLICES: [&[u8]; 18] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\n",
    b"\0",
    b"..",
    b"../../x",
    b"null",
    b"true",
    b"=",
    b"\xff\xfe",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\xe2\x80\xae",
    b"[[[[[[[[[[[[[[[[",
];

/// Numbers that overflow something.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967296",
    "1e999",
    "-0.0",
    "1e-320",
    "0.5",
    "1000000000000",
];

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    Remove(Index, usize),
    Repeat(Index, usize),
    Splice(Index, usize),
    /// The digits nearest after a place become another number.
    Number(Index, usize),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let at = any::<Index>;
    let one = prop_oneof![
        2 => (at(), 1..=255u8).prop_map(|(at, flip)| Damage::Flip(at, flip)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), 1..40usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        1 => (at(), 1..200usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
        2 => (at(), 0..SPLICES.len()).prop_map(|(at, which)| Damage::Splice(at, which)),
        3 => (at(), 0..NUMBERS.len()).prop_map(|(at, which)| Damage::Number(at, which)),
    ];
    prop::collection::vec(one, 1..5)
}

/// The damage falls on the first `reach` bytes, where a file has its structure.
fn damaged(good: &[u8], damages: &[Damage], reach: usize) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for damage in damages {
        let place = |at: &Index| at.index(bytes.len().min(reach).max(1)).min(bytes.len());
        match damage {
            Damage::Flip(at, flip) => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= flip;
                }
            }
            Damage::Cut(at) => bytes.truncate(place(at)),
            Damage::Remove(at, length) => {
                let at = place(at);
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Damage::Repeat(at, length) => {
                let at = place(at);
                let piece = bytes[at..(at + length).min(bytes.len())].repeat(3);
                bytes.splice(at..at, piece);
            }
            Damage::Splice(at, which) => {
                let at = place(at);
                bytes.splice(at..at, SPLICES[*which].iter().copied());
            }
            Damage::Number(at, which) => {
                let at = place(at);
                let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|more| at + more)
                else {
                    continue;
                };
                let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(start..start + digits, NUMBERS[*which].bytes());
            }
        }
    }
    bytes
}

/// So many in the ordinary suite, and fifty times as many in a long campaign.
fn inputs(usual: u32) -> u32 {
    match std::env::var("TENTERHOOK_CAMPAIGN").as_deref() {
        Ok("long") => usual * 50,
        _ => usual,
    }
}

/// Feeds damaged copies of `good` to `parse`, which may refuse them but must come back, without a panic and without much memory.
pub(crate) fn feed(what: &str, good: &[u8], usual: u32, parse: impl Fn(&[u8])) {
    feed_within(what, good, usize::MAX, usual, parse);
}

/// The same with all damage in the first `reach` bytes.
pub(crate) fn feed_within(what: &str, good: &[u8], reach: usize, usual: u32, parse: impl Fn(&[u8])) {
    parse(good);
    let cases = inputs(usual);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let most = std::cell::Cell::new(0);
    let run = TestRunner::new(config).run(&damages(), |damages| {
        let bytes = damaged(good, &damages, reach);
        let began = Instant::now();
        let peak = peak_of(|| parse(&bytes));
        most.set(peak.max(most.get()));
        prop_assert!(peak < MOST_BYTES, "{} bytes for {} of input", peak, bytes.len());
        prop_assert!(began.elapsed() < LONGEST, "took {:?}", began.elapsed());
        Ok(())
    });
    if let Err(error) = run {
        panic!("{what}: {error}");
    }
    println!("{what}: {cases} damaged inputs, at most {} KiB held", most.get() >> 10);
}
