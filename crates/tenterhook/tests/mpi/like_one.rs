//! However many ranks there are, they train what one would.

use crate::job::{CONFIG, Job, all, assert_close, timeless};

#[test]
fn p25_n_ranks_train_like_one() {
    let one = Job::new(CONFIG);
    let alone = one.train(1, &[]);
    assert_eq!(all(&alone, "loss").len(), 200);
    for ranks in [2, 4] {
        let job = Job::new(CONFIG);
        let rows = job.train(ranks, &[]);
        let context = format!("{ranks} ranks");
        for name in ["loss", "train/loss", "grad_norm", "val/loss", "lr"] {
            assert_close(&rows, &alone, name, &context);
        }
        // The weights were compared every 10 steps, or it would not have come to its end. The same again is the same to the bit.
        let again = Job::new(CONFIG);
        assert_eq!(timeless(again.train(ranks, &[])), timeless(rows), "{context}");
        assert!(again.weights() == job.weights(), "{context}: other weights");
        let record = job.record();
        let hosts = record["attempts"][0]["ranks"].as_array().unwrap();
        assert_eq!(hosts.len(), ranks);
        assert!(hosts.iter().all(|host| *host == record["host"]));
        assert!(record["attempts"].as_array().unwrap().len() == 1 && record["status"] == "completed");
        let shown = job.alone(&["runs", "show", "job"]).output().unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains(&format!("{ranks} on ")));
    }
}

#[test]
fn the_batch_of_each_rank_is_a_share_of_a_larger_one() {
    let config =
        CONFIG.replace("[ranks]", "[ranks]\nbatch = \"each_rank\"").replace("steps = 200", "steps = 30");
    let rows = Job::new(&config).train(2, &[]);
    let double = CONFIG.replace("batch = 8", "batch = 16").replace("steps = 200", "steps = 30");
    let alone = Job::new(&double).train(1, &[]);
    assert_close(&rows, &alone, "loss", "two ranks with half the batch each");
}

#[test]
fn captures_of_every_rank_have_a_file_of_their_own() {
    let hook =
        "[[hooks]]\nkind = \"capture\"\nid = \"seen\"\npoints = \"blocks.0.hook_resid_post\"\nevery = 10\n";
    let config = format!("{}{hook}", CONFIG.replace("steps = 200", "steps = 20"));
    let job = Job::new(&config);
    job.train(2, &[]);
    for rank in 0..2 {
        let path = job.run_dir().join(format!("captures/seen-00000000-rank{rank:04}.safetensors"));
        let tensors = candle_core::safetensors::load(&path, &candle_core::Device::Cpu).unwrap();
        let first = &tensors["step-00000000/blocks.0.hook_resid_post"];
        assert_eq!(first.dims(), [4, 16, 16], "half of the batch");
    }
}
