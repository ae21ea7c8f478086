//! Requests in, tokens out: the session, the decode step, what a round reports.

mod logits;
mod request;
mod session;
pub mod stats;
mod step;
pub mod stop;
mod text;
mod trace;

pub use logits::{LogitsOutput, logits};
pub use request::{Finish, Generation, Observer, Request, RoundRecord, Speculation, Verdict};
pub use session::{Session, SessionOptions};
pub use text::{TextObserver, WrittenText};
pub use trace::RoundTrace;
