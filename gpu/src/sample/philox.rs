//! Philox4x32-10, the counter-based random numbers of the draw; host and device share this code.

/// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
#[inline(always)]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let first = 0xd251_1f53 * u64::from(c0);
        let second = 0xcd9e_8d57 * u64::from(c2);
        (c0, c2) = ((second >> 32) as u32 ^ c1 ^ k0, (first >> 32) as u32 ^ c3 ^ k1);
        (c1, c3) = (second as u32, first as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0, c1, c2, c3]
}

/// The uniform number of an absolute position, times 2^64: of the words w of counter (position, 0, 0, 0), the 53 bits w1 << 21
/// | w0 >> 11, then eleven zeros.
#[inline(always)]
pub fn uniform_bits(seed: [u32; 2], position: u32) -> u64 {
    let [w0, w1, ..] = philox4x32([position, 0, 0, 0], seed);
    u64::from(w1) << 32 | u64::from(w0 & 0xffff_f800)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answers_of_random123_hold() {
        // Random123, tests/kat_vectors, the lines `philox4x32 10`.
        let zeros = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        let pi = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox4x32([0; 4], [0; 2]), zeros);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox4x32(counter, [0xa409_3822, 0x299f_31d0]), pi);
        assert_eq!(uniform_bits([0; 2], 0), 0xe169_c58d_6627_e800);
    }
}
