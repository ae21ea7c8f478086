//! NVPTX only: LLVM intrinsics, and the inline assembly that LLVM may move or duplicate without harm.
//! No kernel logic and no public API lives here.
use crate::DeviceCopy;
use core::arch::{asm, global_asm};

global_asm!(".extern .shared .align 128 .b8 dyn_smem[];");

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: ends the kernel with an error that the driver reports.
    unsafe { trap() }
}

/// Four 32-bit registers, as LLVM returns them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Quad<T>(pub T, pub T, pub T, pub T);
/// Two 32-bit registers, as LLVM returns them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair<T>(pub T, pub T);

macro_rules! intrinsics {
    ($($link:literal fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        unsafe extern "unadjusted" {
            $(
                #[link_name = $link]
                pub fn $name($($argument: $type),*) $(-> $result)?;
            )*
        }
    };
}

intrinsics! {
    "llvm.trap" fn trap() -> !;
    "llvm.nvvm.read.ptx.sreg.tid.x" fn tid_x() -> u32;
    "llvm.nvvm.read.ptx.sreg.tid.y" fn tid_y() -> u32;
    "llvm.nvvm.read.ptx.sreg.tid.z" fn tid_z() -> u32;
    "llvm.nvvm.read.ptx.sreg.ntid.x" fn ntid_x() -> u32;
    "llvm.nvvm.read.ptx.sreg.ntid.y" fn ntid_y() -> u32;
    "llvm.nvvm.read.ptx.sreg.ntid.z" fn ntid_z() -> u32;
    "llvm.nvvm.read.ptx.sreg.ctaid.x" fn ctaid_x() -> u32;
    "llvm.nvvm.read.ptx.sreg.ctaid.y" fn ctaid_y() -> u32;
    "llvm.nvvm.read.ptx.sreg.ctaid.z" fn ctaid_z() -> u32;
    "llvm.nvvm.read.ptx.sreg.nctaid.x" fn nctaid_x() -> u32;
    "llvm.nvvm.read.ptx.sreg.nctaid.y" fn nctaid_y() -> u32;
    "llvm.nvvm.read.ptx.sreg.nctaid.z" fn nctaid_z() -> u32;
    "llvm.nvvm.read.ptx.sreg.laneid" fn lane_id() -> u32;

    "llvm.nvvm.barrier.cta.sync.aligned.all" fn barrier_sync_all(id: u32);
    "llvm.nvvm.barrier.cta.sync.aligned.count" fn barrier_sync(id: u32, threads: u32);
    "llvm.nvvm.barrier.cta.arrive.aligned.count" fn barrier_arrive(id: u32, threads: u32);
    "llvm.nvvm.bar.warp.sync" fn sync_warp(mask: u32);
    "llvm.nvvm.membar.cta" fn fence_block();
    "llvm.nvvm.membar.gl" fn fence_device();
    "llvm.nvvm.membar.sys" fn fence_system();

    "llvm.nvvm.shfl.sync.idx.i32" fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    "llvm.nvvm.shfl.sync.bfly.i32" fn shfl_xor(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    "llvm.nvvm.shfl.sync.up.i32" fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    "llvm.nvvm.shfl.sync.down.i32" fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    "llvm.nvvm.vote.all.sync" fn vote_all(mask: u32, predicate: bool) -> bool;
    "llvm.nvvm.vote.any.sync" fn vote_any(mask: u32, predicate: bool) -> bool;
    "llvm.nvvm.vote.ballot.sync" fn vote_ballot(mask: u32, predicate: bool) -> u32;
    "llvm.nvvm.match.any.sync.i32" fn match_any(mask: u32, value: u32) -> u32;
    "llvm.nvvm.redux.sync.add" fn reduce_add(value: u32, mask: u32) -> u32;
    "llvm.nvvm.redux.sync.umin" fn reduce_min(value: u32, mask: u32) -> u32;
    "llvm.nvvm.redux.sync.umax" fn reduce_max(value: u32, mask: u32) -> u32;
    "llvm.nvvm.redux.sync.and" fn reduce_and(value: u32, mask: u32) -> u32;
    "llvm.nvvm.redux.sync.or" fn reduce_or(value: u32, mask: u32) -> u32;
    "llvm.nvvm.redux.sync.xor" fn reduce_xor(value: u32, mask: u32) -> u32;

    "llvm.nvvm.mma.m16n8k16.row.col.bf16" fn mma_bf16(
        a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32
    ) -> Quad<f32>;
    "llvm.nvvm.mma.m16n8k32.row.col.f32.e4m3.e4m3.f32" fn mma_e4m3(
        a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32
    ) -> Quad<f32>;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.b16.p0" fn ldmatrix_x1(row: *const u8) -> u32;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p0" fn ldmatrix_x2(row: *const u8) -> Pair<u32>;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p0" fn ldmatrix_x4(row: *const u8) -> Quad<u32>;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.trans.b16.p0" fn ldmatrix_x1_trans(row: *const u8) -> u32;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p0" fn ldmatrix_x2_trans(row: *const u8) -> Pair<u32>;
    "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16.p0" fn ldmatrix_x4_trans(row: *const u8) -> Quad<u32>;

    "llvm.nvvm.ex2.approx.ftz.f" fn ex2(x: f32) -> f32;
    "llvm.nvvm.lg2.approx.ftz.f" fn lg2(x: f32) -> f32;
    "llvm.nvvm.rsqrt.approx.ftz.f" fn rsqrt(x: f32) -> f32;
    "llvm.nvvm.rcp.approx.ftz.f" fn rcp(x: f32) -> f32;
    "llvm.nvvm.sqrt.rn.f" fn sqrt(x: f32) -> f32;
    "llvm.nvvm.fma.rn.f" fn fma(a: f32, b: f32, c: f32) -> f32;
}

/// Address of the block's dynamic shared memory in the shared window.
#[inline(always)]
pub fn shared_base() -> u32 {
    let address: u32;
    // SAFETY: reads a link-time constant.
    unsafe { asm!("mov.u32 {}, dyn_smem;", out(reg32) address, options(pure, nomem, nostack)) };
    address
}

/// Generic address of a shared-window address, for the intrinsics that only take generic pointers.
#[inline(always)]
pub fn shared_to_generic(address: u32) -> *const u8 {
    let generic: u64;
    // SAFETY: address arithmetic only.
    unsafe {
        asm!("cvta.shared.u64 {}, {};", out(reg64) generic, in(reg64) u64::from(address), options(pure, nomem, nostack));
    }
    generic as *const u8
}

macro_rules! load {
    ($(#[$doc:meta])* $name:ident, $op:literal, $class:ident, $address:ty) => {
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name<T: DeviceCopy>(address: $address) -> T {
            // SAFETY: the caller answers for the address; `T` is plain data whose size selects the arm.
            unsafe {
                match size_of::<T>() {
                    1 => {
                        let v: u16;
                        asm!(concat!($op, ".u8 {}, [{}];"), out(reg16) v, in($class) address, options(readonly, nostack));
                        (&raw const v).cast::<T>().read()
                    }
                    2 => {
                        let v: u16;
                        asm!(concat!($op, ".u16 {}, [{}];"), out(reg16) v, in($class) address, options(readonly, nostack));
                        (&raw const v).cast::<T>().read()
                    }
                    4 => {
                        let v: u32;
                        asm!(concat!($op, ".b32 {}, [{}];"), out(reg32) v, in($class) address, options(readonly, nostack));
                        (&raw const v).cast::<T>().read()
                    }
                    8 => {
                        let (x, y): (u32, u32);
                        asm!(concat!($op, ".v2.b32 {{{},{}}}, [{}];"), out(reg32) x, out(reg32) y,
                            in($class) address, options(readonly, nostack));
                        (&raw const *&[x, y]).cast::<T>().read()
                    }
                    _ => {
                        let (x, y, z, w): (u32, u32, u32, u32);
                        asm!(concat!($op, ".v4.b32 {{{},{},{},{}}}, [{}];"), out(reg32) x, out(reg32) y, out(reg32) z,
                            out(reg32) w, in($class) address, options(readonly, nostack));
                        (&raw const *&[x, y, z, w]).cast::<T>().read()
                    }
                }
            }
        }
    };
}

macro_rules! store {
    ($(#[$doc:meta])* $name:ident, $op:literal, $class:ident, $address:ty) => {
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name<T: DeviceCopy>(address: $address, value: T) {
            let p = &raw const value;
            // SAFETY: the caller answers for the address; `T` is plain data whose size selects the arm.
            unsafe {
                match size_of::<T>() {
                    1 => asm!(concat!($op, ".u8 [{}], {};"), in($class) address, in(reg16) u16::from(*p.cast::<u8>()),
                        options(nostack)),
                    2 => asm!(concat!($op, ".u16 [{}], {};"), in($class) address, in(reg16) *p.cast::<u16>(),
                        options(nostack)),
                    4 => asm!(concat!($op, ".b32 [{}], {};"), in($class) address, in(reg32) *p.cast::<u32>(),
                        options(nostack)),
                    8 => {
                        let [x, y] = p.cast::<[u32; 2]>().read_unaligned();
                        asm!(concat!($op, ".v2.b32 [{}], {{{},{}}};"), in($class) address, in(reg32) x, in(reg32) y,
                            options(nostack));
                    }
                    _ => {
                        let [x, y, z, w] = p.cast::<[u32; 4]>().read_unaligned();
                        asm!(concat!($op, ".v4.b32 [{}], {{{},{},{},{}}};"), in($class) address, in(reg32) x,
                            in(reg32) y, in(reg32) z, in(reg32) w, options(nostack));
                    }
                }
            }
        }
    };
}

load!(/// `ld.shared`
    load_shared, "ld.shared", reg32, u32);
load!(/// `ld.global`
    load_global, "ld.global", reg64, u64);
load!(/// `ld.global.nc`: the read-only path, for data that no one writes while the kernel runs.
    load_global_nc, "ld.global.nc", reg64, u64);
load!(/// `ld.global.nc.L1::no_allocate`: read-only and not kept in L1.
    load_global_once, "ld.global.nc.L1::no_allocate", reg64, u64);
load!(/// `ld.relaxed.gpu.global`
    load_relaxed, "ld.relaxed.gpu.global", reg64, u64);
load!(/// `ld.acquire.gpu.global`
    load_acquire, "ld.acquire.gpu.global", reg64, u64);
load!(/// `ld.acquire.sys.global`
    load_acquire_system, "ld.acquire.sys.global", reg64, u64);
store!(/// `st.shared`
    store_shared, "st.shared", reg32, u32);
store!(/// `st.global`
    store_global, "st.global", reg64, u64);
store!(/// `st.global.cs`: evicted first.
    store_global_once, "st.global.cs", reg64, u64);
store!(/// `st.relaxed.gpu.global`
    store_relaxed, "st.relaxed.gpu.global", reg64, u64);
store!(/// `st.release.gpu.global`
    store_release, "st.release.gpu.global", reg64, u64);
store!(/// `st.release.sys.global`
    store_release_system, "st.release.sys.global", reg64, u64);

macro_rules! atom {
    ($($name:ident, $op:literal, $class:ident, $address:ty, $type:ty;)*) => {
        $(
            #[doc = concat!("`", $op, "`")]
            #[inline(always)]
            pub unsafe fn $name(address: $address, value: $type) -> $type {
                let old: $type;
                // SAFETY: the caller answers for the address.
                unsafe {
                    asm!(concat!($op, " {}, [{}], {};"), out(reg32) old, in($class) address, in(reg32) value, options(nostack));
                }
                old
            }
        )*
    };
}
atom! {
    add_u32, "atom.acq_rel.gpu.global.add.u32", reg64, u64, u32;
    add_relaxed_u32, "atom.relaxed.gpu.global.add.u32", reg64, u64, u32;
    add_relaxed_f32, "atom.relaxed.gpu.global.add.f32", reg64, u64, f32;
    max_u32, "atom.acq_rel.gpu.global.max.u32", reg64, u64, u32;
    min_u32, "atom.acq_rel.gpu.global.min.u32", reg64, u64, u32;
    or_u32, "atom.acq_rel.gpu.global.or.b32", reg64, u64, u32;
    exchange_u32, "atom.acq_rel.gpu.global.exch.b32", reg64, u64, u32;
    exchange_relaxed_u32, "atom.relaxed.gpu.global.exch.b32", reg64, u64, u32;
    shared_add_u32, "atom.relaxed.cta.shared.add.u32", reg32, u32, u32;
    shared_add_f32, "atom.relaxed.cta.shared.add.f32", reg32, u32, f32;
    shared_max_u32, "atom.relaxed.cta.shared.max.u32", reg32, u32, u32;
    shared_or_u32, "atom.relaxed.cta.shared.or.b32", reg32, u32, u32;
}

macro_rules! effect {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty as $class:ident),*) = $text:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub unsafe fn $name($($argument: $type),*) {
                // SAFETY: the caller answers for the operands.
                unsafe { asm!($text, $(in($class) $argument,)* options(nostack)) };
            }
        )*
    };
}
effect! {
    fn copy_async_4(to: u32 as reg32, from: u64 as reg64) = "cp.async.ca.shared.global [{}], [{}], 4;";
    fn copy_async_8(to: u32 as reg32, from: u64 as reg64) = "cp.async.ca.shared.global [{}], [{}], 8;";
    fn copy_async_16(to: u32 as reg32, from: u64 as reg64) = "cp.async.cg.shared.global [{}], [{}], 16;";
    fn copy_async_commit() = "cp.async.commit_group;";
    fn copy_bulk(to: u32 as reg32, from: u64 as reg64, bytes: u32 as reg32, barrier: u32 as reg32)
        = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];";
    fn mbarrier_init(address: u32 as reg32, arrivals: u32 as reg32) = "mbarrier.init.shared::cta.b64 [{}], {};";
    fn mbarrier_arrive(address: u32 as reg32) = "mbarrier.arrive.shared::cta.b64 _, [{}];";
    fn mbarrier_arrive_expect(address: u32 as reg32, bytes: u32 as reg32)
        = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};";
    fn mbarrier_expect(address: u32 as reg32, bytes: u32 as reg32)
        = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{}], {};";
    fn fence_mbarrier_init() = "fence.mbarrier_init.release.cluster;";
    fn fence_proxy_async() = "fence.proxy.async.shared::cta;";
    fn dependency_wait() = "griddepcontrol.wait;";
    fn dependency_launch() = "griddepcontrol.launch_dependents;";
    fn nanosleep(nanoseconds: u32 as reg32) = "nanosleep.u32 {};";
}

macro_rules! ldmatrix {
    ($($name:ident($count:literal), $text:literal, [$($result:ident)*];)*) => {
        $(
            #[doc = concat!("`", $text, "` by a shared-window address, whose offset ptxas folds into the access.")]
            #[inline(always)]
            pub unsafe fn $name(address: u32) -> [u32; $count] {
                $(let $result: u32;)*
                // SAFETY: the caller answers for the address and for convergence.
                unsafe { asm!($text, $(out(reg32) $result,)* in(reg32) address, options(readonly, nostack)) };
                [$($result),*]
            }
        )*
    };
}
ldmatrix! {
    ldmatrix_x2_at(2), "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{},{}}}, [{}];", [a b];
    ldmatrix_x2_trans_at(2), "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{},{}}}, [{}];", [a b];
    ldmatrix_x4_at(4), "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{},{},{},{}}}, [{}];", [a b c d];
    ldmatrix_x4_trans_at(4), "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{},{},{},{}}}, [{}];", [a b c d];
}

/// `cp.async.wait_group N`
#[inline(always)]
pub unsafe fn copy_async_wait<const N: u32>() {
    // SAFETY: waits only.
    unsafe { asm!("cp.async.wait_group {};", const N, options(nostack)) };
}

/// `mbarrier.try_wait.parity`, once: may suspend for a while, and says whether the phase is over.
#[inline(always)]
pub unsafe fn mbarrier_try_wait(address: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller answers for the address.
    unsafe {
        asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{}], {}; selp.u32 {}, 1, 0, p; }}",
            in(reg32) address, in(reg32) parity, out(reg32) done, options(nostack));
    }
    done != 0
}

/// `atom.cas`
#[inline(always)]
pub unsafe fn compare_exchange_u32(address: u64, expected: u32, new: u32) -> u32 {
    let old: u32;
    // SAFETY: the caller answers for the address.
    unsafe {
        asm!("atom.acq_rel.gpu.global.cas.b32 {}, [{}], {}, {};", out(reg32) old, in(reg64) address,
            in(reg32) expected, in(reg32) new, options(nostack));
    }
    old
}

macro_rules! pure {
    ($($name:ident($($argument:ident: $type:ty as $class:ident),*) -> $result:ty as $out:ident = $text:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`")]
            #[inline(always)]
            pub fn $name($($argument: $type),*) -> $result {
                let result: $result;
                // SAFETY: arithmetic on registers.
                unsafe { asm!($text, out($out) result, $(in($class) $argument,)* options(pure, nomem, nostack)) };
                result
            }
        )*
    };
}
pure! {
    tanh(x: f32 as reg32) -> f32 as reg32 = "tanh.approx.f32 {}, {};";
    bf16x2(high: f32 as reg32, low: f32 as reg32) -> u32 as reg32 = "cvt.rn.bf16x2.f32 {}, {}, {};";
    f16x2(high: f32 as reg32, low: f32 as reg32) -> u32 as reg32 = "cvt.rn.f16x2.f32 {}, {}, {};";
    f16_to_f32(bits: u16 as reg16) -> f32 as reg32 = "cvt.f32.f16 {}, {};";
    e4m3x2_to_f16x2(bits: u16 as reg16) -> u32 as reg32 = "cvt.rn.f16x2.e4m3x2 {}, {};";
    e4m3x2(high: f32 as reg32, low: f32 as reg32) -> u16 as reg16 = "cvt.rn.satfinite.e4m3x2.f32 {}, {}, {};";
    bf16x2_fma(a: u32 as reg32, b: u32 as reg32, c: u32 as reg32) -> u32 as reg32 = "fma.rn.bf16x2 {}, {}, {}, {};";
}

/// `%globaltimer`, nanoseconds.
#[inline(always)]
pub fn globaltimer() -> u64 {
    let time: u64;
    // SAFETY: reads a clock; not pure, so that two readings stay two.
    unsafe { asm!("mov.u64 {}, %globaltimer;", out(reg64) time, options(nomem, nostack)) };
    time
}
