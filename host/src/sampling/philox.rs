//! Philox4x32-10, a counter-based random number generator. No state: a number depends on seed and position only.

/// Multipliers and key increments of Philox4x32.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): a keyed bijection of the
/// 128-bit counter whose outputs are statistically independent.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let product0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let product1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c2) = ((product1 >> 32) as u32 ^ c1 ^ k0, (product0 >> 32) as u32 ^ c3 ^ k1);
        (c1, c3) = (product1 as u32, product0 as u32);
        k0 = k0.wrapping_add(INCREMENTS[0]);
        k1 = k1.wrapping_add(INCREMENTS[1]);
    }
    [c0, c1, c2, c3]
}

/// The uniform number in [0, 1) of an absolute position: the counter is (position low, position high, 0, 0), the key
/// (seed low, seed high). Of the four words w, u = (w1 << 21 | w0 >> 11) x 2^-53, which is exact in f64.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let [w0, w1, ..] = philox4x32([position as u32, (position >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(w1) << 21 | u64::from(w0 >> 11);
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answers_of_random123_hold() {
        // Random123, tests/kat_vectors, the lines `philox4x32 10`.
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        let failed: Vec<_> = cases.iter().filter(|(counter, key, want)| philox4x32(*counter, *key) != *want).collect();
        assert!(failed.is_empty(), "{failed:x?}");
    }

    #[test]
    fn uniform_takes_the_53_high_bits_of_the_first_two_words() {
        // Seed 0, position 0 is the first known answer: w0 = 6627e8d5, w1 = e169c58d.
        assert_eq!(uniform(0, 0), (0xe169_c58d_6627_e8d5_u64 >> 11) as f64 * 2f64.powi(-53));
    }

    #[test]
    fn both_halves_of_seed_and_position_count() {
        let points = [(0, 0), (1, 0), (1 << 32, 0), (0, 1), (0, 1 << 32), (u64::MAX, u64::MAX)];
        let mut values: Vec<_> = points.iter().map(|&(seed, position)| uniform(seed, position).to_bits()).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), points.len());
    }

    #[test]
    fn uniform_fills_the_unit_interval_evenly() {
        let mut counts = [0u32; 16];
        for position in 0..160_000 {
            counts[(uniform(7, position) * 16.0) as usize] += 1;
        }
        let chi2: f64 = counts.iter().map(|&count| (f64::from(count) - 10_000.0).powi(2) / 10_000.0).sum();
        // p = 0.001 at 15 degrees of freedom.
        assert!(chi2 < 37.70, "chi-square {chi2}, counts {counts:?}");
    }
}
