//! Bad input is expected input: exit code 2, one readable message, no panic, nothing half-written.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The model directory and the tokens are refused, with a message that has all of these words, by both commands.
fn check(what: &str, dir: &Path, words: &[&str]) {
    let work = tempfile::tempdir().unwrap();
    let tokens = work.path().join("ids.json");
    fs::write(&tokens, "[[1, 2, 3]]").unwrap();
    let out = work.path().join("out.safetensors");
    let ran = tenterhook(&capture_args(dir, &tokens, &out));
    check_refused(what, &ran, words);
    assert!(!out.exists(), "{what}: nothing may be written");
    check_refused(what, &tenterhook(&["points".as_ref(), dir.as_os_str()]), words);
}

fn check_refused(what: &str, ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, Some(2), "{what}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.is_empty(), "{what}: {}", ran.stdout);
    assert!(ran.stderr.starts_with("error: "), "{what}: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{what}: `{word}` is not in: {}", ran.stderr);
    }
}

/// Changes one key of a copy of the gpt2 reference's config.json.
fn with_config(key: &str, value: serde_json::Value) -> tempfile::TempDir {
    let dir = copy_of("gpt2");
    let path = dir.path().join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json[key] = value;
    fs::write(&path, json.to_string()).unwrap();
    dir
}

#[test]
fn p20_a_misspelt_point_is_an_error_with_the_nearest_names() {
    let work = tempfile::tempdir().unwrap();
    let tokens = work.path().join("ids.json");
    fs::write(&tokens, "[[1, 2, 3]]").unwrap();
    let out = work.path().join("out.safetensors");
    for (wrong, near) in [
        ("blocks.0.hook_residpost", "blocks.0.hook_resid_post"),
        ("blok.*.hook_resid_post", "blocks.0.hook_resid_post"),
        ("transformer.h.0.attn.c_atn", "transformer.h.0.attn.c_attn"),
    ] {
        let mut args = capture_args(&model("gpt2"), &tokens, &out);
        args.extend(["--points".to_string(), wrong.to_string()]);
        check_refused(wrong, &tenterhook(&args), &[wrong, near]);
        assert!(!out.exists());
    }
    let mut args = capture_args(&model("gpt2"), &tokens, &out);
    args.extend(["--points".to_string(), "7".to_string()]);
    check_refused("block 7", &tenterhook(&args), &["block 7", "2 blocks"]);
}

#[test]
fn damaged_model_directories() {
    check("no such directory", Path::new("/no/such/model"), &["/no/such/model"]);

    let dir = copy_of("gpt2");
    let weights = dir.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for keep in [0, 4, 8, 200, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&weights, &bytes[..keep]).unwrap();
        check(&format!("truncated to {keep}"), dir.path(), &["model.safetensors"]);
    }
    let mut lying = bytes.clone();
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&weights, &lying).unwrap();
    check("header of 2^64 bytes", dir.path(), &["model.safetensors"]);
    fs::write(&weights, b"\x80\x02}q\x00.").unwrap();
    check("a pickle", dir.path(), &["model.safetensors"]);

    let dir = copy_of("llama_sharded");
    let shard = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
        .find(|path| path.to_str().unwrap().contains("-of-"))
        .unwrap();
    fs::remove_file(&shard).unwrap();
    check("missing shard", dir.path(), &[shard.file_name().unwrap().to_str().unwrap()]);
}

#[test]
fn wrong_and_absurd_configurations() {
    check("wrong width", with_config("n_inner", 100.into()).path(), &["c_fc.weight", "expected shape"]);
    check("more layers than weights", with_config("n_layer", 3.into()).path(), &["h.2."]);
    check("fewer layers than weights", with_config("n_layer", 1.into()).path(), &["h.1."]);
    check("absurd layers", with_config("n_layer", serde_json::json!(1e12)).path(), &["n_layer"]);
    check("absurd vocabulary", with_config("vocab_size", (1u64 << 40).into()).path(), &["vocab_size"]);
    check(
        "large but possible vocabulary",
        with_config("vocab_size", (1u64 << 30).into()).path(),
        &["wte.weight", "expected shape"],
    );
    check("negative", with_config("n_head", (-3).into()).path(), &["n_head"]);
    check("not a number", with_config("n_embd", "wide".into()).path(), &["n_embd"]);
    check("unknown family", with_config("model_type", "mamba".into()).path(), &["mamba", "gpt2"]);

    let dir = copy_of("gpt2");
    fs::write(dir.path().join("config.json"), "{\"n_layer\": 2,,}").unwrap();
    check("broken JSON", dir.path(), &["config.json", "line 1"]);
    fs::write(dir.path().join("config.json"), b"{\"model_type\": \"\xff\xfe\"}").unwrap();
    check("invalid UTF-8", dir.path(), &["config.json"]);
    fs::remove_file(dir.path().join("config.json")).unwrap();
    check("no config.json", dir.path(), &["config.json"]);
}

#[test]
fn bad_tokens() {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out.safetensors");
    let tokens = work.path().join("ids.json");
    let long = format!("[[{}]]", vec!["1"; 17].join(","));
    for (text, words) in [
        ("[[1, 2], [3]]", &["equally long"][..]),
        ("[]", &["no sequences"]),
        ("[[]]", &["at least 1"]),
        ("[[1, 61]]", &["61", "position 1", "vocabulary"]),
        ("[[1, -1]]", &["ids.json", "-1"]),
        ("[[1, 1.5]]", &["ids.json"]),
        ("{\"a\": 1}", &["list of lists"]),
        ("[[1, 2", &["ids.json"]),
        ("\u{0}", &["ids.json"]),
        (&long, &["17 tokens", "16 positions"]),
    ] {
        fs::write(&tokens, text).unwrap();
        check_refused(text, &tenterhook(&capture_args(&model("gpt2"), &tokens, &out)), words);
        assert!(!out.exists());
    }
    fs::remove_file(&tokens).unwrap();
    check_refused("no tokens file", &tenterhook(&capture_args(&model("gpt2"), &tokens, &out)), &["ids.json"]);
    fs::write(&tokens, "[[1]]").unwrap();
    let mut args = capture_args(&model("gpt2"), &tokens, &out);
    args.push("--gradients".into());
    check_refused("one token has no next", &tenterhook(&args), &["at least 2"]);
}

#[test]
fn bad_usage() {
    let work = tempfile::tempdir().unwrap();
    let tokens = work.path().join("ids.json");
    fs::write(&tokens, "[[1, 2, 3]]").unwrap();
    let nowhere = work.path().join("no/such/dir/out.safetensors");
    check_refused(
        "no such out directory",
        &tenterhook(&capture_args(&model("gpt2"), &tokens, &nowhere)),
        &["does not exist"],
    );
    check_refused(
        "out is a directory",
        &tenterhook(&capture_args(&model("gpt2"), &tokens, work.path())),
        &["is a directory"],
    );
    let out = work.path().join("out.safetensors");
    for (device, words) in
        [("cuda:0", &["--features cuda"][..]), ("metal", &["--features metal"]), ("tpu", &["tpu", "cpu"])]
    {
        let mut args = capture_args(&model("gpt2"), &tokens, &out);
        args.extend(["--device".to_string(), device.to_string()]);
        check_refused(device, &tenterhook(&args), words);
    }
    assert_eq!(tenterhook(&["capture"]).code, Some(2));
    assert_eq!(tenterhook(&["no-such-command"]).code, Some(2));
    assert_eq!(tenterhook(&["points", "--no-such-option", "x"]).code, Some(2));
}

/// P30: what a directory holds is data. A tokenizer or configuration cannot name code to run.
#[test]
fn p30_no_file_can_run_code() {
    let dir = with_config("auto_map", serde_json::json!({"AutoModel": "evil.Evil"}));
    let marker = dir.path().join("it_ran");
    fs::write(dir.path().join("evil.py"), format!("open({marker:?}, 'w')")).unwrap();
    let ran = tenterhook(&["points".as_ref(), dir.path().as_os_str()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!marker.exists());
    // A pickle under any name is refused, not opened.
    let pickle = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.";
    for name in ["model.safetensors", "pytorch_model.bin"] {
        let dir = copy_of("gpt2");
        fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        fs::write(dir.path().join(name), pickle).unwrap();
        check(name, dir.path(), &[name]);
    }
    // Nothing in our sources loads code or starts programs, but for git, which is asked for the commit, and the launcher of ranks, which stands on the command
    // line and in no file.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = vec![root];
    let mut read = 0;
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            let inside = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            let apart = ["tests", "tests.rs", "target"];
            sources.extend(inside.filter(|path| !apart.iter().any(|name| path.ends_with(name))));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for forbidden in ["process::Command", "process::{Command", "libloading", "dlopen", "serde_pickle"]
            {
                let known =
                    ["record/src/run/git.rs", "cli/launch.rs"].iter().any(|known| path.ends_with(known));
                assert!(
                    known && forbidden.starts_with("process") || !text.contains(forbidden),
                    "{}: {forbidden}",
                    path.display()
                );
            }
            read += 1;
        }
    }
    assert!(read > 60);
}

#[cfg(target_os = "linux")]
#[test]
fn unusual_files_and_names() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    let work = tempfile::tempdir().unwrap();
    let tokens = work.path().join("ids.json");
    fs::write(&tokens, "[[1, 2, 3]]").unwrap();
    let args = |out: &Path| capture_args(&model("gpt2"), &tokens, out);

    // A name that is no text.
    let out = work.path().join(std::ffi::OsStr::from_bytes(b"\xff.safetensors"));
    let points = ["--points", "hook_embed", "--json", "--tokens-file"].map(std::ffi::OsString::from);
    let mut raw: Vec<std::ffi::OsString> =
        vec!["capture".into(), model("gpt2").into(), "--out".into(), out.clone().into()];
    raw.extend(points);
    raw.push(tokens.clone().into());
    let ran = tenterhook(&raw);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(out.is_file());

    // A link is followed, and anything that is not a file stays what it is.
    let (real, link) = (work.path().join("real.safetensors"), work.path().join("link.safetensors"));
    fs::write(&real, "old").unwrap();
    symlink(&real, &link).unwrap();
    assert_eq!(tenterhook(&args(&link)).code, Some(0));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::metadata(&real).unwrap().len() > 100);
    check_refused("a device", &tenterhook(&args(Path::new("/dev/null"))), &["/dev/null", "not a file"]);
    check_refused(
        "a place without files",
        &tenterhook(&args(Path::new("/proc/out.safetensors"))),
        &["/proc"],
    );

    // No end of tokens.
    let endless = capture_args(&model("gpt2"), Path::new("/dev/zero"), &real);
    check_refused("endless tokens", &tenterhook(&endless), &["/dev/zero", "64 MiB"]);

    // What a file says is quoted in moderation.
    fs::write(&tokens, format!("[[\"\u{1b}[31m{}\"]]", "x".repeat(1 << 20))).unwrap();
    let ran = tenterhook(&args(&real));
    check_refused("hostile tokens", &ran, &["ids.json"]);
    assert!(ran.stderr.len() < 5000 && !ran.stderr.contains('\u{1b}'));
}

#[test]
fn a_width_of_vectors_that_there_is_not_is_refused() {
    let with = |bits: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenterhook"));
        command.args(["hooks"]).env("TENTERHOOK_VECTORS", bits);
        Ran::of(command)
    };
    check_refused("128", &with("128"), &["TENTERHOOK_VECTORS", "128", "256 or 512"]);
    assert_eq!((with("256").code, with("512").code), (Some(0), Some(0)));
}
