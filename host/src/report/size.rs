//! Sizes in words.

use std::fmt;

/// A size in the largest unit of 1024 that leaves a number above one.
pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in units {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        if unit == "B" { write!(f, "{value} B") } else { write!(f, "{value:.1} {unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_in_their_largest_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (1 << 50, "1024.0 TiB"),
        ];
        let wrong: Vec<_> =
            cases.iter().map(|(n, want)| (Bytes(*n).to_string(), want)).filter(|(a, b)| a != *b).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
