//! Requests in, tokens out: the session, the decode step, what a round reports.

mod logits;
mod pace;
mod pilot;
mod request;
mod session;
pub mod stats;
mod step;
pub mod stop;
mod text;
mod trace;
mod worth;

pub use logits::{LogitsOutput, logits};
pub use pilot::MOST_NODES;
pub use request::{Drafts, Finish, Generation, Observer, Request, RoundRecord, Speculation, Verdict};
pub use session::{Session, SessionOptions};
pub use text::{TextObserver, WrittenText};
pub use trace::RoundTrace;
