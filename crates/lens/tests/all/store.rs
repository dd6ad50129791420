//! What is put into a store comes out of it again, in every order it can be asked for.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::Positions;
use tenterhook_hooks::random::Stream;
use tenterhook_lens::store::{Per, WhenFull};
use tenterhook_lens::{LocalStore, ShuffleOptions, StoreError, StoreOptions, StoreReader};

use crate::support::*;

pub(crate) const STREAM: &str = "blocks.0.hook_resid_post";
pub(crate) const PATTERN: &str = "blocks.0.attn.hook_pattern";
pub(crate) const WIDTH: usize = 5;

/// Sequences of several lengths, some batches of them: a function of the seed.
pub(crate) fn batches(seed: u64, count: u64) -> Vec<Vec<Vec<u32>>> {
    let random = Stream::new(seed);
    let sequence = |i: u64, j: u64| {
        (0..1 + random.at(i).below(j, 9)).map(|k| random.at(i).at(j).below(k, 1000) as u32).collect()
    };
    (0..count).map(|i| (0..1 + random.below(i, 4)).map(|j| sequence(i, j)).collect()).collect()
}

/// What passed for a token: a function of (token, position, sequence), so that every row can be checked alone.
pub(crate) fn row(token: u32, position: u32, sequence: u64) -> Vec<f32> {
    (0..WIDTH)
        .map(|k| token as f32 + position as f32 * 0.25 + sequence as f32 * 8.0 + k as f32 * 0.125)
        .collect()
}

/// `[batch, pos, WIDTH]` with `-1` where there is padding.
pub(crate) fn activations(batch: &[Vec<u32>], first: u64, left: &[usize]) -> Tensor {
    let longest = batch.iter().zip(left).map(|(ids, left)| ids.len() + left).max().unwrap();
    let mut all = Vec::new();
    for (i, ids) in batch.iter().enumerate() {
        let mut rows = vec![vec![-1.0; WIDTH]; longest];
        for (position, token) in ids.iter().enumerate() {
            rows[left[i] + position] = row(*token, position as u32, first + i as u64);
        }
        all.extend(rows.concat());
    }
    Tensor::from_vec(all, (batch.len(), longest, WIDTH), &Device::Cpu).unwrap()
}

/// Writes these batches, numbered from `first`.
pub(crate) fn write(
    store: &LocalStore,
    run: &str,
    options: StoreOptions,
    all: &[Vec<Vec<u32>>],
) -> tenterhook_lens::StoreSummary {
    let mut writer = store.create(run, options).unwrap();
    let mut first = 0;
    for batch in all {
        let mut open = writer.batch(batch.clone()).unwrap();
        open.add(STREAM, "batch pos d_model", &activations(batch, first, &vec![0; batch.len()])).unwrap();
        writer.append(open).unwrap();
        first += batch.len() as u64;
    }
    writer.finish().unwrap()
}

pub(crate) fn small() -> StoreOptions {
    StoreOptions { memory_limit: 4096, shard_bytes: Some(700), ..StoreOptions::default() }
}

/// Every row is what its token, position and sequence say, and there are as many as there were tokens.
pub(crate) fn check_rows(reader: &StoreReader, all: &[Vec<Vec<u32>>]) {
    let tokens: Vec<u32> = all.iter().flatten().flatten().copied().collect();
    let rows = reader.rows(STREAM).unwrap();
    assert!(rows as usize <= tokens.len());
    let read = reader.read_rows(STREAM, 0..rows).unwrap();
    assert_eq!(read.tokens, tokens[..rows as usize], "in order");
    let values: Vec<Vec<f32>> = read.activations.to_vec2().unwrap();
    for (i, values) in values.iter().enumerate() {
        assert_eq!(values, &row(read.tokens[i], read.positions[i], read.sequences[i]), "row {i}");
    }
}

#[test]
fn everything_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(1, 200));
    let summary = write(&store, "a", small(), &all);
    let rows = all.iter().flatten().flatten().count() as u64;
    assert_eq!((summary.rows, summary.batches), (rows, 200));
    assert!(summary.shards > 20, "many shards: {}", summary.shards);
    assert!(summary.peak_bytes <= 4096);
    let reader = store.open("a").unwrap();
    assert!(reader.is_finished());
    assert_eq!((reader.rows(STREAM).unwrap(), reader.batch_count()), (rows, 200));
    assert_eq!(reader.sequences(), all.iter().flatten().count() as u64);
    check_rows(&reader, &all);
    let mut sequences = all.iter().flatten().enumerate();
    for batch in reader.batches(STREAM).unwrap() {
        let batch = batch.unwrap();
        let given = &all[batch.number as usize];
        assert_eq!(batch.rows.tokens, given.concat());
        for ids in given {
            let (number, same) = sequences.next().unwrap();
            assert_eq!(ids, same);
            assert!(batch.rows.sequences.contains(&(number as u64)));
        }
    }
    assert_eq!(sequences.next(), None, "all batches came");
    for (number, ids) in all.iter().flatten().enumerate().step_by(17) {
        let want: Vec<Vec<f32>> =
            ids.iter().enumerate().map(|(at, token)| row(*token, at as u32, number as u64)).collect();
        assert_eq!(reader.sequence(STREAM, number as u64).unwrap().to_vec2::<f32>().unwrap(), want);
    }
    for range in [0..0, 0..1, 3..40, rows - 1..rows, rows..rows] {
        let part = reader.read_rows(STREAM, range.clone()).unwrap();
        assert_eq!(part.tokens, all.concat().concat()[range.start as usize..range.end as usize]);
        assert_eq!(part.activations.dims(), [part.tokens.len(), WIDTH]);
    }
    for (range, layer) in [(0..rows + 1, STREAM), (0..1, "blocks.1.hook_resid_post")] {
        assert!(matches!(reader.read(layer, range), Err(StoreError::BadInput(_))));
    }
    assert_eq!(store.runs().unwrap(), ["a"]);
    assert_eq!(
        StoreReader::open(dir.path()).unwrap().path(),
        reader.path(),
        "a store with one run is that run"
    );
}

#[test]
fn shuffled_rows_come_exactly_once_in_an_order_of_their_seed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(2, 150));
    write(&store, "a", small(), &all);
    let reader = store.open("a").unwrap();
    let order = |seed: u64, epoch: u64, buffer_rows: Option<usize>, batch_rows: usize| {
        let mut order = Vec::new();
        let options = ShuffleOptions { seed, epoch, buffer_rows };
        let mut sizes = Vec::new();
        for batch in reader.shuffled_with(STREAM, batch_rows, options).unwrap() {
            let batch = batch.unwrap();
            let values: Vec<Vec<f32>> = batch.activations.to_vec2().unwrap();
            for (i, values) in values.iter().enumerate() {
                assert_eq!(values, &row(batch.tokens[i], batch.positions[i], batch.sequences[i]));
                order.push((batch.sequences[i], batch.positions[i]));
            }
            sizes.push(batch.tokens.len());
        }
        assert!(sizes[..sizes.len() - 1].iter().all(|size| *size == batch_rows), "only the last is smaller");
        order
    };
    let rows = reader.rows(STREAM).unwrap() as usize;
    for buffer in [None, Some(100), Some(1)] {
        let once = order(7, 0, buffer, 33);
        assert_eq!(once.iter().collect::<BTreeSet<_>>().len(), rows, "every row, and none twice");
        assert_eq!(once.len(), rows);
        assert_eq!(once, order(7, 0, buffer, 33));
        assert_ne!(once, order(8, 0, buffer, 33));
        assert_ne!(once, order(7, 1, buffer, 33));
        assert!(!once.is_sorted());
    }
    assert_eq!(order(7, 0, Some(100), 10), order(7, 0, Some(100), 33), "the size of batches does not matter");
    // A whole buffer is well mixed: on the average a row goes a third of the way.
    let moved: f64 = order(3, 0, None, 50)
        .iter()
        .map(|(sequence, _)| *sequence as f64)
        .zip(reader.read_rows(STREAM, 0..rows as u64).unwrap().sequences)
        .map(|(a, b)| (a - b as f64).abs())
        .sum::<f64>()
        / rows as f64;
    let third = reader.sequences() as f64 / 3.0;
    assert!((moved - third).abs() < 0.15 * third, "{moved}, not {third}");
}

#[test]
fn padding_on_either_side_is_not_stored_and_patterns_are_stored_by_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let batch = vec![vec![1, 2, 3], vec![4], vec![5, 6]];
    let pattern = Tensor::arange(0f32, 54., &Device::Cpu).unwrap().reshape((3, 2, 3, 3)).unwrap();
    let mut writer = store.create("a", StoreOptions::default()).unwrap();
    for left in [vec![0, 0, 0], vec![0, 2, 1]] {
        let first = if left[1] == 0 { 0 } else { 3 };
        let mut open = writer.batch(batch.clone()).unwrap().left_padding(left.clone()).unwrap();
        open.add(STREAM, "batch pos d_model", &activations(&batch, first, &left)).unwrap();
        open.add(PATTERN, "batch head query_pos key_pos", &pattern).unwrap();
        writer.append(open).unwrap();
    }
    assert_eq!(writer.finish().unwrap().rows, 12);
    let reader = store.open("a").unwrap();
    check_rows(&reader, &[batch.clone(), batch]);
    let (stream, by_sequence) = (reader.layer(STREAM).unwrap(), reader.layer(PATTERN).unwrap());
    assert_eq!((stream.per, by_sequence.per), (Per::Token, Per::Sequence));
    let values = |sequence| reader.sequence(PATTERN, sequence).unwrap().to_vec3::<f32>().unwrap();
    assert_eq!(reader.sequence(PATTERN, 0).unwrap().dims(), [2, 3, 3]);
    assert_eq!(values(1), [[[18.]], [[27.]]], "at the beginning");
    assert_eq!(values(4), [[[26.]], [[35.]]], "at the end");
    assert_eq!(values(5), [[[40., 41.], [43., 44.]], [[49., 50.], [52., 53.]]]);
    let error = reader.read(PATTERN, 0..1).unwrap_err().to_string();
    assert!(error.contains("stored by sequence"), "{error}");
}

#[test]
fn p22_one_position_costs_one_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let batch = vec![(0..20).collect::<Vec<u32>>(), vec![7, 8, 9]];
    // The limit is far below what the whole tensor needs.
    let limit = 8 * 23 + 16 + 3 * WIDTH * 4;
    let mut writer =
        store.create("a", StoreOptions { memory_limit: limit, ..StoreOptions::default() }).unwrap();
    let mut open = writer.batch(batch.clone()).unwrap().keep(&Positions(vec![-1, 4])).unwrap();
    open.add(STREAM, "batch pos d_model", &activations(&batch, 0, &[0, 0])).unwrap();
    writer.append(open).unwrap();
    assert_eq!(writer.finish().unwrap().rows, 3);
    let read = store.open("a").unwrap().read_rows(STREAM, 0..3).unwrap();
    assert_eq!(
        (read.tokens, read.positions, read.sequences),
        (vec![4, 19, 9], vec![4, 19, 2], vec![0, 0, 1])
    );
    assert_eq!(read.activations.to_vec2::<f32>().unwrap()[2], row(9, 2, 1));
}

#[test]
fn halves_on_the_disk_are_floats_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(3, 20));
    let whole = write(&store, "f32", StoreOptions::default(), &all);
    for (name, dtype, tolerance) in [("f16", DType::F16, 1e-3), ("bf16", DType::BF16, 8e-3)] {
        let half = write(&store, name, StoreOptions { dtype: Some(dtype), ..StoreOptions::default() }, &all);
        assert!(half.bytes < whole.bytes);
        let read = |run: &str| store.open(run).unwrap().read(STREAM, 0..whole.rows).unwrap();
        let (got, want) = (read(name), read("f32"));
        assert_eq!(got.dtype(), DType::F32);
        for (a, b) in values(&got).into_iter().zip(values(&want)) {
            assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{name}: {a}, not {b}");
        }
    }
    let mut writer =
        store.create("large", StoreOptions { dtype: Some(DType::F16), ..StoreOptions::default() }).unwrap();
    let mut open = writer.batch(vec![vec![1]]).unwrap();
    open.add("x", "batch pos d", &Tensor::new(&[[[1e6f32, 1.0]]], &Device::Cpu).unwrap()).unwrap();
    writer.append(open).unwrap();
    assert_eq!(writer.finish().unwrap().too_large, 1, "what does not fit is counted");
}

#[test]
fn a_run_goes_on_behind_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (store, all) = (LocalStore::new(dir.path()), batches(4, 60));
    write(&store, "a", small(), &all[..30]);
    let mut writer = store.append("a", small()).unwrap();
    let mut first = all[..30].iter().flatten().count() as u64;
    for (number, batch) in all[30..].iter().enumerate() {
        let mut open = writer.batch(batch.clone()).unwrap();
        open.add(STREAM, "batch pos d_model", &activations(batch, first, &vec![0; batch.len()])).unwrap();
        assert_eq!(writer.append(open).unwrap(), Some(30 + number as u64));
        first += batch.len() as u64;
    }
    assert!(!store.open("a").unwrap().is_finished());
    writer.finish().unwrap();
    let reader = store.open("a").unwrap();
    assert_eq!(reader.rows(STREAM).unwrap() as usize, all.iter().flatten().flatten().count());
    check_rows(&reader, &all);
}

#[test]
fn p22_what_does_not_fit_waits_is_left_out_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let x = Tensor::ones((1, 10, 10), DType::F32, &Device::Cpu).unwrap();
    let ids = || vec![(0..10).collect::<Vec<u32>>()];
    // Room for two batches, shards of a hundred: without a flush for whoever waits, the third would wait for ever.
    let options = |when_full| StoreOptions {
        memory_limit: 1000,
        shard_bytes: Some(1 << 20),
        when_full,
        ..StoreOptions::default()
    };
    let fill = |run: &str, when_full| {
        let mut writer = store.create(run, options(when_full)).unwrap();
        let mut taken = 0;
        for _ in 0..100 {
            let mut open = writer.batch(ids())?;
            open.add("x", "batch pos d", &x)?;
            taken += u64::from(writer.append(open)?.is_some());
        }
        let summary = writer.finish()?;
        assert_eq!((summary.batches, summary.left_out), (taken, 100 - taken));
        assert!(summary.peak_bytes <= 1000);
        Ok::<_, StoreError>(summary)
    };
    assert_eq!(fill("wait", WhenFull::Wait).unwrap().left_out, 0);
    let left_out = fill("leave_out", WhenFull::LeaveOut).unwrap();
    assert_eq!((left_out.left_out, left_out.batches), (98, 2), "nobody waits, so nobody flushes");
    assert!(matches!(fill("fail", WhenFull::Fail), Err(StoreError::Full { limit: 1000 })));
    let mut writer = store.create("large", options(WhenFull::Wait)).unwrap();
    let mut open = writer.batch(ids()).unwrap();
    open.add("x", "batch pos d", &x).unwrap();
    let wide = Tensor::ones((1, 10, 20), DType::F32, &Device::Cpu).unwrap();
    let error = open.add("y", "batch pos d", &wide).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { needed: 1288, limit: 1000 }), "{error}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let x = |width: usize| Tensor::ones((1, 2, width), DType::F32, &Device::Cpu).unwrap();
    let mut writer = store.create("a", StoreOptions::default()).unwrap();
    let mut add = |layers: &[(&str, &str, usize)], sequences: Vec<Vec<u32>>| {
        let mut open = writer.batch(sequences)?;
        for (layer, axes, width) in layers {
            open.add(layer, axes, &x(*width))?;
        }
        writer.append(open)
    };
    let axes = "batch pos d";
    add(&[("x", axes, 3)], vec![vec![1, 2]]).unwrap();
    for (layers, sequences, word) in [
        (&[("x", axes, 4)][..], vec![vec![1, 2]], "shape [4]"),
        (&[("y", axes, 3)], vec![vec![1, 2]], "has the layer `x`"),
        (&[("x", axes, 3), ("y", axes, 3)], vec![vec![1, 2]], "not a layer of the run"),
        (&[("x", axes, 3), ("x", axes, 3)], vec![vec![1, 2]], "already"),
        (&[("x", axes, 3)], vec![vec![1, 2, 3]], "2 positions"),
        (&[("x", axes, 3)], vec![vec![]], "no tokens"),
        (&[("x", axes, 3)], vec![], "at least one sequence"),
        (&[], vec![vec![1, 2]], "at least one layer"),
        (&[("x", "pos d batch", 3)], vec![vec![1, 2]], "must be `batch`"),
        (&[("tokens", axes, 3)], vec![vec![1, 2]], "cannot be the name"),
        (&[("x#1", axes, 3)], vec![vec![1, 2]], "cannot be the name"),
    ] {
        let error = add(layers, sequences).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains(word), "{error}");
    }
    add(&[("x", axes, 3)], vec![vec![1, 2]]).unwrap();
    assert_eq!(writer.finish().unwrap().batches, 2, "what was refused left nothing behind");
    for (options, word) in [
        (StoreOptions { memory_limit: 0, ..StoreOptions::default() }, "memory_limit"),
        (StoreOptions { shard_bytes: Some(0), ..StoreOptions::default() }, "shard_bytes"),
        (StoreOptions { dtype: Some(DType::U8), ..StoreOptions::default() }, "f32, f16 or bf16"),
    ] {
        assert!(store.create("b", options).unwrap_err().to_string().contains(word));
    }
    for name in ["../a", "", "a/b", "CON"] {
        assert!(store.create(name, StoreOptions::default()).is_err(), "{name}");
        assert!(store.open(name).is_err(), "{name}");
    }
    let error = store.create("a", StoreOptions::default()).unwrap_err().to_string();
    assert!(error.contains("already"), "{error}");
    assert_eq!(store.runs().unwrap(), ["a"]);
}
