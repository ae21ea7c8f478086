//! What a model takes while it runs.

use coppice_model::{DraftModel, TargetModel};
use serde::Serialize;

use crate::backend::cpu::Tally;
use crate::backend::{Backend, MemoryUse, SequenceSpec};
use crate::draft::Dflash;
use crate::engine::{Session, SessionOptions};
use crate::error::Result;
use crate::report::MemoryReport;

/// Memory of a session on the CPU.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryAtContext {
    /// Tokens of prompt and answer.
    pub context: usize,
    /// Bytes by purpose.
    #[serde(flatten)]
    pub bytes: MemoryReport,
}

impl MemoryAtContext {
    /// Of a target.
    ///
    /// # Errors
    /// None but faults of the program.
    pub(super) fn of_target(model: &TargetModel, options: SessionOptions) -> Result<Self> {
        let session = Session::new(Box::new(Tally::default()), model, None, options, |_, _| {})?;
        Ok(Self::new(options, session.memory()))
    }

    /// Of a drafter, which comes on top of its target.
    ///
    /// # Errors
    /// None but faults of the program.
    pub(super) fn of_drafter(model: &DraftModel, options: SessionOptions) -> Result<Self> {
        let mut tally = Tally::default();
        let max_rows = options.max_rows();
        let drafter = Dflash::load(&mut tally, &model.config, &model.weights, options.dflash, max_rows)?;
        let draft = drafter.attention();
        tally.sequence(&SequenceSpec { context: options.context, max_rows, target: Vec::new(), draft })?;
        Ok(Self::new(options, tally.memory()))
    }

    fn new(options: SessionOptions, memory: MemoryUse) -> Self {
        Self { context: options.context, bytes: memory.into() }
    }
}
