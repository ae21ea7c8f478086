//! The device side of Coppice: GPU kernels live here, nothing that runs on the host does.
//!
//! The crate is `no_std` and knows neither the model nor the engine: a kernel takes pointers and sizes. Beside each kernel
//! stand its launch shape and its scalar reference, which only exist on the host, and the tests that run the kernel under
//! the simulator. Sums are taken in an order that does not depend on the number of rows.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

pub mod attention;
mod block;
pub mod ceiling;
pub mod commit;
pub mod embed;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod probe;
pub mod rope;
pub mod sample;
pub mod swiglu;
pub mod top_k;
pub mod tree;

#[cfg(not(target_arch = "nvptx64"))]
pub mod testing;

/// The example in the README is compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
