//! The instructions of an entry point of the driver's table, by processor. What the table holds lives in `driver`.

/// Body of a naked function: calls the function whose address is at `table + offset` with the caller's registers, then, if
/// `filtered`, returns what `known` makes of its status; otherwise jumps there.
///
/// Arguments on the stack would not be where the function looks for them, so functions that have some must not be filtered.
macro_rules! forward {
    ($table:path, $offset:expr, $filtered:expr, $known:path) => {{
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            ".if {filtered}",
            "sub rsp, 8",
            "call qword ptr [rip + {table} + {offset}]",
            "add rsp, 8",
            "mov edi, eax",
            "jmp {known}",
            ".else",
            "jmp qword ptr [rip + {table} + {offset}]",
            ".endif",
            table = sym $table,
            offset = const $offset,
            filtered = const $filtered as usize,
            known = sym $known,
        );
        // The status is in w0 both where a function leaves it and where `known` looks for it.
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            "adrp x16, {table} + {offset}",
            "add x16, x16, :lo12:{table} + {offset}",
            "ldr x16, [x16]",
            ".if {filtered}",
            "stp x29, x30, [sp, #-16]!",
            "mov x29, sp",
            "blr x16",
            "ldp x29, x30, [sp], #16",
            "b {known}",
            ".else",
            "br x16",
            ".endif",
            table = sym $table,
            offset = const $offset,
            filtered = const $filtered as usize,
            known = sym $known,
        );
    }};
}
pub(super) use forward;
