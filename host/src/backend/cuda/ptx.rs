//! The kernels' PTX inside the program: for which architectures, in which version, which one a GPU gets. Loading it into a
//! driver lives in `module`.

use std::fmt;

/// PTX for one architecture.
#[derive(Debug)]
pub struct Ptx {
    /// The architecture it was compiled for: 90 for `sm_90`.
    pub capability: u32,
    /// The code.
    pub text: &'static str,
    /// Hash of the code.
    pub hash: &'static str,
    /// The compiler that made it.
    pub compiler: &'static str,
    /// Whether it was taken from the repository, not built with the program.
    pub committed: bool,
}

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// Compute capability of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// Its generation.
    pub major: u32,
    /// Its variant.
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A version of CUDA, of a driver or of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Before the point.
    pub major: u32,
    /// Behind the point.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// One kernel as the PTX declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Most threads of a block, where bounded.
    pub threads: Option<u32>,
    /// Blocks that must fit on a multiprocessor, where asked for.
    pub blocks_per_sm: Option<u32>,
}

/// Why a GPU gets the PTX it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// It was compiled for this architecture.
    Exact,
    /// It is the newest that is not newer than the GPU; the driver compiles it forward.
    Forward,
}

impl Ptx {
    /// Its architecture as compilers write it.
    pub fn target(&self) -> String {
        format!("sm_{}", self.capability)
    }

    /// The PTX version that it is written in, from its header.
    pub fn version(&self) -> Option<Version> {
        let version = self.text.lines().find_map(|line| line.trim().strip_prefix(".version "))?;
        let (major, minor) = version.trim().split_once('.')?;
        Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// The kernels in it, in the order of their names.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for line in self.text.lines() {
            if let Some((_, name)) = line.split_once(".entry ") {
                let name = name.trim_end_matches(['(', ')', ' ']).to_owned();
                entries.push(Entry { name, threads: None, blocks_per_sm: None });
            }
            let Some(entry) = entries.last_mut() else { continue };
            if let Some(threads) = line.strip_prefix(".maxntid ") {
                entry.threads = threads.split(',').next().and_then(|x| x.trim().parse().ok());
            }
            if let Some(blocks) = line.strip_prefix(".minnctapersm ") {
                entry.blocks_per_sm = blocks.trim().parse().ok();
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }
}

/// The PTX for a GPU of this capability: the newest that is not newer than it. None for a GPU older than all.
pub fn choose(capability: Capability) -> Option<(&'static Ptx, Choice)> {
    let device = capability.major * 10 + capability.minor;
    let best = EMBEDDED.iter().filter(|ptx| ptx.capability <= device).max_by_key(|ptx| ptx.capability)?;
    Some((best, if best.capability == device { Choice::Exact } else { Choice::Forward }))
}

/// The architectures the program has PTX for, in words.
pub fn targets() -> String {
    EMBEDDED.iter().map(Ptx::target).collect::<Vec<_>>().join(", ")
}

/// The first CUDA whose driver compiles this PTX version, where NVIDIA has published it.
pub fn needed_cuda(ptx: Version) -> Option<Version> {
    let pairs = [
        ((8, 0), (12, 0)),
        ((8, 1), (12, 1)),
        ((8, 2), (12, 2)),
        ((8, 3), (12, 3)),
        ((8, 4), (12, 4)),
        ((8, 5), (12, 5)),
        ((8, 6), (12, 7)),
        ((8, 7), (12, 8)),
        ((8, 8), (12, 9)),
        ((9, 0), (13, 0)),
    ];
    let (_, (major, minor)) = pairs.into_iter().find(|(version, _)| *version == (ptx.major, ptx.minor))?;
    Some(Version { major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_the_newest_ptx_that_is_not_newer_than_it() {
        let cases = [
            ((8, 9), None),
            ((9, 0), Some((90, Choice::Exact))),
            ((10, 0), Some((90, Choice::Forward))),
            ((12, 0), Some((120, Choice::Exact))),
            ((12, 1), Some((120, Choice::Forward))),
        ];
        for ((major, minor), expected) in cases {
            let chosen = choose(Capability { major, minor }).map(|(ptx, choice)| (ptx.capability, choice));
            assert_eq!(chosen, expected, "{major}.{minor}");
        }
    }

    #[test]
    fn the_header_says_version_and_architecture() {
        for ptx in EMBEDDED {
            assert!(ptx.text.contains(&format!(".target {}\n", ptx.target())), "{}", ptx.target());
            let version = ptx.version().unwrap();
            assert!(needed_cuda(version) >= Some(Version { major: 12, minor: 8 }), "{version}");
        }
    }

    #[test]
    fn every_kernel_is_found_with_its_bounds() {
        let entries = EMBEDDED.each_ref().map(Ptx::entries);
        assert_eq!(entries[0], entries[1]);
        let norm = entries[0].iter().find(|entry| entry.name == "rms_norm").unwrap();
        assert_eq!((norm.threads, norm.blocks_per_sm), (Some(256), None));
        let attention = entries[0].iter().find(|entry| entry.name == "verify_attention_512_64_rows64").unwrap();
        assert_eq!((attention.threads, attention.blocks_per_sm), (Some(256), Some(1)));
    }
}
