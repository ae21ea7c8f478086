//! Fixtures, reference values and sessions for library-level tests.

use std::path::{Path, PathBuf};

use coppice::backend::Backend;
use coppice::backend::cpu::Cpu;
use coppice::backend::deferred::Deferred;
use coppice::draft::DflashOptions;
use coppice::engine::{Generation, Request, Session, SessionOptions, Speculation};
use coppice::sampling::Sampling;
use coppice_model::{DraftModel, Source, TargetModel};
use safetensors::{Dtype, SafeTensors};

/// Small random checkpoints in published layouts, with what Hugging Face transformers computes of them.
pub const FIXTURES: [&str; 4] =
    ["kimi-k25-int4-g32", "v3-bf16-no-q-lora", "v3-f32-groups-yarn-sharded", "v3-fp8-block128"];

/// The backends that must pass the same suite.
pub const BACKENDS: [&str; 2] = ["cpu", "deferred"];

/// Budgets at which every drafted mode must give the plain text.
pub const BUDGETS: [usize; 5] = [1, 8, 16, 32, 64];

/// `tests/fixtures/NAME`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A backend by name. One thread each: tests run side by side.
pub fn backend(name: &str) -> Box<dyn Backend> {
    match name {
        "cpu" => Box::new(Cpu::new(1)),
        "deferred" => Box::new(Deferred::new(Cpu::new(1), 2)),
        other => panic!("no backend {other}"),
    }
}

/// The fixture's target.
pub fn fixture_model(name: &str) -> TargetModel {
    TargetModel::load(&Source::Directory(fixture(name))).unwrap()
}

/// The embedded target and its drafter.
pub fn tiny() -> (TargetModel, DraftModel) {
    (TargetModel::load(&Source::EmbeddedTarget).unwrap(), DraftModel::load(&Source::EmbeddedDraft).unwrap())
}

/// Session sizes that fit every test.
pub fn options() -> SessionOptions {
    SessionOptions { context: 2048, prefill_chunk: 64, max_budget: 64, dflash: DflashOptions::default() }
}

/// A session on the embedded model and drafter.
pub fn tiny_session(backend_name: &str, options: SessionOptions) -> Session {
    let (target, draft) = tiny();
    Session::new(backend(backend_name), &target, Some(&draft), options, |_, _| {}).unwrap()
}

/// A greedy request that does not stop at end-of-text tokens.
pub fn request(prompt: &[u32], max_new_tokens: usize, speculation: Speculation) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens, sampling: Sampling::GREEDY, speculation, eos_ids: Vec::new() }
}

/// Tokens committed in each round whose whole block lies within the first `tokens` tokens.
pub fn rounds_within(generation: &Generation, tokens: usize, block: usize) -> Vec<usize> {
    let mut start = 1; // the token that prefill emits
    let accepted = generation.rounds.iter().map(|round| round.accepted);
    accepted
        .take_while(|accepted| {
            let fits = start + block <= tokens;
            start += accepted;
            fits
        })
        .collect()
}

/// Named f32 and integer tensors of a safetensors file.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// Reads `path`.
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Names in the file.
    pub fn names(&self) -> Vec<String> {
        SafeTensors::deserialize(&self.0).unwrap().names().into_iter().map(str::to_owned).collect()
    }

    /// An f32 tensor, flat.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// An i64 or i32 tensor of token ids, flat.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        match tensor.dtype() {
            Dtype::I64 => tensor
                .data()
                .chunks_exact(8)
                .map(|b| u32::try_from(i64::from_le_bytes(b.try_into().unwrap())).unwrap())
                .collect(),
            Dtype::I32 => tensor
                .data()
                .chunks_exact(4)
                .map(|b| u32::try_from(i32::from_le_bytes(b.try_into().unwrap())).unwrap())
                .collect(),
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// Norm of the difference over the norm of `expected`.
pub fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut actual.iter().zip(expected).map(|(a, e)| f64::from(*a) - f64::from(*e)));
    difference / norm(&mut expected.iter().map(|e| f64::from(*e)))
}
