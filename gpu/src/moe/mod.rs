//! Mixture of experts: which experts the rows go to, which of them are active, and their products.
pub mod active;
pub mod combine;
pub mod experts;
pub mod format;
pub mod route;
pub mod router;
#[cfg(not(target_arch = "nvptx64"))]
pub mod testing;
