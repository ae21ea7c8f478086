//! `model.safetensors.index.json`: which shard holds which tensor, and whether the shards agree. Headers of the shards
//! live in `header`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::unique::ByTensor;
use crate::error::{Error, Result};

/// The file's name in a model folder.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Tensor name to the file name of its shard.
#[derive(Debug)]
pub(super) struct Index {
    shard_of: BTreeMap<String, String>,
}

impl Index {
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct File {
            weight_map: ByTensor<String>,
        }
        let error = |message: String| Error::Checkpoint { path: path.to_owned(), message };
        let file: File = serde_json::from_slice(bytes)
            .map_err(|source| error(format!("not an index of safetensors shards: {source}")))?;
        let shard_of = file.weight_map.0;
        if shard_of.is_empty() {
            return Err(error("weight_map is empty, expected a shard for each tensor".into()));
        }
        for (tensor, shard) in &shard_of {
            let is_plain = Path::new(shard).file_name().is_some_and(|name| name == shard.as_str());
            if !is_plain {
                return Err(error(format!(
                    "tensor {tensor} is mapped to {shard:?}, expected the name of a file beside it"
                )));
            }
        }
        Ok(Self { shard_of })
    }

    /// The shards' file names, ascending.
    pub(super) fn shards(&self) -> BTreeSet<&str> {
        self.shard_of.values().map(String::as_str).collect()
    }

    /// Fails unless every shard is in `folder`.
    pub(super) fn check_present(&self, folder: &Path) -> Result<()> {
        let shards = self.shards();
        let absent: Vec<&str> = shards.iter().copied().filter(|shard| !folder.join(shard).exists()).collect();
        let Some(first) = absent.first() else { return Ok(()) };
        let tensors = self.shard_of.values().filter(|shard| shard == first).count();
        let mut message = format!("absent, but {INDEX_FILE} maps {tensors} tensors to it");
        if absent.len() > 1 {
            message += &format!(" ({} of {} shards are absent)", absent.len(), shards.len());
        }
        let unlisted = unlisted_shards(folder, &shards);
        if let Some(file) = unlisted.first() {
            message += &format!(": the index looks stale, {file} is here and not in it");
        }
        Err(Error::Checkpoint { path: folder.join(first), message })
    }

    /// Fails unless the shards hold exactly the tensors that are mapped to them. `held`: shard and tensor names.
    pub(super) fn check_agrees<'a>(&self, folder: &Path, held: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
        let mut holder: BTreeMap<&str, &str> = BTreeMap::new();
        for (shard, tensor) in held {
            if let Some(other) = holder.insert(tensor, shard) {
                let message = format!("tensor {tensor} is also in {other}, expected it in one shard");
                return Err(Error::Checkpoint { path: folder.join(shard), message });
            }
            if !self.shard_of.contains_key(tensor) {
                let message = format!("stale: it does not list tensor {tensor}, which {shard} holds");
                return Err(Error::Checkpoint { path: folder.join(INDEX_FILE), message });
            }
        }
        for (tensor, shard) in &self.shard_of {
            let message = match holder.get(tensor.as_str()) {
                Some(holder) if holder == shard => continue,
                Some(holder) => format!("has no tensor {tensor}, which {INDEX_FILE} maps to it; {holder} has it"),
                None => format!("has no tensor {tensor}, which {INDEX_FILE} maps to it; no shard has it"),
            };
            return Err(Error::Checkpoint { path: folder.join(shard), message });
        }
        Ok(())
    }
}

/// Files in `folder` named like shards that the index does not know, ascending.
fn unlisted_shards(folder: &Path, listed: &BTreeSet<&str>) -> Vec<String> {
    let names = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut unlisted: Vec<String> = names
        .filter(|name| name.starts_with("model-") && name.ends_with(".safetensors") && !listed.contains(name.as_str()))
        .collect();
    unlisted.sort();
    unlisted
}
