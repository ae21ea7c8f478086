//! A round's bookkeeping on the device, so that the host waits for nothing: which rows there are, which token follows each,
//! which of them become context, and the report of the round. No model arithmetic.
mod best_first;
mod end;
mod ngram;
mod rows;
mod state;

pub use best_first::*;
pub use end::*;
pub use ngram::*;
pub use rows::*;
pub use state::*;
pub(crate) use state::{RowSet, State};
