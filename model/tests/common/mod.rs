//! Checkpoints for tests: reads the fixtures' tensors, lets a test change them, writes them to a folder of its own.

#![allow(dead_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coppice_model::checkpoint::{Checkpoint, Dtype};
use coppice_model::{Source, TargetModel};
use serde_json::Value;
use tempfile::TempDir;

/// A tensor in memory.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl safetensors::View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

pub type Tensors = BTreeMap<String, Tensor>;

/// A model that tests change before they write it.
pub struct Model {
    pub config: Value,
    pub tensors: Tensors,
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tiny").join(name)
}

impl Model {
    pub fn read(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(folder).unwrap();
        let tensors = checkpoint.names().map(|name| {
            let info = checkpoint.get(name).unwrap();
            (name.to_owned(), Tensor { dtype: info.dtype, shape: info.shape.clone(), bytes: info.bytes().to_vec() })
        });
        Self { config, tensors: tensors.collect() }
    }

    /// The tensor of that name, to be changed.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Tensor {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Gives every tensor another name.
    pub fn rename(&mut self, rename: impl Fn(&str) -> String) {
        self.tensors =
            std::mem::take(&mut self.tensors).into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
    }

    /// Writes the model as one file.
    pub fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), serialize(&self.tensors)).unwrap();
        folder
    }

    /// Writes and loads the model as a target.
    pub fn load(&self) -> coppice_model::Result<TargetModel> {
        TargetModel::load(&Source::Directory(self.write().path().to_owned()))
    }

    /// The message that loading the model as a target fails with.
    pub fn refusal(&self) -> String {
        self.load().expect_err("the model should be refused").to_string()
    }
}

pub fn serialize(tensors: &Tensors) -> Vec<u8> {
    safetensors::serialize(tensors.iter(), None).unwrap()
}

/// A safetensors file from a header's text and data.
pub fn raw_file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// Asserts that `message` has every one of `words`.
#[track_caller]
pub fn assert_says(message: &str, words: &[&str]) {
    let absent: Vec<_> = words.iter().filter(|words| !message.contains(**words)).collect();
    assert!(absent.is_empty(), "{message:?} does not say {absent:?}");
}
