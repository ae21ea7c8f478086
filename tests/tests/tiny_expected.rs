//! Agreement of the embedded model and drafter with their recorded reference run: greedy ids and accepted lengths.

use coppice::backend::CacheLayer;
use coppice::engine::Speculation;
use coppice_tests::model::{BACKENDS, fixture, options, request, rounds_within, tiny_session};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Expected {
    prompt: String,
    prompt_ids: Vec<u32>,
    greedy: Vec<u32>,
    accept_chain: Vec<usize>,
    accept_tree: BTreeMap<usize, Vec<usize>>,
}

fn expected() -> Vec<Expected> {
    let path = fixture("tiny-expected").join("expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn greedy_ids_and_accepted_lengths_are_the_recorded_ones() {
    let mut failures = Vec::new();
    for backend_name in BACKENDS {
        let mut session = tiny_session(backend_name, options());
        for Expected { prompt, prompt_ids, greedy, accept_chain, accept_tree } in expected() {
            // Some tokens beyond the recorded ones, so that no recorded round is cut short by the length.
            let length = greedy.len() + 8;
            assert_eq!(greedy.len(), 160);
            let chain = (Speculation::Dflash { budget: 7 }, Some(accept_chain));
            let trees = accept_tree.into_iter().map(|(budget, rounds)| (Speculation::Ddtree { budget }, Some(rounds)));
            for (speculation, rounds) in [(Speculation::None, None), chain].into_iter().chain(trees) {
                let generation = session.generate(&request(&prompt_ids, length, speculation), &mut ()).unwrap();
                if generation.tokens[..160] != greedy {
                    let first = generation.tokens.iter().zip(&greedy).position(|(a, b)| a != b);
                    failures.push(format!("{backend_name} {prompt:?} {speculation:?}: ids differ at {first:?}"));
                }
                let accepted = rounds_within(&generation, 160, 8);
                if rounds.as_ref().is_some_and(|rounds| *rounds != accepted) {
                    failures.push(format!(
                        "{backend_name} {prompt:?} {speculation:?}: accepted {accepted:?}, expected {rounds:?}"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The drafter's features are the tapped residual streams, exactly (S3): a wrong tap changes the drafter's context cache
/// and with it the accepted lengths above; here the cache's size shows that only committed tokens are in it.
#[test]
fn the_drafter_context_holds_every_committed_token_but_the_root() {
    for backend_name in BACKENDS {
        let mut session = tiny_session(backend_name, options());
        let prompt = &expected()[0].prompt_ids;
        let generation = session.generate(&request(prompt, 21, Speculation::Dflash { budget: 7 }), &mut ()).unwrap();
        let committed: usize = generation.rounds.iter().map(|round| round.accepted).sum();
        let target = session.read_cache(CacheLayer::Target(0)).unwrap();
        let draft = session.read_cache(CacheLayer::Draft(0)).unwrap();
        let width = target.len() / (prompt.len() + committed);
        assert_eq!(target.len(), width * (prompt.len() + committed));
        assert_eq!(draft.len(), 2 * 2 * 64 * (prompt.len() + committed), "{backend_name}: keys and values");
    }
}
