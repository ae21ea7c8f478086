//! Requests in, tokens out: the session, the decode step, what a round reports.

mod logits;
mod request;
mod session;
mod step;

pub use logits::{LogitsOutput, logits};
pub use request::{Finish, Generation, Observer, Request, RoundRecord, Speculation, Verdict};
pub use session::{Session, SessionOptions};
