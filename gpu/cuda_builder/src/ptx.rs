//! What becomes of the compiler's assembly: launch bounds, and rules that every kernel must keep.
use crate::{Error, NvvmArch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `#[kernel]` leaves in the assembly.
const BOUNDS: &str = "// coppice-launch-bounds ";
/// Functions that the driver resolves.
const DRIVER_FUNCTIONS: [&str; 1] = ["cudaGraphSetConditional"];
/// Instructions that must not be duplicated or dropped: their counts are part of the manifest, for review.
const COLLECTIVES: [&str; 9] = [
    "bar.sync",
    "bar.arrive",
    "bar.warp.sync",
    "shfl.sync",
    "vote.sync",
    "match.",
    "redux.sync",
    "ldmatrix.",
    "mma.sync",
];

/// Finished PTX.
#[derive(Clone, Debug)]
pub struct Ptx {
    /// What the driver loads.
    pub text: String,
    /// Its kernels by name.
    pub kernels: BTreeMap<String, Kernel>,
}

/// What the PTX of one kernel holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Most threads of a block, 0 where not given.
    pub threads: u32,
    /// Blocks that must fit on a multiprocessor, 0 where not given.
    pub blocks_per_sm: u32,
    /// How often each collective instruction occurs.
    pub collectives: BTreeMap<String, usize>,
}

impl Ptx {
    /// Applies launch bounds to the compiler's assembly and checks it.
    ///
    /// # Errors
    /// A kernel without a `#[kernel]` comment or the reverse, an unresolved function, or an array in local memory.
    pub fn finish(assembly: &str, arch: NvvmArch) -> Result<Self, Error> {
        let complain = |kernel: &str, what: String| Error::Ptx { kernel: kernel.into(), arch: arch.target_cpu(), what };
        let mut kernels = BTreeMap::new();
        for line in assembly.lines() {
            if let Some(bounds) = line.trim().strip_prefix(BOUNDS) {
                let (name, kernel) = parse_bounds(bounds)
                    .ok_or_else(|| complain("?", format!("has launch bounds `{bounds}` that are not understood")))?;
                kernels.insert(name, kernel);
            }
        }
        let mut text = String::with_capacity(assembly.len() + 64 * kernels.len());
        let mut current: Option<String> = None;
        let mut seen = Vec::new();
        for line in assembly.lines() {
            let code = line.trim();
            if code.starts_with(BOUNDS)
                || code.starts_with("// begin inline asm")
                || code.starts_with("// end inline asm")
            {
                continue;
            }
            if let Some((_, rest)) = code.split_once(".entry ") {
                let name = rest.trim_end_matches(['(', ')', ' ']).to_string();
                if !kernels.contains_key(&name) {
                    return Err(complain(&name, "has no launch bounds comment: declare it with #[kernel]".into()));
                }
                seen.push(name.clone());
                current = Some(name);
            } else if let Some(rest) = code.strip_prefix(".extern .func ") {
                let known = DRIVER_FUNCTIONS.iter().any(|name| rest.contains(name));
                if !known {
                    let what =
                        format!("calls `{rest}`, which nothing defines: remove the call (a panic or core function)");
                    return Err(complain(current.as_deref().unwrap_or("?"), what));
                }
            } else if code.starts_with(".local ") {
                let what = format!("keeps an array in local memory (`{code}`): index it by constants only");
                return Err(complain(current.as_deref().unwrap_or("?"), what));
            }
            text.push_str(line.trim_end());
            text.push('\n');
            let Some(kernel) = current.as_ref().and_then(|name| kernels.get_mut(name)) else { continue };
            if code == ")" {
                text.push_str(&directives(kernel));
            }
            let instruction =
                code.rsplit_once("@").map_or(code, |(_, rest)| rest.split_once(' ').map_or(rest, |r| r.1));
            for collective in COLLECTIVES.iter().filter(|c| instruction.trim_start().starts_with(**c)) {
                *kernel.collectives.entry(collective.trim_end_matches('.').into()).or_default() += 1;
            }
        }
        if let Some(name) = kernels.keys().find(|name| !seen.contains(name)) {
            return Err(complain(
                name,
                "is declared but has no entry: its module must be reachable from the crate".into(),
            ));
        }
        Ok(Self { text, kernels })
    }
}

/// `name threads=256 blocks_per_sm=1`
fn parse_bounds(text: &str) -> Option<(String, Kernel)> {
    let mut words = text.split_whitespace();
    let name = words.next()?.to_string();
    let threads = words.next()?.strip_prefix("threads=")?.parse().ok()?;
    let blocks_per_sm = words.next()?.strip_prefix("blocks_per_sm=")?.parse().ok()?;
    Some((name, Kernel { threads, blocks_per_sm, ..Kernel::default() }))
}

fn directives(kernel: &Kernel) -> String {
    let mut text = String::new();
    if kernel.threads > 0 {
        text.push_str(&format!(".maxntid {}, 1, 1\n", kernel.threads));
    }
    if kernel.blocks_per_sm > 0 {
        text.push_str(&format!(".minnctapersm {}\n", kernel.blocks_per_sm));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSEMBLY: &str = "\
//
.version 7.8
.target sm_90
\t// begin inline asm
\t// coppice-launch-bounds first threads=256 blocks_per_sm=2
\t// end inline asm
\t// coppice-launch-bounds second threads=0 blocks_per_sm=0
.visible .entry first(
\t.param .u64 first_param_0
)
{
\tshfl.sync.idx.b32 \t%r1, %r2, 0, 31, -1;
\t@%p1 bra \t$L;
\tbar.sync \t0;
\tbar.sync \t0;
\tret;
}
.visible .entry second()
{
\tret;
}
";

    #[test]
    fn launch_bounds_become_directives() {
        let ptx = Ptx::finish(ASSEMBLY, NvvmArch::Compute90).unwrap();
        assert!(ptx.text.contains(")\n.maxntid 256, 1, 1\n.minnctapersm 2\n{"), "{}", ptx.text);
        assert!(!ptx.text.contains("coppice-launch-bounds") && !ptx.text.contains("inline asm"));
        assert_eq!(ptx.text.matches(".maxntid").count(), 1);
    }

    #[test]
    fn collectives_are_counted_by_kernel() {
        let ptx = Ptx::finish(ASSEMBLY, NvvmArch::Compute90).unwrap();
        let first = &ptx.kernels["first"].collectives;
        assert_eq!((first["shfl.sync"], first["bar.sync"]), (1, 2));
        assert!(ptx.kernels["second"].collectives.is_empty());
    }

    #[test]
    fn broken_rules_are_named() {
        let cases = [
            (ASSEMBLY.replace("entry second", "entry third"), "kernel third in the PTX for sm_90 has no launch bounds"),
            (
                ASSEMBLY.replace(".visible .entry second()", ".func second()"),
                "kernel second in the PTX for sm_90 is declared",
            ),
            (ASSEMBLY.replace("threads=256", "threads=x"), "not understood"),
            (
                ASSEMBLY.replace("\tret;\n}\n", "\t.local .align 4 .b8 __local_depot0[16];\n}\n"),
                "array in local memory",
            ),
            (ASSEMBLY.replace(".target sm_90\n", ".target sm_90\n.extern .func memcpy\n"), "calls `memcpy`"),
        ];
        for (assembly, expected) in cases {
            let error = Ptx::finish(&assembly, NvvmArch::Compute90).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} / {expected}");
        }
    }

    #[test]
    fn functions_of_the_driver_may_be_called() {
        let assembly = ASSEMBLY.replace(".target sm_90\n", ".target sm_90\n.extern .func cudaGraphSetConditional\n");
        assert!(Ptx::finish(&assembly, NvvmArch::Compute90).is_ok());
    }
}
