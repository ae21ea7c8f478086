//! Atomics and ordered loads and stores. `core::sync::atomic` loses its ordering on NVPTX, so kernels use these.
//!
//! Scope is the device unless the name says `system`. In the simulator each is a scheduling point, so that a thread
//! spinning on a flag lets the others run.
use crate::{GlobalMut, Shared};

macro_rules! ordered {
    ($($(#[$doc:meta])* load $load:ident, store $store:ident: $device_load:ident, $device_store:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The address must be a 4-byte aligned `u32` in a device buffer.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $load(place: GlobalMut<u32>) -> u32 {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::$device_load(place.as_raw() as u64)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    crate::simulate::spin();
                    crate::simulate::global_read(place.as_raw())
                }
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// The address must be a 4-byte aligned `u32` in a writable device buffer.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $store(place: GlobalMut<u32>, value: u32) {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::$device_store(place.as_raw() as u64, value);
                }
                #[cfg(not(target_arch = "nvptx64"))]
                crate::simulate::global_write(place.as_raw(), value);
            }
        )*
    };
}
ordered! {
    /// Access that is atomic but orders nothing.
    load load_relaxed, store store_relaxed: load_relaxed, store_relaxed;
    /// Access that hands data from one block to another: what precedes the store is seen after the load that meets it.
    load load_acquire, store store_release: load_acquire, store_release;
    /// The same between device and host.
    load load_acquire_system, store store_release_system: load_acquire_system, store_release_system;
}

macro_rules! fetch {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $device:ident, $op:expr;)*) => {
        $(
            $(#[$doc])*
            /// Returns the value before.
            ///
            /// # Safety
            /// The address must be 4-byte aligned in a writable device buffer.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name(place: GlobalMut<$type>, value: $type) -> $type {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::$device(place.as_raw() as u64, value)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    let op: fn($type, $type) -> $type = $op;
                    crate::simulate::spin();
                    let old = crate::simulate::global_read(place.as_raw());
                    crate::simulate::global_write(place.as_raw(), op(old, value));
                    old
                }
            }
        )*
    };
}
fetch! {
    /// Adds, wrapping; acquires and releases.
    fetch_add(u32) = add_u32, u32::wrapping_add;
    /// Adds, wrapping; orders nothing.
    fetch_add_relaxed(u32) = add_relaxed_u32, u32::wrapping_add;
    /// Adds; orders nothing, and the order of additions is not fixed.
    fetch_add_f32(f32) = add_relaxed_f32, |a, b| a + b;
    /// Keeps the larger; acquires and releases.
    fetch_max(u32) = max_u32, u32::max;
    /// Keeps the smaller; acquires and releases.
    fetch_min(u32) = min_u32, u32::min;
    /// Sets bits; acquires and releases.
    fetch_or(u32) = or_u32, |a, b| a | b;
    /// Exchanges; acquires and releases.
    exchange(u32) = exchange_u32, |_, b| b;
    /// Exchanges; orders nothing.
    exchange_relaxed(u32) = exchange_relaxed_u32, |_, b| b;
}

/// Writes `new` where `expected` was found; returns the value before. Acquires and releases.
///
/// # Safety
/// The address must be 4-byte aligned in a writable device buffer.
#[inline(always)]
#[track_caller]
pub unsafe fn compare_exchange(place: GlobalMut<u32>, expected: u32, new: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::compare_exchange_u32(place.as_raw() as u64, expected, new)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::simulate::spin();
        let old = crate::simulate::global_read(place.as_raw());
        if old == expected {
            crate::simulate::global_write(place.as_raw(), new);
        }
        old
    }
}

macro_rules! shared_fetch {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $device:ident, $op:expr;)*) => {
        $(
            $(#[$doc])*
            /// Returns the value before; orders nothing.
            ///
            /// # Safety
            /// The address must be 4-byte aligned shared memory that was written before.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name(place: Shared<$type>, value: $type) -> $type {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::$device(place.address(), value)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                {
                    let op: fn($type, $type) -> $type = $op;
                    crate::simulate::shared_atomic(place.address(), |old| op(old, value))
                }
            }
        )*
    };
}
shared_fetch! {
    /// Adds in shared memory, wrapping.
    shared_fetch_add(u32) = shared_add_u32, u32::wrapping_add;
    /// Adds in shared memory; the order of additions is not fixed.
    shared_fetch_add_f32(f32) = shared_add_f32, |a, b| a + b;
    /// Keeps the larger in shared memory.
    shared_fetch_max(u32) = shared_max_u32, u32::max;
    /// Sets bits in shared memory.
    shared_fetch_or(u32) = shared_or_u32, |a, b| a | b;
}
