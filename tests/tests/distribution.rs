//! S14: sampled tokens follow the target's distribution exactly, drafted or not, and filters act alike in both.

use coppice::engine::{Request, Session, SessionOptions, Speculation, logits};
use coppice::sampling::Sampling;
use coppice_model::TargetModel;
use coppice_tests::model::{backend, fixture_model, options, request};

const TOKENS: usize = 8;
const SEEDS: u64 = 6_000;
/// Repeats itself, so that n-gram lookup proposes something.
const PROMPT: [u32; 9] = [5, 6, 7, 8, 5, 6, 7, 8, 5];

/// Exact probabilities of the `TOKENS` most probable tokens after `ids`, by the rule of top-k then temperature.
fn exact(model: &TargetModel, ids: &[u32], temperature: f64) -> Vec<(u32, f64)> {
    let output = logits(backend("cpu").as_mut(), model, ids, &[], ids.len()).unwrap().logits;
    let last = &output[output.len() - model.config.vocab_size..];
    let mut tokens: Vec<(u32, f64)> = (0..).zip(last.iter().map(|l| f64::from(*l) / temperature)).collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
    tokens.truncate(TOKENS);
    let sum: f64 = tokens.iter().map(|(_, logit)| logit.exp()).sum();
    tokens.into_iter().map(|(token, logit)| (token, logit.exp() / sum)).collect()
}

/// Chi-square of the counts against the probabilities.
fn chi_square(draws: &[u32], exact: &[(u32, f64)]) -> f64 {
    assert!(draws.iter().all(|draw| exact.iter().any(|(token, _)| token == draw)), "a token outside the top-k");
    let n = draws.len() as f64;
    exact
        .iter()
        .map(|(token, probability)| {
            let (expected, count) = (n * probability, draws.iter().filter(|draw| *draw == token).count() as f64);
            (count - expected).powi(2) / expected
        })
        .sum()
}

/// p = 0.001 at 7 degrees of freedom.
const CRITICAL: f64 = 24.32;

#[test]
fn s14_drafted_and_plain_samples_follow_the_exact_distribution() {
    let model = fixture_model("v3-bf16-no-q-lora");
    let options = SessionOptions { context: 32, ..options() };
    let mut session = Session::new(backend("cpu"), &model, None, options, |_, _| {}).unwrap();
    let mut sample = |speculation, seed| {
        let sampling = Sampling { temperature: 0.7, top_k: TOKENS, seed, ..Sampling::GREEDY };
        session.generate(&Request { sampling, ..request(&PROMPT, 3, speculation) }, &mut ()).unwrap().tokens
    };
    let plain: Vec<_> = (0..SEEDS).map(|seed| sample(Speculation::None, seed)).collect();
    let drafted: Vec<_> = (0..SEEDS).map(|seed| sample(Speculation::Ngram { budget: 8 }, seed)).collect();
    assert!(plain == drafted, "the same seeds give the same texts");

    // The first token comes from prefill, the second from a round.
    let first: Vec<u32> = drafted.iter().map(|tokens| tokens[0]).collect();
    let after_prompt = exact(&model, &PROMPT, 0.7);
    let statistic = chi_square(&first, &after_prompt);
    assert!(statistic < CRITICAL, "first token: chi-square {statistic}");

    let likeliest = after_prompt[0].0;
    let second: Vec<u32> = drafted.iter().filter(|t| t[0] == likeliest).map(|t| t[1]).collect();
    assert!(second.len() > 500);
    let statistic = chi_square(&second, &exact(&model, &[&PROMPT[..], &[likeliest]].concat(), 0.7));
    assert!(statistic < CRITICAL, "second token: chi-square {statistic}");
}
