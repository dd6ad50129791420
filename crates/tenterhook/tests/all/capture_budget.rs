//! A capture takes the memory it may take, loses nothing, and leaves a store that can be read wherever it is killed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use serde_json::Value;
use tenterhook::hooks::random::Stream;
use tenterhook::lens::{CacheOptions, LanguageModel, LocalStore, StoreOptions, StoreReader};
use tenterhook::models::Transformer;
use tenterhook::models::config::TransformerConfig;

use crate::lab::Lab;
use crate::support::campaign;

const LENGTH: usize = 64;
/// What passes in the residual stream, the norms, the attention and the MLP, by all names: some 40 kB for each token.
const POINTS: [&str; 6] = [
    "transformer.h.*.hook_in",
    "transformer.h.*.hook_out",
    "blocks.*.hook_resid_*",
    "*.mlp.hook_*",
    "*.attn.hook_[qkvz]",
    "*.hook_normalized",
];

/// A model whose activations are many times its weights, and so many sequences for it.
fn lab(sequences: u64) -> Lab {
    let lab = Lab::new();
    let config = TransformerConfig::gpt2(64, LENGTH, 64, 4, 4);
    Transformer::init(config, 5, DType::F32, &Device::Cpu)
        .unwrap()
        .save(&lab.path().join("model"), None)
        .unwrap();
    let ids: Vec<Vec<u64>> = (0..sequences).map(|i| tokens(i).into_iter().map(u64::from).collect()).collect();
    lab.write("ids.json", serde_json::to_string(&ids).unwrap());
    lab
}

/// The sequence with this number; every fifth is shorter, so that there is padding.
fn tokens(sequence: u64) -> Vec<u32> {
    let random = Stream::new(sequence);
    let length = if sequence % 5 == 4 { LENGTH - 7 } else { LENGTH };
    (0..length as u64).map(|i| random.below(i, 64) as u32).collect()
}

fn args<'a>(run: &'a str, limit: &'a str, batch: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let points = POINTS.iter().flat_map(|points| ["--points", points]);
    let capture =
        ["capture", "model", "--tokens-file", "ids.json", "--out", "acts", "--json", "--batch-size", batch];
    capture
        .into_iter()
        .chain(points)
        .chain(["--run", run, "--memory-limit", limit])
        .chain(more.iter().copied())
        .collect()
}

/// Runs it to its end; returns what it said and the most memory it had, in bytes.
fn measured(lab: &Lab, args: &[&str]) -> (Value, u64) {
    let mut child = lab.command(args).spawn().unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(resident(child.id()).unwrap_or(0));
        sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), peak)
}

/// The most memory a process has had.
fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Every row is there with its token, position and sequence, and every so many sequences have the values that the model gives.
fn check(lab: &Lab, reader: &StoreReader, sequences: u64, every: usize) {
    let lm = LanguageModel::from_pretrained(lab.path().join("model").to_str().unwrap()).unwrap();
    let layer = &reader.layers()[0].name;
    let mut start = 0;
    for sequence in 0..sequences {
        let ids = tokens(sequence);
        let rows = reader.read_rows(layer, start..start + ids.len() as u64).unwrap();
        assert!(rows.positions.into_iter().eq(0..ids.len() as u32), "sequence {sequence}");
        assert!(rows.sequences.iter().all(|number| *number == sequence));
        assert_eq!(rows.tokens, ids);
        start += ids.len() as u64;
        if !(sequence as usize).is_multiple_of(every) {
            continue;
        }
        let (_, cache, _) = lm.run_with_cache(&lm.batch_of(&ids).unwrap(), &CacheOptions::default()).unwrap();
        for layer in reader.layers() {
            let (got, want) =
                (reader.sequence(&layer.name, sequence).unwrap(), cache.get(&layer.name).unwrap());
            let difference =
                (got - want.get(0).unwrap()).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(difference.to_scalar::<f32>().unwrap() < 1e-4, "{} of sequence {sequence}", layer.name);
        }
    }
    assert_eq!(reader.rows(layer).unwrap(), start);
}

/// Bytes per second of plain writing with a final sync, in files of 64 MiB.
fn raw_speed(dir: &Path, bytes: u64) -> f64 {
    let piece: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let started = Instant::now();
    let paths: Vec<_> = (0..bytes.div_ceil(64 << 20)).map(|i| dir.join(format!("raw-{i}"))).collect();
    for path in &paths {
        let mut file = File::create(path).unwrap();
        (0..64).for_each(|_| file.write_all(&piece).unwrap());
        file.sync_all().unwrap();
    }
    let speed = (paths.len() as u64 * (64 << 20)) as f64 / started.elapsed().as_secs_f64();
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    speed
}

/// 200 MB through 16 MiB, or 5 GiB through 256 MiB, with the speed of the disk measured before and after.
#[test]
fn p22_a_store_takes_its_limit_and_loses_nothing() {
    let (sequences, limit) = (campaign(140, 3700), campaign(16, 256));
    let lab = lab(sequences);
    let (limit_text, batch) = (limit.to_string(), campaign(2, 8).to_string());
    // The same forwards, of which next to nothing is kept: what the model takes.
    let few = Lab::new();
    fs::rename(lab.path().join("model"), few.path().join("model")).unwrap();
    few.write("ids.json", serde_json::to_string(&(0..24).map(tokens).collect::<Vec<_>>()).unwrap());
    let (_, base) = measured(&few, &args("base", "1", &batch, &["--positions", "0"]));
    fs::rename(few.path().join("model"), lab.path().join("model")).unwrap();
    let before = if campaign(0, 1) == 1 { raw_speed(lab.path(), 1 << 30) } else { 0.0 };
    let (told, peak) = measured(&lab, &args("all", &limit_text, &batch, &[]));
    let bytes = told["bytes"].as_u64().unwrap();
    let wanted = campaign(200_000_000, 5 << 30);
    assert!(bytes >= wanted, "{bytes}");
    let allowed = base + (limit << 20) * 11 / 10;
    println!(
        "{:.2} GB under {limit} MiB: {:.0} MiB resident at most, {:.0} MiB of them the model's, {:.0} MiB allowed",
        bytes as f64 / 1e9,
        peak as f64 / 1048576.0,
        base as f64 / 1048576.0,
        allowed as f64 / 1048576.0
    );
    assert!(peak <= allowed, "{peak} bytes resident, {allowed} allowed");
    assert!(told["peak_bytes"].as_u64().unwrap() <= limit << 20);
    if campaign(0, 1) == 1 {
        let raw = f64::midpoint(before, raw_speed(lab.path(), 1 << 30));
        let speed = bytes as f64 / told["seconds"].as_f64().unwrap();
        println!("{:.0} MB/s captured, {:.0} MB/s raw: {:.0}%", speed / 1e6, raw / 1e6, 100.0 * speed / raw);
    }
    let reader = StoreReader::open(lab.path().join("acts")).unwrap();
    assert!(reader.is_finished());
    check(&lab, &reader, sequences, campaign(16, 300) as usize);
}

fn shards(run: &Path) -> usize {
    let Ok(entries) = fs::read_dir(run) else { return 0 };
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("shard-")).count()
}

/// Waits until the run has so many shards and a little longer; false when the process has ended before.
fn reaches(child: &mut Child, run: &Path, wanted: usize, longer: Duration) -> bool {
    while shards(run) < wanted || !run.join("index.json").exists() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    sleep(longer);
    child.try_wait().unwrap().is_none()
}

#[test]
fn p22_killed_anywhere_a_store_can_be_read_to_its_last_whole_shard() {
    let sequences = 24;
    let lab = lab(sequences);
    lab.ok(&args("whole", "4", "2", &[]));
    let whole = StoreReader::open(lab.path().join("acts/whole")).unwrap();
    let layers: Vec<String> = whole.layers().iter().map(|layer| layer.name.clone()).collect();
    let random = Stream::new(9);
    let (mut killed, mut rows) = (0, Vec::new());
    for round in 0..campaign(6, 200) {
        let run = format!("killed-{round}");
        let path = lab.path().join("acts").join(&run);
        let mut command = lab.command(&args(&run, "4", "2", &[]));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let wanted = random.below(2 * round, whole_shards(&whole) as u64 - 1) as usize;
        let longer = Duration::from_micros(random.below(2 * round + 1, 20_000));
        if reaches(&mut child, &path, wanted, longer) {
            killed += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let reader = StoreReader::open(&path).unwrap();
        let kept = if reader.layers().is_empty() { 0 } else { reader.rows(&layers[0]).unwrap() };
        rows.push(kept);
        for layer in layers.iter().filter(|_| kept > 0) {
            let bits = |x: Tensor| -> Vec<u32> {
                x.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
            };
            assert!(
                bits(reader.read(layer, 0..kept).unwrap()) == bits(whole.read(layer, 0..kept).unwrap()),
                "round {round}, {layer}"
            );
        }
        if kept > 0 {
            let (a, b) = (
                reader.read_rows(&layers[0], 0..kept).unwrap(),
                whole.read_rows(&layers[0], 0..kept).unwrap(),
            );
            assert_eq!((a.tokens, a.positions, a.sequences), (b.tokens, b.positions, b.sequences));
        }
        // The next writer sweeps what was left half-written, and the lock is free.
        LocalStore::new(lab.path().join("acts"))
            .append(&run, StoreOptions::default())
            .unwrap()
            .finish()
            .unwrap();
        let names =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().all(|name| !name.ends_with(".tmp")));
        fs::remove_dir_all(&path).unwrap();
    }
    println!("{killed} captures killed, with {rows:?} of {} rows", whole.rows(&layers[0]).unwrap());
    assert!(killed > 0, "none was still at work");
}

fn whole_shards(reader: &StoreReader) -> usize {
    shards(reader.path())
}

#[test]
fn p22_a_batch_that_is_larger_than_the_limit_is_refused_with_a_way_out() {
    let lab = lab(8);
    let ran = lab.run(&args("large", "1", "8", &[]));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("memory limit") && ran.stderr.contains("fewer sequences"), "{}", ran.stderr);
    lab.ok(&args("small", "1", "1", &["--dtype", "f16"]));
    let reader = StoreReader::open(lab.path().join("acts/small")).unwrap();
    assert_eq!(reader.sequences(), 8);
    assert!(reader.layers().iter().all(|layer| layer.dtype.to_string() == "F16"));
}
