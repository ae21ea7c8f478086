//! The entry points of the driver's table (`host/src/backend/cuda/stub.rs`) as a program of its own, so that another
//! processor's can be tried by an emulator within seconds. The library's tests try this processor's.
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::atomic::{AtomicPtr, Ordering};

#[path = "../host/src/backend/cuda/stub.rs"]
mod stub;

const UNKNOWN: u32 = 999;

static TABLE: [AtomicPtr<c_void>; 2] = [AtomicPtr::new(six as *mut c_void), AtomicPtr::new(eleven as *mut c_void)];

/// The last argument, if those before it arrived as they were given.
extern "C" fn six(a: u64, b: u64, c: u64, d: u64, e: u64, status: u32) -> u32 {
    // A call of its own, so that the return address is in use.
    if std::hint::black_box([a, b, c, d, e]) == [1, 2, 3, 4, 5] { status } else { 1 }
}

/// As [`six`], with arguments on the stack.
#[allow(clippy::too_many_arguments)]
extern "C" fn eleven(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    i: u64,
    j: u64,
    status: u32,
) -> u32 {
    if std::hint::black_box([a, b, c, d, e, f, g, h, i, j]) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] { status } else { 1 }
}

extern "C" fn known(status: u32) -> u32 {
    if status < 912 { status } else { UNKNOWN }
}

#[unsafe(naked)]
extern "C" fn filtered(a: u64, b: u64, c: u64, d: u64, e: u64, status: u32) -> u32 {
    stub::forward!(TABLE, 0, true, known)
}

#[unsafe(naked)]
#[allow(clippy::too_many_arguments)]
extern "C" fn jump(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64, j: u64, status: u32) -> u32 {
    stub::forward!(TABLE, size_of::<usize>(), false, known)
}

fn main() -> ExitCode {
    let mut good = true;
    for (status, expected) in [(0, 0), (2, 2), (911, 911), (912, UNKNOWN), (u32::MAX, UNKNOWN)] {
        let found = [filtered(1, 2, 3, 4, 5, status), jump(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, status)];
        good &= found == [expected, status];
        println!("status {status}: {} where filtered, {} where not", found[0], found[1]);
    }
    // The table is read at each call.
    TABLE[0].store(other as *mut c_void, Ordering::Release);
    good &= filtered(1, 2, 3, 4, 5, 6) == 7;
    println!("{}: {}", std::env::consts::ARCH, if good { "the entry points are good" } else { "WRONG" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

extern "C" fn other() -> u32 {
    7
}
