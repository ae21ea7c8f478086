//! `--verify-parity`: whether drafting changed the tokens, and where.

use coppice_model::TargetModel;

use super::validate::DeviceArgs;
use super::{messages, model};
use crate::engine::{self, Generation, Request};
use crate::error::{Error, Result};
use crate::sampling;

/// Compares a drafted generation with a plain one of the same request and says on standard error that they are identical.
///
/// # Errors
/// [`Error::Request`] names the first position that differs, both tokens, and how close the target's choice was there.
pub fn check(
    device: DeviceArgs,
    target: &TargetModel,
    request: &Request,
    plain: &Generation,
    drafted: &Generation,
) -> Result<()> {
    let mode = request.speculation.name();
    let Some(at) = first_difference(&plain.tokens, &drafted.tokens) else {
        messages::line(&format_args!("parity: identical, {} tokens, --spec {mode} against none", plain.tokens.len()));
        return Ok(());
    };
    let prefix = [&request.prompt[..], &plain.tokens[..at]].concat();
    let mut backend = model::backend(device, |mut tally| {
        engine::logits_memory(tally.as_mut(), target, prefix.len(), &[], model::PREFILL_CHUNK)
    })?;
    let output = engine::logits(backend.as_mut(), target, &prefix, &[], model::PREFILL_CHUNK)?;
    let last = output.logits.len() - target.config.vocab_size;
    let gap = sampling::top2_gap(&output.logits[last..]);
    let token = |tokens: &[u32]| tokens.get(at).map_or("the end".to_owned(), |id| format!("token {id}"));
    Err(Error::Request(format!(
        "parity: --spec {mode} differs at generated token {at}: {}, expected {} (--spec none); the two largest logits there \
         are {gap:.3e} apart",
        token(&drafted.tokens),
        token(&plain.tokens),
    )))
}

/// The first index at which the lists differ, the end of the shorter one included.
fn first_difference(a: &[u32], b: &[u32]) -> Option<usize> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (common < a.len().max(b.len())).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found_wherever_it_is() {
        let cases: [(&[u32], &[u32], Option<usize>); 6] = [
            (&[], &[], None),
            (&[1, 2], &[1, 2], None),
            (&[1, 2], &[1, 3], Some(1)),
            (&[4, 2], &[1, 2], Some(0)),
            (&[1, 2], &[1], Some(1)),
            (&[], &[1], Some(0)),
        ];
        for (a, b, want) in cases {
            assert_eq!(first_difference(a, b), want, "{a:?} {b:?}");
        }
    }
}
