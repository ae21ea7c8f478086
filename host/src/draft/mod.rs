//! Drafters: DFlash block diffusion over the [`crate::backend::Backend`] trait, and n-gram lookup.

mod dflash;
pub mod ngram;
mod odds;

pub use dflash::{Dflash, DflashOptions};
pub use odds::Odds;
