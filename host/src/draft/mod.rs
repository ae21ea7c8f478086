//! Drafters: DFlash block diffusion over the [`crate::backend::Backend`] trait, and n-gram lookup.

mod dflash;
pub mod ngram;

pub use dflash::{Dflash, DflashOptions};
