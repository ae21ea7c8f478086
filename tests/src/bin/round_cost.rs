//! What a round of T rows costs beside a round of one, and what that makes of an acceptance that is given, not measured:
//! `cargo run --release -p coppice-tests --bin round-cost -- MODEL [THREADS] [ROUNDS]`.
//!
//! For checkpoints that have no drafter, such as those of `kimi-slice`. The trees are made by hand: the first nodes are a
//! chain of what plain decode generates, so that just they are accepted, the others hang from the root and are wrong.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use coppice::backend::Proposal;
use coppice::backend::cpu::Cpu;
use coppice::draft::DflashOptions;
use coppice::engine::{Generation, Request, Session, SessionOptions, Speculation};
use coppice::sampling::Sampling;
use coppice_model::{Source, TargetModel};

/// Nodes besides the root, and how many of them are right.
const TREES: [(usize, usize); 10] =
    [(0, 0), (1, 0), (3, 0), (7, 0), (15, 0), (31, 0), (7, 2), (7, 3), (15, 3), (31, 4)];

const PROMPT: usize = 16;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder = args.first().ok_or("usage: round-cost MODEL [THREADS, default all] [ROUNDS, default 24]")?;
    let number = |index: usize, default: usize| args.get(index).map_or(Ok(default), |text| text.parse());
    let (threads, rounds) = (number(1, 0)?, number(2, 24)?.max(2));
    let model = TargetModel::load(&Source::Directory(folder.into()))?;
    let vocab = model.config.vocab_size as u32;
    let most = TREES.iter().map(|(_, right)| right + 1).max().unwrap_or(1);
    let tokens = rounds * most + 2;
    let options = SessionOptions {
        context: PROMPT + tokens + 1,
        prefill_chunk: 64,
        max_budget: 31,
        dflash: DflashOptions::default(),
    };
    let mut session = Session::new(Box::new(Cpu::new(threads)), &model, None, options, |_, _| {})?;
    let mut request = Request {
        prompt: (1..=PROMPT as u32).map(|i| i * 7919 % vocab).collect(),
        max_new_tokens: tokens,
        sampling: Sampling::GREEDY,
        speculation: Speculation::None,
        eos_ids: Vec::new(),
    };
    let plain = session.generate(&request, &mut ())?.tokens;

    println!("| rows | accepted | round ms, median (min-max) | x one row | tok/s | x plain | tokens a round for 2x |");
    println!("|---|---|---|---|---|---|---|");
    let mut alone = None;
    for (nodes, right) in TREES {
        request.max_new_tokens = rounds * (right + 1) + 1;
        let answer = session
            .generate_with_trees(&request, &mut (), |generated| tree(&plain[generated.len()..], nodes, right, vocab))?;
        if answer.tokens != plain[..answer.tokens.len()] {
            return Err(format!("{nodes} nodes, {right} of them right, gave other tokens than plain decode").into());
        }
        let times = round_times(&answer);
        let (median, min, max) = (times[times.len() / 2], times[0], times[times.len() - 1]);
        let cost = median / *alone.get_or_insert(median);
        println!(
            "| {} | {} | {median:.1} ({min:.1}-{max:.1}) | {cost:.2} | {:.1} | {:.2} | {:.2} |",
            nodes + 1,
            right + 1,
            (right + 1) as f64 * 1e3 / median,
            (right + 1) as f64 / cost,
            2.0 * cost
        );
    }
    Ok(())
}

/// `right` nodes of `next`, one below the other; the other nodes are wrong and hang from the root.
fn tree(next: &[u32], nodes: usize, right: usize, vocab: u32) -> Proposal {
    let right = right.min(next.len());
    let mut tokens = next[..right].to_vec();
    let mut parents: Vec<u32> = (0..right as u32).collect();
    // Spread over the vocabulary, so that they wake different experts.
    let others = (1..).map(|i: u32| i.wrapping_mul(2_654_435_761) % vocab).filter(|id| next.first() != Some(id));
    for token in others {
        if tokens.len() >= nodes {
            break;
        }
        if !tokens[right..].contains(&token) {
            tokens.push(token);
            parents.push(0);
        }
    }
    Proposal::Given { tokens: Arc::from(tokens), parents: Arc::from(parents) }
}

/// Milliseconds of each round but the first, which may find cold memory; in order of size.
fn round_times(answer: &Generation) -> Vec<f64> {
    let ends = answer.rounds.windows(2);
    let mut times: Vec<f64> = ends.map(|pair| (pair[1].at - pair[0].at).as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times
}
