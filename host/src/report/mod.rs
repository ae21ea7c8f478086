//! What the commands say about a run, for people and for programs: schemas, environment, generations. Measuring and
//! printing live elsewhere.

mod environment;
mod generation;
mod model;
mod profile;
mod size;
mod tree;

pub use environment::{Build, CpuEnvironment, Environment, ModelIdentity, PtxIdentity};
pub use generation::{GenerationReport, MemoryReport, SpeculationReport, TimingsReport, digest};
pub use model::{MemoryAtContext, ModelReport, Parameters, Role, TensorGroup, Unbound};
pub use profile::{OverheadReport, ProfileReport};
pub(crate) use size::Bytes;
pub(crate) use tree::Glyphs;
pub use tree::{BonusReport, NodeReport, TreeReport};

/// Names of the JSON objects, and their versions: a new one for every change that could break a reader.
pub mod schema {
    /// Of `generate --json`.
    pub const GENERATE: &str = "coppice.generate.v1";
    /// Of `tree --json`.
    pub const TREE: &str = "coppice.tree.v1";
    /// Of `profile --json`.
    pub const PROFILE: &str = "coppice.profile.v1";
    /// Of `doctor --json`.
    pub const DOCTOR: &str = "coppice.doctor.v1";
    /// Of `kernels list --json`.
    pub const KERNELS_LIST: &str = "coppice.kernels-list.v1";
    /// Of `kernels check --json`.
    pub const KERNELS_CHECK: &str = "coppice.kernels-check.v1";
    /// Of `kernels bench --json`.
    pub const KERNELS_BENCH: &str = "coppice.kernels-bench.v1";
    /// Of `kernels attention --json`.
    pub const KERNELS_ATTENTION: &str = "coppice.kernels-attention.v1";
    /// Of `bench -o json`, and of what `bench --baseline` and `bench --from` read.
    pub const BENCH: &str = "coppice.bench.v1";
    /// Of each line of `bench -o jsonl`.
    pub const BENCH_ROW: &str = "coppice.bench-row.v1";
    /// Of `inspect --json`.
    pub const INSPECT: &str = "coppice.inspect.v1";
}
