//! A model of a disk that loses power: what a directory may hold after any prefix of a trace.
//!
//! The model is harsher than real file systems. Contents that were not synced may be missing, cut or zeros; an entry of
//! a directory that was not synced may be old or new, each independently of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::fault::Op;

/// What a directory holds: every file by its path inside, `None` for a directory.
pub(crate) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Reads a directory from the real disk.
pub(crate) fn read_tree(root: &Path) -> Tree {
    fn walk(root: &Path, dir: &Path, tree: &mut Tree) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(root).unwrap().to_path_buf();
            if path.is_dir() {
                tree.insert(inside, None);
                walk(root, &path, tree);
            } else {
                tree.insert(inside, Some(fs::read(&path).unwrap()));
            }
        }
    }
    let mut tree = Tree::new();
    walk(root, root, &mut tree);
    tree
}

/// Writes a directory to the real disk.
pub(crate) fn write_tree(root: &Path, tree: &Tree) {
    for (path, contents) in tree {
        match contents {
            None => fs::create_dir_all(root.join(path)).unwrap(),
            Some(bytes) => fs::write(root.join(path), bytes).unwrap(),
        }
    }
}

type Node = usize;

/// A change of a directory's entries.
#[derive(Clone)]
enum Entry {
    Add(PathBuf, Node),
    Move(PathBuf, PathBuf, Node),
    Delete(PathBuf),
}

#[derive(Clone, Default)]
struct Dir {
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<Entry>,
}

#[derive(Clone)]
enum Kind {
    File { bytes: Vec<u8>, durable: usize, length: usize },
    Dir(Dir),
}

#[derive(Clone)]
struct Disk {
    nodes: Vec<Kind>,
}

fn apply(entries: &mut BTreeMap<PathBuf, Node>, change: &Entry) {
    match change {
        Entry::Add(name, node) => drop(entries.insert(name.clone(), *node)),
        Entry::Delete(name) => drop(entries.remove(name)),
        Entry::Move(from, to, node) => {
            entries.remove(from);
            entries.insert(to.clone(), *node);
        }
    }
}

impl Disk {
    fn new(tree: &Tree) -> Self {
        let mut disk = Self { nodes: vec![Kind::Dir(Dir::default())] };
        for (path, contents) in tree {
            let kind = match contents {
                None => Kind::Dir(Dir::default()),
                Some(bytes) => Kind::File { bytes: bytes.clone(), durable: bytes.len(), length: bytes.len() },
            };
            let node = disk.add(path, kind);
            let dir = disk.dir_of(path);
            dir.pending.clear();
            dir.durable.insert(name(path), node);
        }
        disk
    }

    /// The entries as a running process sees them.
    fn entries(&self, node: Node) -> BTreeMap<PathBuf, Node> {
        let Kind::Dir(dir) = &self.nodes[node] else { panic!("not a directory") };
        let mut entries = dir.durable.clone();
        dir.pending.iter().for_each(|change| apply(&mut entries, change));
        entries
    }

    fn find(&self, path: &Path) -> Node {
        path.components().fold(0, |node, part| self.entries(node)[Path::new(part.as_os_str())])
    }

    fn dir_of(&mut self, path: &Path) -> &mut Dir {
        let node = self.find(path.parent().unwrap());
        match &mut self.nodes[node] {
            Kind::Dir(dir) => dir,
            Kind::File { .. } => panic!("{} is not a directory", path.display()),
        }
    }

    fn add(&mut self, path: &Path, kind: Kind) -> Node {
        self.nodes.push(kind);
        let node = self.nodes.len() - 1;
        self.dir_of(path).pending.push(Entry::Add(name(path), node));
        node
    }

    /// A directory is removed from the inside: each of its entries goes for itself.
    fn empty(&mut self, node: Node) {
        if let Kind::File { .. } = self.nodes[node] {
            return;
        }
        for (name, inner) in self.entries(node) {
            self.empty(inner);
            if let Kind::Dir(dir) = &mut self.nodes[node] {
                dir.pending.push(Entry::Delete(name));
            }
        }
    }

    /// Does what the operation did. What was written is not known here, only how much.
    fn run(&mut self, op: &Op, root: &Path) {
        let inside = |path: &Path| path.strip_prefix(root).unwrap().to_path_buf();
        match op {
            Op::CreateDir(path) => drop(self.add(&inside(path), Kind::Dir(Dir::default()))),
            Op::Create(path) => {
                self.add(&inside(path), Kind::File { bytes: Vec::new(), durable: 0, length: 0 });
            }
            Op::Rename(from, to) => {
                let (from, to) = (inside(from), inside(to));
                assert_eq!(from.parent(), to.parent(), "the model knows renames inside a directory only");
                let node = self.find(&from);
                self.dir_of(&from).pending.push(Entry::Move(name(&from), name(&to), node));
            }
            Op::Remove(path) => {
                let path = inside(path);
                let node = self.find(&path);
                self.empty(node);
                self.dir_of(&path).pending.push(Entry::Delete(name(&path)));
            }
            Op::SyncDir(path) => {
                let node = self.find(&inside(path));
                let entries = self.entries(node);
                self.nodes[node] = Kind::Dir(Dir { durable: entries, pending: Vec::new() });
            }
            Op::Write(path, written) => {
                let node = self.find(&inside(path));
                if let Kind::File { length, bytes, .. } = &mut self.nodes[node] {
                    *length += written;
                    bytes.resize(*length, b'?');
                }
            }
            Op::Sync(path) => {
                let node = self.find(&inside(path));
                if let Kind::File { durable, length, .. } = &mut self.nodes[node] {
                    *durable = *length;
                }
            }
            Op::Truncate(..) => panic!("the model does not know truncation"),
        }
    }

    /// What may be found after a power cut now: `lost` says what became of unsynced contents, `kept` which of the
    /// unsynced entries (counted over the whole disk) made it.
    fn after_power_cut(&self, lost: Lost, kept: &dyn Fn(usize) -> bool) -> Tree {
        let mut tree = Tree::new();
        self.collect(0, Path::new(""), lost, kept, &mut tree);
        tree
    }

    fn collect(&self, node: Node, at: &Path, lost: Lost, kept: &dyn Fn(usize) -> bool, tree: &mut Tree) {
        let Kind::Dir(dir) = &self.nodes[node] else { panic!("not a directory") };
        let before: usize = self.nodes[..node].iter().map(pending).sum();
        let mut entries = dir.durable.clone();
        for (index, change) in dir.pending.iter().enumerate() {
            if kept(before + index) {
                apply(&mut entries, change);
            }
        }
        for (name, node) in entries {
            let path = at.join(name);
            match &self.nodes[node] {
                Kind::Dir(_) => {
                    tree.insert(path.clone(), None);
                    self.collect(node, &path, lost, kept, tree);
                }
                Kind::File { bytes, durable, length } => {
                    let mut found = bytes[..*durable].to_vec();
                    match lost {
                        Lost::All => {}
                        Lost::Half => {
                            found.extend_from_slice(&bytes[*durable..durable + (length - durable) / 2])
                        }
                        Lost::Zeros => found.resize(*length, 0),
                        Lost::Nothing => found.extend_from_slice(&bytes[*durable..*length]),
                    }
                    tree.insert(path, Some(found));
                }
            }
        }
    }
}

fn name(path: &Path) -> PathBuf {
    path.file_name().unwrap().into()
}

fn pending(kind: &Kind) -> usize {
    match kind {
        Kind::Dir(dir) => dir.pending.len(),
        Kind::File { .. } => 0,
    }
}

#[derive(Clone, Copy)]
enum Lost {
    All,
    Half,
    Zeros,
    Nothing,
}

/// Every state the directory may be found in when the power is cut after any of the operations. `before` is what was
/// there, on the disk, at first; the real directory holds what is there at the end.
pub(crate) fn states_after_power_cuts(root: &Path, before: &Tree, ops: &[Op]) -> BTreeSet<Tree> {
    // The contents of new files are known from the end of the story: files are only ever added to.
    let mut disk = Disk::new(before);
    ops.iter().for_each(|op| disk.run(op, root));
    let end = disk.after_power_cut(Lost::All, &|_| true);
    let contents: Vec<(Node, Vec<u8>)> = end
        .keys()
        .map(|path| (disk.find(path), root.join(path)))
        .filter(|(_, path)| path.is_file())
        .map(|(node, path)| (node, fs::read(path).unwrap()))
        .collect();
    let mut states = BTreeSet::new();
    for prefix in 0..=ops.len() {
        let mut disk = Disk::new(before);
        ops[..prefix].iter().for_each(|op| disk.run(op, root));
        for (node, kind) in disk.nodes.iter_mut().enumerate() {
            if let Kind::File { bytes, .. } = kind
                && let Some((_, all)) = contents.iter().find(|(known, _)| *known == node)
            {
                bytes.clone_from(all);
            }
        }
        let changes: usize = disk.nodes.iter().map(pending).sum();
        for lost in [Lost::All, Lost::Half, Lost::Zeros, Lost::Nothing] {
            states.insert(disk.after_power_cut(lost, &|_| false));
            states.insert(disk.after_power_cut(lost, &|_| true));
            for one in 0..changes {
                states.insert(disk.after_power_cut(lost, &|change| change == one));
                states.insert(disk.after_power_cut(lost, &|change| change != one));
                states.insert(disk.after_power_cut(lost, &|change| change < one));
            }
        }
    }
    states
}
