//! Where a model's files come from: a folder in the Hugging Face layout, or the program itself. What the files say
//! lives in `config`, `checkpoint` and the tokenizer.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, SINGLE_FILE};
use crate::embedded;
use crate::error::{Error, Result};

/// Where a model's files come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The target built into the program (`model/tiny/target`).
    EmbeddedTarget,
    /// The drafter of [`Source::EmbeddedTarget`] (`model/tiny/draft`).
    EmbeddedDraft,
    /// A folder with `config.json` and safetensors files.
    Directory(PathBuf),
}

impl Source {
    /// The folder, or a name for the embedded files that reads as one in messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::EmbeddedTarget => Path::new("embedded:target"),
            Self::EmbeddedDraft => Path::new("embedded:draft"),
            Self::Directory(path) => path,
        }
    }

    /// The bytes of the file `name` and its path for messages; `None` if the model has no such file.
    ///
    /// # Errors
    /// The folder does not exist, the file cannot be read, or the embedded model was left out of the build.
    pub fn read(&self, name: &str) -> Result<Option<(PathBuf, Cow<'static, [u8]>)>> {
        let path = self.path().join(name);
        if let Self::Directory(folder) = self {
            return match std::fs::read(&path) {
                Ok(bytes) => Ok(Some((path, Cow::Owned(bytes)))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder.is_dir() => Ok(None),
                Err(error) if folder.is_dir() => Err(Error::Io { path, source: error }),
                Err(error) => Err(Error::Io { path: folder.clone(), source: error }),
            };
        }
        let file = self.embedded_files()?.iter().find(|(file, _)| *file == name);
        Ok(file.map(|(_, bytes)| (path, Cow::Borrowed(*bytes))))
    }

    /// [`Source::read`] of a file that every model must have.
    ///
    /// # Errors
    /// As [`Source::read`], and an absent file.
    pub fn read_required(&self, name: &str) -> Result<(PathBuf, Cow<'static, [u8]>)> {
        self.read(name)?.ok_or_else(|| Error::Io {
            path: self.path().join(name),
            source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such file, and every model needs it"),
        })
    }

    /// Opens the model's tensors.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`], or the embedded model was left out of the build.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        if let Self::Directory(folder) = self {
            return Checkpoint::open(folder);
        }
        let path = self.path().join(SINGLE_FILE);
        let file = self.embedded_files()?.iter().find(|(file, _)| *file == SINGLE_FILE);
        Checkpoint::from_static(&path, file.map_or(&[], |(_, bytes)| bytes))
    }

    fn embedded_files(&self) -> Result<&'static [embedded::File]> {
        let files = match self {
            Self::EmbeddedDraft => embedded::draft(),
            _ => embedded::target(),
        };
        files.ok_or_else(|| Error::NotEmbedded { path: self.path().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_its_files_and_none_for_absent_ones() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), b"{}").unwrap();
        let source = Source::Directory(folder.path().to_owned());
        let (path, bytes) = source.read("config.json").unwrap().unwrap();
        assert_eq!((path, &*bytes), (folder.path().join("config.json"), b"{}".as_slice()));
        assert!(source.read("chat_template.jinja").unwrap().is_none());
        let message = source.read_required("tokenizer.json").unwrap_err().to_string();
        assert!(message.contains("tokenizer.json"), "{message}");
    }

    #[test]
    fn an_absent_folder_is_named() {
        let source = Source::Directory(PathBuf::from("/no/such/model"));
        let message = source.read("config.json").unwrap_err().to_string();
        assert!(message.contains("cannot read /no/such/model:"), "{message}");
    }

    #[cfg(feature = "embedded-model")]
    #[test]
    fn embedded_files_are_complete_and_aligned() {
        let target = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
        for name in target.into_iter().chain([SINGLE_FILE]) {
            let (path, bytes) = Source::EmbeddedTarget.read(name).unwrap().unwrap();
            assert_eq!(path, Path::new("embedded:target").join(name));
            let on_disk = Path::new(env!("CARGO_MANIFEST_DIR")).join("tiny/target").join(name);
            assert!(*bytes == std::fs::read(on_disk).unwrap(), "{name} differs from the file on disk");
            assert_eq!(bytes.as_ptr() as usize % 64, 0, "{name}");
        }
        assert!(Source::EmbeddedTarget.read("chat_template.jinja").unwrap().is_none());
        assert!(Source::EmbeddedDraft.read("tokenizer.json").unwrap().is_none());
        assert!(Source::EmbeddedDraft.read("config.json").unwrap().is_some());
    }

    #[cfg(not(feature = "embedded-model"))]
    #[test]
    fn a_build_without_the_embedded_model_says_so() {
        for source in [Source::EmbeddedTarget, Source::EmbeddedDraft] {
            let message = source.read("config.json").unwrap_err().to_string();
            assert!(message.contains("built without the feature embedded-model"), "{message}");
            assert!(source.checkpoint().is_err());
        }
    }
}
