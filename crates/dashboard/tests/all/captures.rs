//! Captured tensors.

use std::fs;

use serde_json::json;

use crate::site::{Site, write_tensors};

#[test]
fn tensors_are_listed_and_shown() {
    let site = Site::new();
    let run = site.run("run", |_| {});
    fs::create_dir(run.captures()).unwrap();
    let path = run.captures().join("c-00000000.safetensors");
    let pattern: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let large: Vec<f32> = (0..1000 * 3).map(|i| (i / 3) as f32).collect();
    write_tensors(
        &path,
        &[
            ("step-00000012/blocks.10.p", &[2, 3, 2, 2], pattern),
            ("step-00000012/blocks.2.x", &[1000, 3], large),
            ("flat", &[3], vec![1.0, f32::NAN, 3.0]),
            ("one", &[], vec![5.0]),
            ("nothing", &[0, 4], vec![]),
        ],
    );
    let at = "/api/runs/run/captures/c-00000000.safetensors";
    let told = site.json(at);
    let names: Vec<&str> =
        told["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["flat", "nothing", "one", "step-00000012/blocks.2.x", "step-00000012/blocks.10.p"]);
    assert_eq!(
        (&told["tensors"][3]["step"], &told["tensors"][3]["point"]),
        (&json!(12), &json!("blocks.2.x"))
    );
    assert_eq!(told["tensors"][3]["dtype"], "F32");

    let tensor = |query: &str| site.json(&format!("{at}/tensor?name={query}"));
    let told = tensor("step-00000012/blocks.10.p&index=1,2");
    assert_eq!(told["z"], json!([[20.0, 21.0], [22.0, 23.0]]));
    assert_eq!(
        (&told["index"], &told["min"], &told["max"], &told["mean"]),
        (&json!([1, 2]), &json!(20.0), &json!(23.0), &json!(21.5))
    );
    assert_eq!(tensor("step-00000012/blocks.10.p")["z"], json!([[0.0, 1.0], [2.0, 3.0]]));
    let told = tensor("step-00000012/blocks.2.x");
    assert_eq!(
        (&told["rows"], &told["shown_rows"], &told["shown_cols"]),
        (&json!(1000), &json!(500), &json!(3))
    );
    assert_eq!(told["z"][7], json!([14.5, 14.5, 14.5]));
    assert_eq!(tensor("flat")["z"], json!([[1.0, null, 3.0]]));
    assert_eq!(tensor("one")["z"], json!([[5.0]]));
    assert_eq!(tensor("nothing")["z"], json!([]));
    for bad in
        ["name=none", "", "name=one&index=1", "name=step-00000012/blocks.10.p&index=2", "name=one&index=x"]
    {
        let status = site.get(&format!("{at}/tensor?{bad}")).status;
        assert!(matches!(status, 400 | 404), "{bad}: {status}");
    }
}

#[test]
fn files_that_are_no_tensors_are_told_so() {
    let site = Site::new();
    let run = site.run("run", |_| {});
    fs::create_dir(run.captures()).unwrap();
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let hostile = [
        Vec::new(),
        vec![1, 2, 3],
        u64::MAX.to_le_bytes().to_vec(),
        header("{"),
        header("[]"),
        header(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        header(r#"{"x":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,0]}}"#),
        header(r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#),
    ];
    for (i, bytes) in hostile.into_iter().enumerate() {
        fs::write(run.captures().join("x.safetensors"), bytes).unwrap();
        let told = site.get("/api/runs/run/captures/x.safetensors");
        assert_eq!(told.status, 422, "{i}: {}", told.body);
        assert!(told.json()["error"].as_str().unwrap().contains("no safetensors file"));
    }
    // Very many rows of nothing.
    let empty = header(r#"{"x":{"dtype":"F32","shape":[9223372036854775807,0],"data_offsets":[0,0]}}"#);
    fs::write(run.captures().join("x.safetensors"), empty).unwrap();
    assert_eq!(site.get("/api/runs/run/captures/x.safetensors/tensor?name=x").status, 200);
}

#[test]
fn a_directory_of_captures_and_stores_is_shown() {
    let site = Site::with(|options| {
        let captures = options.runs_dir.with_file_name("captures");
        fs::create_dir_all(captures.join("store")).unwrap();
        write_tensors(&captures.join("one.safetensors"), &[("x", &[1], vec![1.0])]);
        write_tensors(&captures.join("store/shard-00000000.safetensors"), &[("y", &[1], vec![2.0])]);
        fs::write(captures.join("store/index.json"), "{}").unwrap();
        options.captures = Some(captures);
    });
    assert_eq!(site.json("/api/about")["captures"], true);
    let told = site.json("/api/captures");
    let files: Vec<&str> =
        told["captures"].as_array().unwrap().iter().map(|c| c["file"].as_str().unwrap()).collect();
    assert_eq!(files, ["one.safetensors", "store/shard-00000000.safetensors"]);
    assert_eq!(site.json("/api/captures/one.safetensors/tensor?name=x")["z"], json!([[1.0]]));
    assert_eq!(
        site.json("/api/captures/store%2Fshard-00000000.safetensors/tensor?name=y")["z"],
        json!([[2.0]])
    );
    assert_eq!(site.get("/api/captures/store%2Findex.json").status, 404);
}
