//! Drafting changes nothing but speed: the same ids, the same caches, whatever is drafted and however it is accepted.

use coppice::backend::{CacheLayer, Proposal};
use coppice::engine::{Drafts, Request, Session, Speculation};
use coppice::sampling::Sampling;
use coppice_model::tokenizer::Tokenizer;
use coppice_model::{DraftModel, Source, TargetModel};
use coppice_tests::model::{BACKENDS, BUDGETS, backend, options, request, tiny, tiny_session};
use coppice_tests::prompts::PROMPTS;

const LAYERS: usize = 6;
const DRAFT_LAYERS: usize = 3;

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap()
}

fn prompt_ids() -> Vec<Vec<u32>> {
    let tokenizer = tokenizer();
    PROMPTS.iter().map(|text| tokenizer.encode_raw(text).unwrap().ids).collect()
}

fn modes() -> Vec<Speculation> {
    let mut modes = [Drafts::Any, Drafts::Ngram, Drafts::Ddtree].map(Speculation::Auto).to_vec();
    for budget in BUDGETS {
        modes.extend([Speculation::Ngram { budget }, Speculation::Dflash { budget }, Speculation::Ddtree { budget }]);
    }
    modes
}

/// Every target and drafter cache, flat.
fn caches(session: &mut Session) -> Vec<Vec<f32>> {
    let layers = (0..LAYERS).map(CacheLayer::Target).chain((0..DRAFT_LAYERS).map(CacheLayer::Draft));
    layers.map(|layer| session.read_cache(layer).unwrap()).collect()
}

fn bits(caches: &[Vec<f32>]) -> Vec<Vec<u32>> {
    caches.iter().map(|cache| cache.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Runs all modes over the first `prompts` prompts, `tokens` tokens each, greedily and at temperature 0.8; differences to
/// plain decode, one line each.
fn differences(backend_name: &str, prompts: usize, tokens: usize) -> Vec<String> {
    let mut session = tiny_session(backend_name, options());
    let mut failures = Vec::new();
    for (index, prompt) in prompt_ids().into_iter().enumerate().take(prompts) {
        let sampled = Sampling { temperature: 0.8, seed: index as u64 + 1, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, sampled] {
            let ask = |speculation| Request { sampling, ..request(&prompt, tokens, speculation) };
            let plain = session.generate(&ask(Speculation::None), &mut ()).unwrap().tokens;
            assert_eq!(plain.len(), tokens);
            for mode in modes() {
                let drafted = session.generate(&ask(mode), &mut ()).unwrap().tokens;
                if drafted != plain {
                    let first = drafted.iter().zip(&plain).position(|(a, b)| a != b);
                    failures.push(format!("{backend_name} prompt {index} {sampling:?} {mode:?}: differs at {first:?}"));
                }
            }
        }
    }
    failures
}

#[test]
fn s6_ids_are_the_same_drafted_or_not() {
    for backend_name in BACKENDS {
        let failures = differences(backend_name, 4, 64);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
#[ignore = "minutes: all 20 prompts, 256 tokens each"]
fn s6_ids_are_the_same_drafted_or_not_at_length_on_the_cpu() {
    let failures = differences("cpu", PROMPTS.len(), 256);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "minutes: all 20 prompts, 256 tokens each"]
fn s6_ids_are_the_same_drafted_or_not_at_length_on_the_deferred_backend() {
    let failures = differences("deferred", PROMPTS.len(), 256);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn s7_the_caches_after_prefill_are_bitwise_the_same_for_every_chunk_size_with_and_without_a_drafter() {
    let prompt: Vec<u32> = prompt_ids().concat().into_iter().cycle().take(150).collect();
    let (target, draft) = tiny();
    let prefilled = |backend_name: &str, prefill_chunk: usize, draft: Option<&DraftModel>| {
        let options = coppice::engine::SessionOptions { prefill_chunk, ..options() };
        let mut session = Session::new(backend(backend_name), &target, draft, options, |_, _| {}).unwrap();
        session.generate(&request(&prompt, 1, Speculation::None), &mut ()).unwrap();
        let layers = (0..LAYERS).map(CacheLayer::Target);
        let drafter = (0..draft.map_or(0, |_| DRAFT_LAYERS)).map(CacheLayer::Draft);
        layers.chain(drafter).map(|layer| session.read_cache(layer).unwrap()).collect::<Vec<_>>()
    };
    let expected = bits(&prefilled("cpu", 1, Some(&draft)));
    for backend_name in BACKENDS {
        for chunk in [1, 2, 7, 8, 16, 64] {
            let drafted = bits(&prefilled(backend_name, chunk, Some(&draft)));
            assert!(drafted == expected, "{backend_name}, chunks of {chunk}");
            let plain = bits(&prefilled(backend_name, chunk, None));
            assert!(plain == expected[..LAYERS], "{backend_name}, chunks of {chunk}, no drafter");
        }
    }
}

#[test]
fn s8_ids_are_the_same_drafted_or_not_at_contexts_around_powers_of_two() {
    let source: Vec<u32> = prompt_ids().concat();
    let mut session =
        tiny_session("cpu", coppice::engine::SessionOptions { context: 2080, prefill_chunk: 128, ..options() });
    let mut failures = Vec::new();
    for context in [1, 383, 384, 385, 1023, 1024, 1025, 2047] {
        let prompt: Vec<u32> = source.iter().copied().cycle().take(context).collect();
        let plain = session.generate(&request(&prompt, 24, Speculation::None), &mut ()).unwrap().tokens;
        for mode in [Speculation::Dflash { budget: 7 }, Speculation::Ddtree { budget: 16 }] {
            if session.generate(&request(&prompt, 24, mode), &mut ()).unwrap().tokens != plain {
                failures.push(format!("context {context}, {mode:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}

/// A tree whose walk accepts just `depth` nodes of the known continuation, among siblings that are wrong.
fn forced(continuation: &[u32], depth: usize, block: usize) -> Proposal {
    let wrong = |right: u32| (right + 1) % 4096;
    let (mut tokens, mut parents, mut parent) = (Vec::new(), Vec::new(), 0);
    for (level, right) in continuation.iter().take(block - 1).enumerate() {
        // A wrong sibling comes first, so that accepted rows are not the first ones.
        tokens.push(wrong(*right));
        parents.push(parent);
        if level >= depth {
            break;
        }
        tokens.push(*right);
        parents.push(parent);
        parent = tokens.len() as u32;
    }
    Proposal::Given { tokens: tokens.into(), parents: parents.into() }
}

#[test]
fn s10_forced_acceptance_leaves_the_caches_of_a_fresh_prefill() {
    const BLOCK: usize = 8;
    const NEW: usize = 60;
    for backend_name in BACKENDS {
        // Trees are made from the tokens polled so far: nothing may be queued ahead of them.
        let mut session = match backend_name {
            "deferred" => {
                let (target, draft) = tiny();
                let device = coppice::backend::deferred::Deferred::new(coppice::backend::cpu::Cpu::new(1), 1);
                Session::new(Box::new(device), &target, Some(&draft), options(), |_, _| {}).unwrap()
            }
            _ => tiny_session(backend_name, options()),
        };
        let prompt = &prompt_ids()[3];
        let plain = session.generate(&request(prompt, NEW + BLOCK, Speculation::None), &mut ()).unwrap().tokens;
        for depth in [0, 1, BLOCK - 2, BLOCK - 1] {
            let generation = session
                .generate_with_trees(&request(prompt, NEW, Speculation::None), &mut (), |generated| {
                    forced(&plain[generated.len()..], depth, BLOCK)
                })
                .unwrap();
            assert_eq!(generation.tokens, plain[..NEW], "{backend_name}, depth {depth}");
            let rounds = &generation.rounds;
            // The last round may have been cut by the length.
            let whole_rounds = &rounds[..rounds.len() - 1];
            assert!(
                whole_rounds.iter().all(|round| round.accepted == depth + 1),
                "{backend_name}, depth {depth}: {rounds:?}"
            );
            let after = bits(&caches(&mut session));

            let committed: usize = rounds.iter().map(|round| round.accepted).sum();
            let whole: Vec<u32> = prompt.iter().chain(&plain[..committed]).copied().collect();
            session.generate(&request(&whole, 1, Speculation::None), &mut ()).unwrap();
            assert!(after == bits(&caches(&mut session)), "{backend_name}, depth {depth}");
        }
    }
}

#[test]
fn s11_nothing_is_kept_from_one_request_to_the_next() {
    let prompts = prompt_ids();
    let long: Vec<u32> = prompts.concat();
    for backend_name in BACKENDS {
        for speculation in [Speculation::None, Speculation::Ngram { budget: 8 }, Speculation::Ddtree { budget: 16 }] {
            let ask = |prompt: &[u32], n| request(prompt, n, speculation);
            let fresh = tiny_session(backend_name, options()).generate(&ask(&prompts[1], 64), &mut ()).unwrap();
            let mut used = tiny_session(backend_name, options());
            used.generate(&ask(&long, 100), &mut ()).unwrap();
            let second = used.generate(&ask(&prompts[1], 64), &mut ()).unwrap();
            let rounds = |g: &coppice::engine::Generation| g.rounds.iter().map(|r| r.accepted).collect::<Vec<_>>();
            assert_eq!(second.tokens, fresh.tokens, "{backend_name} {speculation:?}");
            assert_eq!(rounds(&second), rounds(&fresh), "{backend_name} {speculation:?}");
        }
    }
}

#[test]
fn s12_a_budget_of_zero_is_plain_decode_and_one_above_the_possible_nodes_is_fine() {
    let prompt = &prompt_ids()[0];
    for backend_name in BACKENDS {
        let mut session = tiny_session(backend_name, options());
        let plain = session.generate(&request(prompt, 40, Speculation::None), &mut ()).unwrap();
        for mode in [Speculation::Ddtree { budget: 0 }, Speculation::Dflash { budget: 0 }] {
            let zero = session.generate(&request(prompt, 40, mode), &mut ()).unwrap();
            assert_eq!(zero.tokens, plain.tokens, "{backend_name} {mode:?}");
            assert!(zero.rounds.iter().all(|round| round.nodes == 0 && round.accepted == 1));
        }
        // A chain has 7 possible nodes.
        let chain = session.generate(&request(prompt, 40, Speculation::Dflash { budget: 64 }), &mut ()).unwrap();
        assert_eq!(chain.tokens, plain.tokens);
        assert!(chain.rounds.iter().all(|round| round.nodes == 7));
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let prompt = &prompt_ids()[4];
    let mut session = tiny_session("cpu", options());
    let mut sample = |seed| {
        let sampling = Sampling { temperature: 0.8, seed, ..Sampling::GREEDY };
        let ask = Request { sampling, ..request(prompt, 48, Speculation::Ddtree { budget: 16 }) };
        session.generate(&ask, &mut ()).unwrap().tokens
    };
    let texts: Vec<_> = (0..6).map(&mut sample).collect();
    assert_eq!(sample(3), texts[3]);
    for (i, text) in texts.iter().enumerate() {
        assert!(!texts[..i].contains(text), "seed {i}");
    }
}

#[test]
fn s5_a_drafter_of_another_vocabulary_or_width_is_refused_with_both_sizes() {
    let target = TargetModel::load(&Source::EmbeddedTarget).unwrap();
    let mut draft = DraftModel::load(&Source::EmbeddedDraft).unwrap();
    draft.config.vocab_size = 5000;
    let message = Session::new(backend("cpu"), &target, Some(&draft), options(), |_, _| {}).err().unwrap().to_string();
    assert!(message.contains("5000") && message.contains("4096"), "{message}");
}
