//! Captures obey their limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{
    AtLimit, Capture, CaptureLimits, CaptureOptions, CapturedState, HookManager, HookOptions, HookResult,
    ManagerConfig, Mock, Pass, PassSetup, Point, PointId, PointTable, Receipt, Retention, Spill,
};

use crate::support::{in_child, in_child_with, memory, values};

const MIB: usize = 1 << 20;

fn manager(limits: CaptureLimits) -> HookManager {
    let mut points = PointTable::builder();
    points.point(Point::new("p", "d")).unwrap();
    HookManager::with_config(points.build(), ManagerConfig { limits, ..ManagerConfig::default() })
}

fn capture(retention: Retention) -> Capture {
    Capture::new(CaptureOptions { retention, ..CaptureOptions::new("p") }).unwrap()
}

/// A tensor of so many bytes whose elements are all `value`.
fn filled(bytes: usize, value: usize) -> Tensor {
    Tensor::full(value as f32, bytes / 4, &Device::Cpu).unwrap()
}

fn first_values(hooks: &HookManager, id: &str) -> Vec<f32> {
    hooks.get_captured_states(id).unwrap().iter().map(|state| values(&state.tensor)[0]).collect()
}

/// Writes states to files, as the store on disk will.
struct Files {
    folder: PathBuf,
    written: BTreeMap<String, Vec<(PathBuf, CapturedState)>>,
    fails: bool,
}

impl Files {
    fn new(folder: &tempfile::TempDir) -> Self {
        Self { folder: folder.path().to_path_buf(), written: BTreeMap::new(), fails: false }
    }
}

impl Spill for Files {
    fn put(&mut self, hook_id: &str, state: &CapturedState) -> HookResult {
        if self.fails {
            return Err("the disk is full".into());
        }
        let list = self.written.entry(hook_id.to_string()).or_default();
        let path = self.folder.join(format!("{hook_id}-{}", list.len()));
        let bytes: Vec<u8> = values(&state.tensor).iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(&path, bytes)?;
        let nothing = Tensor::zeros(0, DType::F32, &Device::Cpu)?;
        list.push((path, CapturedState { tensor: nothing, ..state.clone() }));
        Ok(())
    }

    fn get(&mut self, hook_id: &str) -> HookResult<Vec<CapturedState>> {
        let list = self.written.get(hook_id).into_iter().flatten();
        list.map(|(path, state)| {
            let bytes = std::fs::read(path)?;
            let read: Vec<f32> = bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
            Ok(CapturedState { tensor: Tensor::new(read, &Device::Cpu)?, ..state.clone() })
        })
        .collect()
    }

    fn clear(&mut self, hook_id: Option<&str>) -> HookResult {
        let gone = match hook_id {
            Some(id) => self.written.remove(id).unwrap_or_default(),
            None => std::mem::take(&mut self.written).into_values().flatten().collect(),
        };
        gone.into_iter().try_for_each(|(path, _)| Ok(std::fs::remove_file(path)?))
    }
}

/// 2 GiB of states of 1 MiB, all sent in the same way, through a limit of 64 MiB.
fn two_gib_through_64_mib(test: &str, send: fn(&Pass, PointId, usize) -> candle_core::Result<Tensor>) {
    in_child(test, || {
        let hooks = manager(CaptureLimits { memory_limit_mb: Some(64), ..CaptureLimits::default() });
        let id = hooks.register(capture(Retention::All)).unwrap();
        let point = hooks.points().find("p").unwrap();
        let states = 2048;
        let base = memory("VmRSS");
        for i in 0..states {
            send(&hooks.pass(PassSetup::eval(i as u64)), point, i).unwrap();
            assert!(hooks.captured_bytes() <= 64 * MIB);
        }
        let peak = memory("VmHWM").saturating_sub(base);
        assert!(peak < (64 * MIB + 64 * MIB / 10) as u64, "peak {} KiB above the base", peak >> 10);
        let receipt = hooks.report().receipt(&id).unwrap().clone();
        let want = Receipt { bytes_captured: 2 << 30, states_dropped: states as u64 - 64, ..receipt.clone() };
        assert_eq!(receipt, want);
        assert_eq!(first_values(&hooks, &id), (states - 64..states).map(|i| i as f32).collect::<Vec<_>>());
    });
}

#[test]
fn p22_two_gib_of_whole_tensors_stay_within_64_mib() {
    let test = "limits::p22_two_gib_of_whole_tensors_stay_within_64_mib";
    two_gib_through_64_mib(test, |pass, point, i| pass.tap(point, filled(MIB, i)));
}

#[test]
fn p22_two_gib_of_shared_tensors_stay_within_64_mib() {
    let test = "limits::p22_two_gib_of_shared_tensors_stay_within_64_mib";
    two_gib_through_64_mib(test, |pass, point, i| pass.tap_shared(point, None, filled(MIB, i)));
}

#[test]
fn p22_two_gib_of_views_stay_within_64_mib() {
    let test = "limits::p22_two_gib_of_views_stay_within_64_mib";
    two_gib_through_64_mib(test, |pass, point, i| pass.tap(point, filled(2 * MIB, i).narrow(0, 0, MIB / 4)?));
}

/// States of many sizes leave holes in a heap that no store can close. With a C library that is told to give every large block back when it
/// is freed, what is resident is what we keep: nothing is pinned, nothing is kept twice.
#[test]
fn p22_two_gib_of_mixed_sizes_pin_nothing() {
    let test = "limits::p22_two_gib_of_mixed_sizes_pin_nothing";
    in_child_with(test, &[("MALLOC_MMAP_THRESHOLD_", "65536")], || {
        let hooks = manager(CaptureLimits { memory_limit_mb: Some(64), ..CaptureLimits::default() });
        let id = hooks.register(capture(Retention::All)).unwrap();
        let point = hooks.points().find("p").unwrap();
        let base = memory("VmRSS");
        let sizes = [MIB, 2 * MIB, MIB / 2, 3 * MIB];
        let sent = (0..1600).map(|i| {
            let (size, pass) = (sizes[i % sizes.len()], hooks.pass(PassSetup::eval(i as u64)));
            match i % 3 {
                0 => pass.tap(point, filled(size, i)),
                1 => pass.tap_shared(point, None, filled(size, i)),
                _ => pass.tap(point, filled(2 * size, i).narrow(0, 0, size / 4).unwrap()),
            }
            .unwrap();
            assert!(hooks.captured_bytes() <= 64 * MIB);
            size as u64
        });
        let sent: u64 = sent.sum();
        let peak = memory("VmHWM").saturating_sub(base);
        // Beside the states: the largest tensor on its way, a view into one twice its size, and its copy.
        let in_flight = 9 * MIB;
        assert!(peak < (64 * MIB + in_flight) as u64, "peak {} KiB above the base", peak >> 10);
        let receipt = hooks.report().receipt(&id).unwrap().clone();
        let kept = first_values(&hooks, &id).len() as u64;
        assert_eq!((receipt.bytes_captured, receipt.states_dropped), (sent, 1600 - kept));
        assert!(sent > 2 << 30);
    });
}

/// Captures ten states of 1 MiB and tells what is left and what was counted.
fn ten_states(limits: CaptureLimits, retention: Retention, spill: Option<Files>) -> (Vec<f32>, Receipt) {
    let hooks = manager(limits);
    if let Some(spill) = spill {
        hooks.set_spill(spill);
    }
    let mut mock = Mock::with_manager(hooks);
    let id = mock
        .attach_with(capture(retention), HookOptions { quarantine_after: 0, ..HookOptions::default() })
        .unwrap();
    for i in 0..10 {
        mock.fire("p", &filled(MIB, i)).unwrap();
        mock.step();
    }
    (first_values(mock.hooks(), &id), mock.hooks().report().receipt(&id).unwrap().clone())
}

fn counted(receipt: &Receipt) -> [u64; 4] {
    [receipt.states_dropped, receipt.states_refused, receipt.states_spilled, receipt.errors]
}

#[test]
fn p22_each_policy_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let by_bytes =
        |at_limit| CaptureLimits { memory_limit_mb: Some(3), at_limit, ..CaptureLimits::default() };
    let by_count =
        |at_limit| CaptureLimits { max_captured_states: Some(3), at_limit, ..CaptureLimits::default() };
    for limits in
        [by_bytes, by_count].map(|limits| [AtLimit::DropOldest, AtLimit::Refuse, AtLimit::Spill].map(limits))
    {
        let [drop_oldest, refuse, spill] = limits;
        let (left, receipt) = ten_states(drop_oldest, Retention::All, None);
        assert_eq!((left, counted(&receipt)), (vec![7.0, 8.0, 9.0], [7, 0, 0, 0]));
        let (left, receipt) = ten_states(refuse, Retention::All, None);
        assert_eq!((left, counted(&receipt)), (vec![0.0, 1.0, 2.0], [0, 7, 0, 0]));
        assert_eq!(receipt.bytes_captured, 3 * MIB as u64);
        let (left, receipt) = ten_states(spill.clone(), Retention::All, Some(Files::new(&folder)));
        let all: Vec<f32> = (0..10).map(|i| i as f32).collect();
        assert_eq!((left, counted(&receipt)), (all, [0, 0, 7, 0]), "oldest first, from disk and memory");

        let broken = Files { fails: true, ..Files::new(&folder) };
        for spiller in [Some(broken), None] {
            let (left, receipt) = ten_states(spill.clone(), Retention::All, spiller);
            assert_eq!(
                (left, counted(&receipt)),
                (vec![7.0, 8.0, 9.0], [7, 0, 0, 7]),
                "not written, not hidden"
            );
        }
    }
}

#[test]
fn a_state_larger_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    for (at_limit, want) in
        [(AtLimit::DropOldest, [0, 1, 0, 0]), (AtLimit::Refuse, [0, 1, 0, 0]), (AtLimit::Spill, [0, 0, 1, 0])]
    {
        let hooks = manager(CaptureLimits { memory_limit_mb: Some(1), at_limit, ..CaptureLimits::default() });
        hooks.set_spill(Files::new(&folder));
        let mut mock = Mock::with_manager(hooks);
        let id = mock.attach(capture(Retention::All)).unwrap();
        mock.fire("p", &filled(2 * MIB, 1)).unwrap();
        assert_eq!(counted(mock.report().receipt(&id).unwrap()), want, "{at_limit:?}");
        assert_eq!(mock.hooks().captured_bytes(), 0);
    }
}

#[test]
fn each_retention() {
    let no_limit = CaptureLimits::default;
    let check = |retention, want: &[f32], dropped| {
        let (left, receipt) = ten_states(no_limit(), retention, None);
        assert_eq!((left.as_slice(), counted(&receipt)), (want, [dropped, 0, 0, 0]), "{retention:?}");
    };
    check(Retention::Last, &[9.0], 9);
    check(Retention::Ring(2), &[8.0, 9.0], 8);
    check(Retention::Bytes(3 * MIB), &[7.0, 8.0, 9.0], 7);
    check(Retention::Bytes(1), &[9.0], 9);
    let (left, _) = ten_states(no_limit(), Retention::All, None);
    assert_eq!(left.len(), 10);

    let mut mock = Mock::with_manager(manager(no_limit()));
    let id = mock.attach(capture(Retention::Last)).unwrap();
    for value in 0..3 {
        mock.fire("p", &filled(4, value)).unwrap();
    }
    assert_eq!(first_values(mock.hooks(), &id), [0.0, 1.0, 2.0], "all states of the last step");
    mock.step();
    mock.fire("p", &filled(4, 3)).unwrap();
    assert_eq!(first_values(mock.hooks(), &id), [3.0]);
}

#[test]
fn the_number_of_states_is_brought_down_every_so_many_forwards_and_counted() {
    let limits =
        CaptureLimits { max_captured_states: Some(2), cleanup_interval: 4, ..CaptureLimits::default() };
    let mut mock = Mock::with_manager(manager(limits)); // forward 1
    let id = mock.attach(capture(Retention::All)).unwrap(); // forward 2
    let mut held = Vec::new();
    for value in 0..6 {
        mock.fire("p", &filled(4, value)).unwrap();
        held.push(first_values(mock.hooks(), &id).len());
        mock.step();
    }
    assert_eq!(held, [1, 2, 3, 4, 5, 6], "forward 8 comes after the last of them");
    assert_eq!(first_values(mock.hooks(), &id), [4.0, 5.0]);
    assert_eq!(mock.report().receipt(&id).unwrap().states_dropped, 4, "in the pass that began with it");
    assert_eq!(mock.hooks().report().receipt(&id).unwrap().states_dropped, 4, "over all passes");
}

#[test]
fn states_stay_readable_after_their_hook_is_gone_until_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let limits =
        CaptureLimits { max_captured_states: Some(2), at_limit: AtLimit::Spill, ..CaptureLimits::default() };
    let mut mock = Mock::with_manager(manager(limits));
    mock.hooks().set_spill(Files::new(&folder));
    let [a, b] = [(); 2].map(|()| mock.attach(capture(Retention::All)).unwrap());
    mock.fire("p", &filled(4, 1)).unwrap();
    mock.fire("p", &filled(4, 2)).unwrap();
    mock.hooks().remove_all();
    assert_eq!(first_values(mock.hooks(), &a), [1.0, 2.0]);
    mock.hooks().clear_captured_states(Some(&a)).unwrap();
    assert_eq!((first_values(mock.hooks(), &a), first_values(mock.hooks(), &b)), (vec![], vec![1.0, 2.0]));
    mock.hooks().clear_captured_states(None).unwrap();
    assert_eq!((first_values(mock.hooks(), &b), mock.hooks().captured_bytes()), (vec![], 0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn states_are_read_and_cleared_while_others_capture() {
    let folder = tempfile::tempdir().unwrap();
    for at_limit in [AtLimit::DropOldest, AtLimit::Spill] {
        let hooks =
            manager(CaptureLimits { max_captured_states: Some(4), at_limit, ..CaptureLimits::default() });
        hooks.set_spill(Files::new(&folder));
        let id = hooks.register(capture(Retention::All)).unwrap();
        let point = hooks.points().find("p").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut largest = 0;
                while !done.load(SeqCst) {
                    // Somebody may clear in between, but what is there has no holes: no state is out of sight on its way to disk.
                    let seen = first_values(&hooks, &id);
                    assert!(seen.windows(2).all(|pair| pair[1] == pair[0] + 1.0), "{at_limit:?}: {seen:?}");
                    largest = largest.max(seen.len());
                    if seen.len() > 40 {
                        hooks.clear_captured_states(Some(&id)).unwrap();
                    }
                }
                largest
            });
            for i in 0..600 {
                hooks.pass(PassSetup::eval(i)).tap(point, filled(4, i as usize)).unwrap();
            }
            done.store(true, SeqCst);
            let largest = reader.join().unwrap();
            assert!(at_limit != AtLimit::DropOldest || largest <= 4);
        });
        assert!(!hooks.report().degraded());
        hooks.clear_captured_states(None).unwrap();
    }
}
