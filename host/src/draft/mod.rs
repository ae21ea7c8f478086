//! Drafters: what proposes the tokens of a round. No verification, no device code.

pub mod ngram;
