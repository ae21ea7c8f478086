//! The CPU backend.

mod buffer;
pub mod experts;
pub mod linear;
pub mod mlp;
pub mod pool;
pub mod route;
pub mod simd;
#[cfg(test)]
mod testing;
