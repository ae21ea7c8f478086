//! The backend under the simulator against the CPU backend, on small published layouts.

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "embedded-model")]
use coppice_model::DraftModel;
use coppice_model::{Source, TargetModel};

use super::{Cuda, refuse_beyond};
use crate::backend::cpu::{Cpu, CpuOptions, MlaForm};
use crate::backend::{Backend, CacheLayer, MemoryUse, Proposal};
use crate::draft::DflashOptions;
use crate::engine::{self, Drafts, Finish, Generation, Request, Session, SessionOptions, Speculation};
use crate::sampling::{self, Sampling};

/// Largest relative error of logits and hidden states: activations and weights are bf16.
const TOLERANCE: f64 = 2e-2;

fn fixture(name: &str) -> TargetModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    TargetModel::load(&Source::Directory(folder.join(name))).unwrap()
}

/// Norm of the difference over the norm.
fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = found.iter().zip(expected).map(|(f, e)| square(f64::from(f - e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}

fn ids(model: &TargetModel, count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 37 % model.config.vocab_size) as u32).collect()
}

fn check_logits(name: &str, tokens: usize, chunk: usize) {
    let model = fixture(name);
    let ids = ids(&model, tokens);
    let layers: Vec<usize> = (0..model.config.num_hidden_layers).collect();
    let on = |backend: &mut dyn Backend| engine::logits(backend, &model, &ids, &layers, chunk).unwrap();
    let (found, expected) = (on(&mut Cuda::simulated(1)), on(&mut Cpu::new(1)));
    for ((layer, found), (_, expected)) in found.hidden.iter().zip(&expected.hidden) {
        let error = relative(found, expected);
        assert!(error < TOLERANCE, "{name}: layer {layer} is {error} off");
    }
    let error = relative(&found.logits, &expected.logits);
    assert!(found.logits.len() == expected.logits.len() && error < TOLERANCE, "{name}: logits are {error} off");
}

#[test]
fn logits_of_bf16_experts_are_the_cpus() {
    check_logits("v3-bf16-no-q-lora", 7, 4);
}

#[test]
fn logits_of_int4_experts_are_the_cpus() {
    check_logits("kimi-k25-int4-g32", 9, 9);
}

#[test]
fn logits_of_fp8_weights_are_the_cpus() {
    check_logits("v3-fp8-block128", 5, 2);
}

#[test]
fn logits_of_f32_weights_and_groups_of_experts_are_the_cpus() {
    check_logits("v3-f32-groups-yarn-sharded", 6, 5);
}

const OPTIONS: SessionOptions =
    SessionOptions { context: 40, prefill_chunk: 4, max_budget: 6, dflash: DflashOptions { yarn_amplitude: None } };

fn session(backend: impl Backend + 'static, model: &TargetModel) -> Session {
    Session::new(Box::new(backend), model, None, OPTIONS, |_, _| {}).unwrap()
}

fn request(model: &TargetModel, new: usize) -> Request {
    Request {
        prompt: ids(model, 6),
        max_new_tokens: new,
        sampling: Sampling::GREEDY,
        speculation: Speculation::None,
        eos_ids: Vec::new(),
    }
}

/// Fails unless the tokens are the CPU's, up to a first difference where the CPU's two best logits nearly tie.
fn check_tokens(model: &TargetModel, request: &Request, found: &Generation, expected: &Generation) {
    let differs = found.tokens.iter().zip(&expected.tokens).position(|(found, expected)| found != expected);
    let Some(at) = differs else {
        assert_eq!(found.tokens.len(), expected.tokens.len());
        return;
    };
    let prefix = [&request.prompt[..], &expected.tokens[..at]].concat();
    let logits = engine::logits(&mut Cpu::new(1), model, &prefix, &[], 8).unwrap().logits;
    let last = &logits[logits.len() - model.config.vocab_size..];
    let spread = last.iter().map(|x| x.abs()).fold(0.0, f32::max);
    let gap = sampling::top2_gap(last);
    assert!(gap < TOLERANCE as f32 * spread, "token {at} differs, the CPU's best logits are {gap} of {spread} apart");
}

#[test]
fn plain_decode_gives_the_cpus_tokens_and_caches() {
    let model = fixture("kimi-k25-int4-g32");
    let request = request(&model, 10);
    let absorbed = CpuOptions { threads: 1, mla_form: Some(MlaForm::Absorbed), isa: None };
    let (mut simulated, mut cpu) = (session(Cuda::simulated(2), &model), session(Cpu::with_options(absorbed), &model));
    let (found, expected) = (simulated.generate(&request, &mut ()).unwrap(), cpu.generate(&request, &mut ()).unwrap());
    check_tokens(&model, &request, &found, &expected);
    assert_eq!((found.finish, found.tokens.len(), found.rounds.len()), (Finish::Length, 10, 9));
    for layer in 0..model.config.num_hidden_layers {
        let [found, expected] =
            [&mut simulated, &mut cpu].map(|session| session.read_cache(CacheLayer::Target(layer)).unwrap());
        assert_eq!(found.len(), expected.len());
        let error = relative(&found, &expected);
        assert!(error < TOLERANCE, "layer {layer}'s cache is {error} off");
    }
}

#[test]
fn requests_follow_each_other_and_stop_tokens_end_them() {
    let model = fixture("v3-bf16-no-q-lora");
    let mut session = session(Cuda::simulated(3), &model);
    let whole = session.generate(&request(&model, 6), &mut ()).unwrap();
    let stop = whole.tokens[3];
    let stopping = Request { eos_ids: vec![stop], ..request(&model, 6) };
    let stopped = session.generate(&stopping, &mut ()).unwrap();
    let first = whole.tokens.iter().position(|token| *token == stop).unwrap();
    assert_eq!((stopped.finish, &stopped.tokens[..]), (Finish::Eos, &whole.tokens[..first]));
    assert_eq!(session.generate(&request(&model, 6), &mut ()).unwrap().tokens, whole.tokens);
}

#[test]
fn verified_trees_give_the_tokens_of_plain_decode() {
    let model = fixture("v3-bf16-no-q-lora");
    let request = request(&model, 12);
    let mut session = session(Cuda::simulated(4), &model);
    let plain = session.generate(&request, &mut ()).unwrap();
    // Row 1 and its child are wrong, row 3 is a wrong sibling, rows 4 to 6 go on rightly as far as they are known.
    let propose = |generated: &[u32]| {
        let next = |i: usize| plain.tokens.get(generated.len() + i).copied().unwrap_or(0);
        let tokens = [next(0) ^ 1, next(1), next(0) ^ 2, next(0), next(1), next(2)];
        Proposal::Given { tokens: Arc::from(tokens), parents: Arc::from([0, 1, 0, 0, 4, 5]) }
    };
    let drafted = session.generate_with_trees(&request, &mut (), propose).unwrap();
    check_tokens(&model, &request, &drafted, &plain);
    assert!(drafted.rounds.len() < plain.rounds.len(), "{} rounds", drafted.rounds.len());
}

#[test]
fn what_the_text_repeats_is_drafted_from_and_changes_nothing() {
    let model = fixture("v3-bf16-no-q-lora");
    let options = SessionOptions { max_budget: 31, ..OPTIONS };
    let mut session = Session::new(Box::new(Cuda::simulated(8)), &model, None, options, |_, _| {}).unwrap();
    let prompt = [5, 9, 17, 5, 9, 17, 5, 9].to_vec();
    let plain = Request { prompt, ..request(&model, 8) };
    let expected = session.generate(&plain, &mut ()).unwrap();
    for speculation in [Speculation::Ngram { budget: 5 }, Speculation::Auto(Drafts::Ngram)] {
        let request = Request { speculation, ..plain.clone() };
        let found = session.generate(&request, &mut ()).unwrap();
        check_tokens(&model, &request, &found, &expected);
        assert!(found.rounds.iter().all(|round| !round.drafted), "{speculation:?}");
        let nodes: usize = found.rounds.iter().map(|round| round.nodes).sum();
        assert!(nodes > 0 || speculation == Speculation::Auto(Drafts::Ngram), "nothing was looked up");
    }
}

#[test]
fn the_tally_counts_what_the_backend_holds() {
    for name in ["kimi-k25-int4-g32", "v3-bf16-no-q-lora", "v3-f32-groups-yarn-sharded", "v3-fp8-block128"] {
        let model = fixture(name);
        let simulated = Cuda::simulated(0);
        assert_eq!(session(simulated.tally().unwrap(), &model).memory(), session(simulated, &model).memory(), "{name}");
    }
}

#[test]
fn c2_a_model_that_does_not_fit_is_refused_with_what_it_needs_and_what_is_free() {
    let needed = MemoryUse { weights: 75 << 30, cache: 3 << 30, buffers: 1 << 29 };
    assert!(refuse_beyond("GPU", 80 << 30, 90 << 30, &needed).is_ok());
    let text = refuse_beyond("GPU", 78 << 30, 90 << 30, &needed).unwrap_err().to_string();
    for part in ["GPU has 78.0 GiB of 90.0 GiB free", "needs 78.8 GiB", "75.0 GiB of weights", "3.0 GiB of KV", "--ctx"]
    {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn drawn_tokens_are_the_cpus() {
    let model = fixture("kimi-k25-int4-g32");
    let sampling = Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.01, seed: 7 };
    let request = Request { sampling, ..request(&model, 6) };
    let [found, expected] = [
        session(Cuda::simulated(5), &model).generate(&request, &mut ()).unwrap(),
        session(Cpu::new(1), &model).generate(&request, &mut ()).unwrap(),
    ];
    // The logits differ by roundings to bf16, so that a draw near an edge may differ; the first tokens' are not near one.
    assert_eq!(found.tokens[..4], expected.tokens[..4], "{found:?} {expected:?}");
}

/// The embedded model and its drafter, drafted in every way, against plain decode on the CPU.
#[cfg(feature = "embedded-model")]
#[test]
fn drafted_rounds_give_the_tokens_of_plain_decode() {
    let model = TargetModel::load(&Source::EmbeddedTarget).unwrap();
    let draft = DraftModel::load(&Source::EmbeddedDraft).unwrap();
    let options = SessionOptions { max_budget: 12, ..OPTIONS };
    let with = |backend: Box<dyn Backend>| Session::new(backend, &model, Some(&draft), options, |_, _| {}).unwrap();
    let prompt = vec![0, 264, 301, 281, 259];
    let request = |speculation| Request { prompt: prompt.clone(), speculation, ..request(&model, 6) };
    let mut cpu = with(Box::new(Cpu::new(2)));
    let plain = cpu.generate(&request(Speculation::None), &mut ()).unwrap();
    let mut simulated = with(Box::new(Cuda::simulated(6)));
    for speculation in [Speculation::Ddtree { budget: 12 }, Speculation::Dflash { budget: 7 }] {
        let request = request(speculation);
        let [found, expected] = [&mut simulated, &mut cpu].map(|session| session.generate(&request, &mut ()).unwrap());
        check_tokens(&model, &request, &found, &plain);
        // Drafts whose logits nearly tie may differ.
        let (rounds, more) = (found.rounds.len(), expected.rounds.len() + 1);
        assert!(
            rounds <= more && rounds < plain.rounds.len(),
            "{speculation:?}: {rounds} rounds, the CPU {more} less 1"
        );
        assert!(found.rounds.iter().all(|round| round.nodes > 0 && round.drafted), "{speculation:?}");
        for layer in [CacheLayer::Draft(0), CacheLayer::Draft(2)] {
            let [found, expected] = [&mut simulated, &mut cpu].map(|session| session.read_cache(layer).unwrap());
            assert_eq!(found.len(), expected.len());
            // The prompt's, and those of the first two tokens, which are the same.
            let len = found.len() / (prompt.len() + 5) * (prompt.len() + 2);
            let error = relative(&found[..len], &expected[..len]);
            assert!(error < TOLERANCE, "{layer:?}: the cache is {error} off");
        }
    }
}
