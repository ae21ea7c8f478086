//! The device side of Coppice: GPU kernels live here, nothing that runs on the host does.
//!
//! The crate is `no_std` and knows neither the model nor the engine: a kernel takes pointers and sizes.
#![no_std]
