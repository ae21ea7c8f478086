//! Probes: every device function of `cuda_std`, called once and compared with its scalar definition.
//!
//! The simulator runs them in the tests beside; on a card they show that simulator and hardware mean the same; built for
//! each architecture they show that every instruction assembles. Nothing here serves inference.
mod copies;
mod lanes;
mod numbers;
mod order;
mod tiles;

pub use copies::*;
pub use lanes::*;
pub use numbers::*;
pub use order::*;
pub use tiles::*;
