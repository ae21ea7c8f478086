//! Collectives of a warp: shuffles, votes, reductions. Matrix operations live in `mma`.
//!
//! All lanes named in a mask must reach the call together. Every function here is a convergence point but only
//! [`sync_warp`] orders memory.
use crate::DeviceCopy;
#[cfg(not(target_arch = "nvptx64"))]
use crate::simulate::Collective;

/// All 32 lanes.
pub const FULL_MASK: u32 = u32::MAX;

/// Lane index in the warp, 0 to 31.
#[inline(always)]
pub fn lane_id() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a special register.
    unsafe {
        crate::device::lane_id()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::lane_id()
}

/// Waits for the lanes of `mask` and orders their memory accesses (`__syncwarp`).
///
/// # Safety
/// All lanes of `mask` must reach it together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp(mask: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::sync_warp(mask);
    }
    #[cfg(not(target_arch = "nvptx64"))]
    crate::simulate::collective(Collective::SyncWarp, mask, &[]);
}

/// A 32-bit value that a shuffle can carry.
pub trait WarpShuffleValue: DeviceCopy {
    /// Its bits.
    fn to_bits(self) -> u32;
    /// The value of these bits.
    fn from_bits(bits: u32) -> Self;
}
impl WarpShuffleValue for u32 {
    #[inline(always)]
    fn to_bits(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits
    }
}
impl WarpShuffleValue for i32 {
    #[inline(always)]
    fn to_bits(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits as i32
    }
}
impl WarpShuffleValue for f32 {
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32::to_bits(self)
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }
}

/// The `c` operand of `shfl`: segments of `width` lanes; `clamp` is 31 for all modes but up.
#[inline(always)]
fn segment(width: u32, clamp: u32) -> u32 {
    ((32 - width) << 8) | clamp
}

macro_rules! shuffle {
    ($($(#[$doc:meta])* $name:ident($lane:ident) = $device:ident, $kind:ident, clamp $clamp:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// `width` is a power of two up to 32: the warp is cut into segments of that many lanes.
            ///
            /// # Safety
            /// All lanes of `mask` must reach it together, with the same `width`.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name<T: WarpShuffleValue>(mask: u32, value: T, $lane: u32, width: u32) -> T {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                let bits = unsafe { crate::device::$device(mask, value.to_bits(), $lane, segment(width, $clamp)) };
                #[cfg(not(target_arch = "nvptx64"))]
                let bits = crate::simulate::collective(
                    Collective::Shuffle(crate::simulate::Shuffle::$kind, segment(width, $clamp)),
                    mask,
                    &[value.to_bits(), $lane],
                )[0];
                T::from_bits(bits)
            }
        )*
    };
}
shuffle! {
    /// The value of lane `lane` of the segment.
    warp_shuffle_idx(lane) = shfl_idx, Index, clamp 31;
    /// The value of the lane whose index differs by XOR with `lane_mask`.
    warp_shuffle_xor(lane_mask) = shfl_xor, Xor, clamp 31;
    /// The value `delta` lanes below; the lowest `delta` lanes keep theirs.
    warp_shuffle_up(delta) = shfl_up, Up, clamp 0;
    /// The value `delta` lanes above; the highest `delta` lanes keep theirs.
    warp_shuffle_down(delta) = shfl_down, Down, clamp 31;
}

/// Whether `predicate` holds in all lanes of `mask`.
///
/// # Safety
/// All lanes of `mask` must reach it together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::vote_all(mask, predicate)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::simulate::collective(Collective::VoteAll, mask, &[predicate.into()])[0] != 0
    }
}

/// Whether `predicate` holds in any lane of `mask`.
///
/// # Safety
/// All lanes of `mask` must reach it together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        crate::device::vote_any(mask, predicate)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::simulate::collective(Collective::VoteAny, mask, &[predicate.into()])[0] != 0
    }
}

macro_rules! integer_collective {
    ($($(#[$doc:meta])* $name:ident($mask:ident, $value:ident: $type:ty) = $device:ident($first:ident, $second:ident), $kind:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// All lanes of `mask` must reach it together.
            #[inline(always)]
            #[track_caller]
            pub unsafe fn $name($mask: u32, $value: $type) -> u32 {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's contract.
                unsafe {
                    crate::device::$device($first, $second)
                }
                #[cfg(not(target_arch = "nvptx64"))]
                crate::simulate::collective(Collective::$kind, $mask, &[$value.into()])[0]
            }
        )*
    };
}
integer_collective! {
    /// One bit a lane of `mask`: its `predicate`.
    warp_vote_ballot(mask, predicate: bool) = vote_ballot(mask, predicate), Ballot;
    /// One bit a lane of `mask` that holds the same `value` as this one.
    warp_match_any(mask, value: u32) = match_any(mask, value), MatchAny;
    /// Sum over the lanes of `mask`, wrapping.
    warp_reduce_add(mask, value: u32) = reduce_add(value, mask), ReduceAdd;
    /// Smallest over the lanes of `mask`.
    warp_reduce_min(mask, value: u32) = reduce_min(value, mask), ReduceMin;
    /// Largest over the lanes of `mask`.
    warp_reduce_max(mask, value: u32) = reduce_max(value, mask), ReduceMax;
    /// Bitwise and over the lanes of `mask`.
    warp_reduce_and(mask, value: u32) = reduce_and(value, mask), ReduceAnd;
    /// Bitwise or over the lanes of `mask`.
    warp_reduce_or(mask, value: u32) = reduce_or(value, mask), ReduceOr;
    /// Bitwise exclusive or over the lanes of `mask`.
    warp_reduce_xor(mask, value: u32) = reduce_xor(value, mask), ReduceXor;
}

/// Sum of an f32 over all 32 lanes, in every lane: a butterfly, so the order is fixed and the result the same in all lanes.
///
/// # Safety
/// All lanes must reach it together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_sum(mut value: f32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        value += warp_shuffle_xor(FULL_MASK, value, 16, 32);
        value += warp_shuffle_xor(FULL_MASK, value, 8, 32);
        value += warp_shuffle_xor(FULL_MASK, value, 4, 32);
        value += warp_shuffle_xor(FULL_MASK, value, 2, 32);
        value += warp_shuffle_xor(FULL_MASK, value, 1, 32);
    }
    value
}

/// Largest f32 over all 32 lanes, in every lane.
///
/// # Safety
/// All lanes must reach it together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_max(mut value: f32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        value = value.max(warp_shuffle_xor(FULL_MASK, value, 16, 32));
        value = value.max(warp_shuffle_xor(FULL_MASK, value, 8, 32));
        value = value.max(warp_shuffle_xor(FULL_MASK, value, 4, 32));
        value = value.max(warp_shuffle_xor(FULL_MASK, value, 2, 32));
        value = value.max(warp_shuffle_xor(FULL_MASK, value, 1, 32));
    }
    value
}
