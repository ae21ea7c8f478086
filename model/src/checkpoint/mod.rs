//! A checkpoint's tensors by name: safetensors files, single or in shards, mapped into memory. What the tensors mean
//! lives in `bind`.

mod fingerprint;
mod header;
mod index;
mod map;
mod unique;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::Pod;
pub use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::weight::{SharedBytes, Slice};
use header::Entry;
use index::{INDEX_FILE, Index};

/// The file of a checkpoint without shards.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";

/// The tensors of one model.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<Arc<DataFile>>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// A safetensors file.
struct DataFile {
    path: PathBuf,
    bytes: SharedBytes,
    /// Where data starts.
    data_start: usize,
}

impl std::fmt::Debug for DataFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.fmt(f)
    }
}

/// Where one tensor lies and what it is.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Stored element type.
    pub dtype: Dtype,
    /// Sizes of the axes, the outermost first.
    pub shape: Vec<usize>,
    file: Arc<DataFile>,
    range: Range<usize>,
}

impl TensorInfo {
    /// The file that holds the tensor.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The tensor's bytes as stored.
    pub fn bytes(&self) -> &[u8] {
        &(*self.file.bytes).as_ref()[self.range.clone()]
    }

    /// The tensor's bytes as elements of `T`, shared with the file; `None` if they are not a whole number of them.
    pub fn slice<T: Pod + Send + Sync>(&self) -> Option<Slice<T>> {
        Slice::new(&self.file.bytes, self.range.clone())
    }
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `dir`: the shards that `model.safetensors.index.json` names, else
    /// `model.safetensors`. Only headers are read. The files are mapped and must not change while they are in use.
    ///
    /// # Errors
    /// Neither file is there; a file is malformed; index and shards disagree.
    pub fn open(dir: &Path) -> Result<Self> {
        let index_path = dir.join(INDEX_FILE);
        let index = match std::fs::read(&index_path) {
            Ok(bytes) => Some(Index::parse(&index_path, &bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(Error::Io { path: index_path, source }),
        };
        let paths = match &index {
            Some(index) => {
                index.check_present(dir)?;
                index.shards().into_iter().map(|shard| dir.join(shard)).collect()
            }
            None if dir.join(SINGLE_FILE).exists() => vec![dir.join(SINGLE_FILE)],
            None => {
                let message = format!("no checkpoint here, looked for {INDEX_FILE} and {SINGLE_FILE}");
                return Err(Error::Checkpoint { path: dir.to_owned(), message });
            }
        };
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let bytes = map::map(&path)?;
            files.push(ParsedFile::parse(path, bytes)?);
        }
        if let Some(index) = index {
            index.check_agrees(dir, files.iter().flat_map(ParsedFile::names))?;
        }
        Ok(Self::new(dir, files))
    }

    /// The checkpoint in `bytes`, one safetensors file. `path` stands for it in messages.
    ///
    /// # Errors
    /// The file is malformed.
    pub fn from_static(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        let file = ParsedFile::parse(path.to_owned(), Arc::new(bytes))?;
        Ok(Self::new(path, vec![file]))
    }

    fn new(path: &Path, parsed: Vec<ParsedFile>) -> Self {
        let mut files = Vec::with_capacity(parsed.len());
        let mut tensors = BTreeMap::new();
        for ParsedFile { file, entries } in parsed {
            tensors.extend(entries.into_iter().map(|entry| {
                let Entry { name, dtype, shape, range } = entry;
                (name, TensorInfo { dtype, shape, file: Arc::clone(&file), range })
            }));
            files.push(file);
        }
        Self { path: path.to_owned(), files, tensors }
    }

    /// The folder, or the file of a checkpoint without one.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, ascending.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor of that name, with the name as the checkpoint holds it.
    pub(crate) fn get_key_value(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        self.tensors.get_key_value(name).map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Bytes of all tensors' data.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.range.len() as u64).sum()
    }

    /// 16 hex digits that tell checkpoints apart: a hash of each file's size, header and 64 evenly spaced windows of 4 KiB
    /// of its data. Quick enough for start-up at any size, and the same for a model in a folder and embedded. An edit that
    /// touches no window goes unnoticed.
    pub fn fingerprint(&self) -> String {
        fingerprint::of_files(self.files.iter().map(|file| (*file.bytes).as_ref().split_at(file.data_start)))
    }
}

/// A file whose header was read and found sound.
struct ParsedFile {
    file: Arc<DataFile>,
    entries: Vec<Entry>,
}

impl ParsedFile {
    fn parse(path: PathBuf, bytes: SharedBytes) -> Result<Self> {
        let (data_start, entries) = header::parse(&path, (*bytes).as_ref())?;
        Ok(Self { file: Arc::new(DataFile { path, bytes, data_start }), entries })
    }

    /// The file's own name with each of its tensors' names.
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        let file = self.file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.entries.iter().map(move |entry| (file, entry.name.as_str()))
    }
}
