//! Captures and autoencoders of several ranks.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use tenterhook::hooks::random::Stream;
use tenterhook::lens::StoreReader;
use tenterhook::models::Transformer;
use tenterhook::models::config::TransformerConfig;
use tenterhook::models::files::save_model;

use crate::job::{CONFIG, Job, all, text};

const POINT: &str = "blocks.1.hook_resid_post";

/// A directory with a small model and a file of texts.
fn scene() -> Job {
    let job = Job::new(CONFIG);
    let model =
        Transformer::init(TransformerConfig::gpt2(64, 32, 8, 2, 2), 3, DType::F32, &Device::Cpu).unwrap();
    let tensors: Vec<_> =
        model.params().iter().map(|param| (param.name().to_string(), param.value().clone())).collect();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer.json");
    save_model(&job.path().join("model"), &model.config_json(), &tensors, Some(&tokenizer)).unwrap();
    let random = Stream::new(5);
    let ids = |i: u64| (0..9 + i % 7).map(|j| random.below(i * 100 + j, 60)).collect::<Vec<u64>>();
    let sequences: Vec<Vec<u64>> = (0..41).map(ids).collect();
    fs::write(job.path().join("ids.json"), serde_json::to_string(&sequences).unwrap()).unwrap();
    let letter = |i: u64| char::from(b"helowrd "[random.below(7000 + i, 8) as usize]);
    let texts: Vec<String> = (0..40).map(|i| (0..20).map(|j| letter(i * 20 + j)).collect()).collect();
    fs::write(job.path().join("texts.txt"), texts.join("\n")).unwrap();
    job
}

fn done(mut command: std::process::Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    text(&done)
}

fn capture(out: &str) -> Vec<&str> {
    vec![
        "capture",
        "model",
        "--tokens-file",
        "ids.json",
        "--points",
        POINT,
        "--out",
        out,
        "--batch-size",
        "4",
    ]
}

fn rows(store: &Path) -> Vec<f32> {
    let parts = StoreReader::open_parts(store).unwrap();
    let read = |reader: &StoreReader| {
        assert!(reader.is_finished());
        let rows = reader.read(POINT, 0..reader.rows(POINT).unwrap()).unwrap();
        rows.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    parts.iter().flat_map(read).collect()
}

#[test]
fn the_parts_of_a_capture_are_what_one_process_writes() {
    let job = scene();
    done(job.alone(&capture("one")));
    let said = done(job.ranks(3, &capture("three")));
    assert_eq!(said.matches("sequences").count(), 3, "{said}");
    let (one, three) = (rows(&job.path().join("one")), rows(&job.path().join("three")));
    assert_eq!(one.len(), three.len());
    assert!(one.iter().zip(&three).all(|(a, b)| (a - b).abs() < 1e-5));
    // A second one has a name of its own; a file is for one process.
    done(job.ranks(2, &capture("three")));
    assert!(job.path().join("three/capture-2-rank0001").is_dir());
    let refused = job.ranks(2, &capture("x.safetensors")).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("name a directory") && !job.path().join("x.safetensors").exists());
}

#[test]
fn autoencoders_of_several_ranks_are_those_of_one() {
    let job = scene();
    done(job.ranks(2, &capture("acts")));
    // The last one is alike until dead latents begin to learn from what a rank's part misses, or get a start that rank 0 chooses.
    let cases = [
        ("topk", "--k 4 --store acts", 40),
        ("jumprelu", "--l0 0.1 --store acts", 40),
        ("standard", "--l1 0.1 --store acts", 40),
        ("topk", "--k 4 --dead-after 200 --resample-every 15 --store acts", 3),
        // Every rank runs the model on a part of each buffer, and batches lie across their ends.
        ("standard", "--l1 0.1 --file texts.txt --buffer 100 --context 16", 40),
    ];
    for (number, (arch, more, alike)) in cases.into_iter().enumerate() {
        let train = |out: &str| {
            let words = format!(
                "sae train model --points {POINT} --arch {arch} {more} --d-sae 32 --batch 64 --steps 40 --metrics-every 1 --checkpoint-every 20 --lr 1e-3 -q --out {out}"
            );
            words.split_whitespace().map(str::to_string).collect::<Vec<_>>()
        };
        let losses = |name: &str, ranks: usize| {
            let out = format!("runs/{name}-{number}");
            let words = train(&out);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            done(if ranks == 1 { job.alone(&words) } else { job.ranks(ranks, &words) });
            let log = fs::read_to_string(job.path().join(&out).join("metrics.jsonl")).unwrap();
            let rows: Vec<_> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(job.path().join(&out).join("saes").join(POINT).join("cfg.json").is_file());
            all(&rows, "loss")
        };
        let (one, two) = (losses("one", 1), losses("two", 2));
        assert_eq!((one.len(), two.len()), (40, 40));
        for (one, two) in one.iter().zip(&two).take(alike) {
            assert!((one - two).abs() <= 1e-4 * one.abs(), "{arch}: {one} and {two}");
        }
        assert!(two.iter().all(|loss| loss.is_finite()));
    }
    // It goes on with another number of ranks.
    let more: Vec<String> = format!("sae train model --points {POINT} --store acts --arch standard --l1 0.1 --d-sae 32 --batch 64 --steps 60 --metrics-every 1 --checkpoint-every 20 --lr 1e-3 -q --out runs/two-2 --resume")
        .split_whitespace()
        .map(str::to_string)
        .collect();
    done(job.ranks(3, &more.iter().map(String::as_str).collect::<Vec<_>>()));
}
