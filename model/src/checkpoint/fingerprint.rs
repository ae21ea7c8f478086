//! A hash that tells checkpoints apart without reading them whole.

/// Windows of data that a file contributes.
const WINDOWS: usize = 64;
/// Bytes of such a window: a memory page.
const WINDOW_BYTES: usize = 4096;

/// Hash of the files' sizes, headers and sampled data, given as (header, data).
pub(super) fn of_files<'a>(files: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let mut hash = Fnv1a::default();
    for (header, data) in files {
        hash.update(&((header.len() + data.len()) as u64).to_le_bytes());
        hash.update(header);
        let last_start = data.len().saturating_sub(WINDOW_BYTES);
        let step = last_start.div_ceil(WINDOWS - 1);
        for start in (0..WINDOWS).map(|window| last_start.min(window * step)) {
            hash.update(&data[start..data.len().min(start + WINDOW_BYTES)]);
        }
    }
    format!("{:016x}", hash.0)
}

/// 64-bit FNV-1a: stable across builds and releases, which the standard library's hasher is not.
struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of draft-eastlake-fnv.
        for (text, expected) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            let mut hash = Fnv1a::default();
            hash.update(text.as_bytes());
            assert_eq!(hash.0, expected, "{text:?}");
        }
    }

    #[test]
    fn first_and_last_bytes_sizes_and_headers_count() {
        for size in [0usize, 1, 4095, 4096, 4097, 300_000, 1_000_003] {
            let of = |header: &[u8], data: &[u8]| of_files([(header, data)].into_iter());
            let data = vec![5; size];
            let original = of(b"header", &data);
            assert_eq!(of(b"header", &data), original);
            assert_ne!(of(b"Header", &data), original);
            assert_ne!(of(b"header", &[data.as_slice(), &[5]].concat()), original, "{size}");
            for at in [0, size.saturating_sub(1)] {
                let mut changed = data.clone();
                let Some(byte) = changed.get_mut(at) else { continue };
                *byte = 6;
                assert_ne!(of(b"header", &changed), original, "byte {at} of {size}");
            }
        }
    }
}
