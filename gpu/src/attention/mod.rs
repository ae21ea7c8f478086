//! Attention of the round's rows over the KV cache. Projections before and after it are linear layers.
mod element;
mod instances;
mod layout;
mod online;
#[cfg(not(target_arch = "nvptx64"))]
mod plan;
mod query;
mod split;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod verify;

pub use element::Kind;
pub use instances::*;
#[cfg(not(target_arch = "nvptx64"))]
pub use plan::*;

/// One row of attention by its formula, in f64: `keys` are the elements of the visible cache rows, `scale` the natural factor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn attention_reference(
    query: &[cuda_std::Bf16],
    keys: impl Iterator<Item = impl AsRef<[f32]>>,
    latent: usize,
    scale: f64,
) -> std::vec::Vec<f32> {
    let (mut max, mut total) = (f64::NEG_INFINITY, 0.0);
    let mut sums = std::vec![0.0; latent];
    for key in keys {
        let key = key.as_ref();
        let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(q.to_f32()) * f64::from(*k)).sum();
        let score = scale * dot;
        if score > max {
            let factor = (max - score).exp();
            total *= factor;
            sums.iter_mut().for_each(|sum| *sum *= factor);
            max = score;
        }
        let weight = (score - max).exp();
        total += weight;
        sums.iter_mut().zip(key).for_each(|(sum, value)| *sum += weight * f64::from(*value));
    }
    sums.iter().map(|sum| (sum / total) as f32).collect()
}
