//! Rounds: what is accepted, what is moved, what ends a sequence; the same behind a queue.

use super::*;
use crate::backend::Budget;
use crate::backend::deferred::Deferred;

/// Greedy text after `root` below a tree where it is hidden: the accepted rows are `rows`, others hold wrong tokens.
fn tree_with_path(rig: &Rig, root: u32, rows: &[u32], nodes: u32) -> Proposal {
    let good = rig.greedy(root, rows.len());
    let (mut tokens, mut parents) = (Vec::new(), Vec::new());
    let mut last = 0;
    let mut found = 0;
    for row in 1..=nodes {
        if rows.get(found) == Some(&row) {
            tokens.push(good[found]);
            parents.push(last);
            (last, found) = (row, found + 1);
        } else {
            // Wrong wherever it hangs, and no two siblings alike.
            let wrong = (0..VOCAB as u32).filter(|token| !good.contains(token) && rig.next(root) != *token);
            tokens.push(wrong.clone().nth(row as usize % wrong.count()).unwrap());
            parents.push(0);
        }
    }
    given(&tokens, &parents)
}

#[test]
fn s12_moving_rows_0_3_7_moves_those_and_nothing_else() {
    for form in FORMS {
        let mut rig = Rig::new(ODD, form);
        let ids = text(3, 40);
        let sequence = rig.sequence(100, request(100, &[]));
        rig.prefill(sequence, &ids, 16);
        let root = rig.next(ids[39]);
        let good = rig.greedy(root, 3);
        let proposal = tree_with_path(&rig, root, &[3, 7], 9);
        let round = rig.round(sequence, proposal);
        assert_eq!(round, Round { tokens: good.clone(), prompt_tokens: 0, nodes: 9, ..Round::default() });
        let accepted = rig.backend.read_rows(rig.accepted).unwrap();
        let expected =
            RowValues { ids: vec![root, good[0], good[1]], positions: vec![40, 41, 42], parents: vec![-1, 0, 1] };
        assert_eq!(accepted, expected);
        // The features, here the queries, moved with them.
        let width = ODD.heads * (ODD.nope + ODD.rope);
        let features = rig.backend.read_tensor(rig.q, 3).unwrap();
        for (row, id) in accepted.ids.iter().enumerate() {
            assert_eq!(features[row * width..][..width], rig.tables[1][*id as usize * width..][..width]);
        }
        let fresh = rig.sequence(100, request(100, &[]));
        rig.prefill(fresh, &[&ids[..], &accepted.ids].concat(), 80);
        assert!(rig.caches(sequence) == rig.caches(fresh), "{form:?}");
    }
}

#[test]
fn s10_the_cache_equals_a_fresh_prefill_whatever_is_accepted_each_round() {
    for form in FORMS {
        // Accepted nodes of each round, of a block of 8.
        for schedule in [vec![0; 6], vec![1; 6], vec![6; 6], vec![7; 6], vec![0, 7, 1, 6, 0, 7]] {
            let mut rig = Rig::new(ODD, form);
            let ids = text(3, 29);
            let sequence = rig.sequence(200, request(200, &[]));
            rig.prefill(sequence, &ids, 16);
            let mut committed = [&ids[..], &[rig.next(ids[28])]].concat();
            for accepted in schedule {
                let root = *committed.last().unwrap();
                let mut tokens = rig.greedy(root, 7);
                if let Some(token) = tokens.get_mut(accepted) {
                    *token = (*token + 1) % VOCAB as u32;
                }
                let round = rig.round(sequence, given(&tokens, &[0, 1, 2, 3, 4, 5, 6]));
                assert_eq!(round.tokens, rig.greedy(root, accepted + 1));
                committed.extend(round.tokens);
            }
            let context = &committed[..committed.len() - 1];
            let fresh = rig.sequence(200, request(200, &[]));
            rig.prefill(fresh, context, 64);
            assert_eq!(rig.caches(sequence)[0].len(), context.len() * rig.caches(fresh)[0].len() / context.len());
            assert!(rig.caches(sequence) == rig.caches(fresh), "{form:?}");
        }
    }
}

#[test]
fn s11_a_request_after_a_longer_one_equals_a_fresh_sequence() {
    for form in FORMS {
        let run = |rig: &mut Rig, sequence| {
            let outputs = rig.prefill(sequence, &text(2, 21), 8);
            let rounds: Vec<Round> = (0..3).map(|_| rig.round(sequence, random_tree(5, 12))).collect();
            (outputs, rounds, rig.caches(sequence))
        };
        let mut rig = Rig::new(ODD, form);
        let fresh = rig.sequence(200, request(50, &[]));
        let fresh = run(&mut rig, fresh);
        let reused = rig.sequence(200, request(50, &[]));
        rig.prefill(reused, &text(7, 150), 64);
        (0..4).for_each(|_| _ = rig.round(reused, random_tree(6, 20)));
        rig.backend.submit(Op::Begin { sequence: reused, request: request(50, &[]) });
        assert!(run(&mut rig, reused) == fresh, "{form:?}");
    }
}

/// Tokens of a whole generation, by plain decode or with the given proposals.
fn generate(rig: &mut Rig, request: RequestSpec, context: usize, propose: impl Fn(&Rig, u32) -> Proposal) -> Vec<u32> {
    let sequence = rig.sequence(context, request);
    let ids = text(3, 20);
    rig.prefill(sequence, &ids, 16);
    let mut tokens = vec![rig.next(ids[19])];
    loop {
        let proposal = propose(rig, *tokens.last().unwrap());
        let round = rig.round(sequence, proposal);
        if round.idle {
            assert_eq!(round, Round { idle: true, ..Round::default() });
            assert_eq!(rig.backend.read_rows(rig.accepted).unwrap(), RowValues::default());
            return tokens;
        }
        tokens.extend(round.tokens);
    }
}

#[test]
fn a_sequence_ends_at_the_same_token_drafted_or_not() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let full = generate(&mut rig, request(30, &[]), 100, |_, _| Proposal::Empty);
    assert_eq!(full.len(), 30);
    let chain = |rig: &Rig, root: u32| given(&rig.greedy(root, 7), &[0, 1, 2, 3, 4, 5, 6]);
    // A stop token within a block, a length within a block, a context within a block; the first token of all.
    let stop = full[4];
    let at = full.iter().position(|token| *token == stop).unwrap();
    let cases = [
        (request(30, &[]), 100, 30),
        (request(30, &[stop]), 100, at + 1),
        (request(30, &[full[0]]), 100, 1),
        (request(13, &[]), 100, 13),
        (request(1, &[]), 100, 1),
        (request(30, &[]), 27, 8),
        (request(30, &[]), 20, 1),
    ];
    for (request, context, length) in cases {
        let what = format!("{request:?} in {context}");
        let plain = generate(&mut rig, request.clone(), context, |_, _| Proposal::Empty);
        assert_eq!(plain, full[..length], "{what}");
        assert_eq!(generate(&mut rig, request.clone(), context, chain), plain, "{what}");
        let ngram = |_: &Rig, _: u32| Proposal::Ngram { budget: Budget::Fixed(9) };
        assert_eq!(generate(&mut rig, request, context, ngram), plain, "{what}");
    }
}

#[test]
fn no_new_tokens_asked_for_gives_none() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let sequence = rig.sequence(50, request(0, &[]));
    rig.prefill(sequence, &[1, 2, 3], 1);
    assert!(rig.round(sequence, Proposal::Empty).idle);
}

#[test]
fn sampled_text_is_the_same_drafted_or_not() {
    let mut rig = Rig::new(ODD, MlaForm::Absorbed);
    for seed in 0..5 {
        let sampling = Sampling { temperature: 0.7, top_k: 5, seed, ..Sampling::GREEDY };
        let request = RequestSpec { sampling, ..request(60, &[]) };
        let plain = generate(&mut rig, request.clone(), 200, |_, _| Proposal::Empty);
        let tree = |_: &Rig, root: u32| random_tree(u64::from(root) + 1, 60);
        assert_eq!(generate(&mut rig, request.clone(), 200, tree), plain);
        let tokens: Vec<u32> = (0..VOCAB as u32).collect();
        let wide = move |_: &Rig, _: u32| given(&tokens, &[0; VOCAB]);
        assert_eq!(generate(&mut rig, request, 200, wide), plain);
    }
}

#[test]
fn draft_logits_become_a_chain_or_the_best_tree() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let sequence = rig.sequence(50, request(50, &[]));
    rig.prefill(sequence, &[1, 2, 3], 3);
    // Rows 0 and 1 of the logits are those of tokens 1 and 2.
    let (logits, rows) = (rig.logits, rig.rows);
    let best = [rig.next(1), rig.next(2)];
    for (proposal, nodes) in [
        (Proposal::Chain { logits, depths: 2, budget: 5 }, 2),
        (Proposal::Chain { logits, depths: 2, budget: 1 }, 1),
        (Proposal::BestFirst { logits, depths: 2, budget: Budget::Fixed(6) }, 6),
        (Proposal::BestFirst { logits, depths: 1, budget: Budget::Fixed(60) }, VOCAB),
        (Proposal::BestFirst { logits, depths: 2, budget: Budget::Fixed(0) }, 0),
        // Nodes that cost nothing are all taken, nodes that cost a round each are not.
        (Proposal::BestFirst { logits, depths: 2, budget: auto([1.0; 10]) }, 9),
        (Proposal::BestFirst { logits, depths: 2, budget: auto([1.0, 2.1, 3.2]) }, 0),
    ] {
        rig.backend.submit(Op::TreeRows { sequence, rows, proposal: proposal.clone() });
        let RowValues { ids, positions, parents } = rig.rows();
        assert_eq!((ids.len(), ids[0]), (nodes + 1, rig.next(3)), "{proposal:?}");
        assert!(nodes == 0 || ids[1] == best[0]);
        assert!(matches!(proposal, Proposal::BestFirst { .. }) || nodes < 2 || ids[2] == best[1]);
        for row in 1..ids.len() {
            assert_eq!(positions[row], positions[parents[row] as usize] + 1, "siblings share a position");
        }
    }
}

fn auto(costs: impl IntoIterator<Item = f32>) -> Budget {
    Budget::Auto { costs: costs.into_iter().collect(), trust: 1.0 }
}

#[test]
fn an_automatic_ngram_budget_follows_what_matches_turn_out_to_be_worth() {
    // A text that goes round: every match is right, so more and more nodes pay although they are dear at first.
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let sequence = rig.sequence(400, request(300, &[]));
    rig.prefill(sequence, &text(3, 40), 16);
    let mut nodes = Vec::new();
    let mut produced = 0;
    while produced < 250 {
        let round = rig.round(sequence, Proposal::Ngram { budget: auto((0..17).map(|n| 1.0 + 0.7 * n as f32)) });
        produced += round.tokens.len();
        nodes.push((round.nodes, round.tokens.len()));
    }
    let (early, late) = (nodes[0].0, nodes[nodes.len() - 1]);
    assert!(early <= 1 && late.0 > 4 && late.1 == late.0 + 1, "{nodes:?}");
}

#[test]
fn a_deferred_backend_gives_the_same_rounds_and_no_value_before_poll() {
    let run = |backend: Box<dyn Backend>, ahead: usize| {
        let mut rig = Rig::on(backend, ODD);
        let sequence = rig.sequence(100, request(25, &[]));
        rig.prefill(sequence, &text(3, 20), 16);
        let (rows, accepted, logits) = (rig.rows, rig.accepted, rig.logits);
        let (mut rounds, mut outstanding) = (Vec::<Round>::new(), 0);
        while rounds.last().is_none_or(|round| !round.idle) {
            while outstanding < ahead {
                rig.backend.submit(Op::TreeRows {
                    sequence,
                    rows,
                    proposal: Proposal::Ngram { budget: Budget::Fixed(6) },
                });
                rig.attend(sequence);
                rig.backend.submit(Op::Walk { sequence, rows, accept: Accept::Path { logits } });
                rig.backend.submit(Op::Commit { sequence, rows, features: None, accepted });
                outstanding += 1;
            }
            let new = rig.backend.poll(sequence).unwrap();
            outstanding -= new.len();
            rounds.extend(new);
        }
        let idle = rounds.iter().position(|round| round.idle).unwrap();
        (rounds[..=idle].to_vec(), rig.caches(sequence))
    };
    let cpu = || Cpu::with_options(CpuOptions { threads: 1, mla_form: Some(MlaForm::Expanded), isa: None });
    let direct = run(Box::new(cpu()), 1);
    assert_eq!(direct.0.iter().map(|round| round.tokens.len()).sum::<usize>(), 24);
    for depth in [1, 2, 3] {
        let deferred = Deferred::new(cpu(), depth);
        assert_eq!(deferred.queue_depth(), depth);
        assert!(run(Box::new(deferred), depth) == direct, "depth {depth}");
    }
}

#[test]
fn a_deferred_backend_runs_one_round_a_poll() {
    let mut backend = Deferred::new(Cpu::new(1), 2);
    let spec = SequenceSpec { context: 9, max_rows: 4, target: vec![], draft: vec![] };
    let sequence = backend.sequence(&spec).unwrap();
    let (rows, accepted) = (backend.rows(4).unwrap(), backend.rows(4).unwrap());
    assert_eq!(backend.poll(sequence).unwrap(), []);
    backend.submit(Op::Begin { sequence, request: request(9, &[]) });
    for ids in [&[1, 2][..], &[3]] {
        backend.submit(Op::PromptRows { sequence, rows, ids: ids.into() });
        backend.submit(Op::Walk { sequence, rows, accept: Accept::Prompt { logits: None } });
        backend.submit(Op::Commit { sequence, rows, features: None, accepted });
    }
    let round = |prompt_tokens| vec![Round { prompt_tokens, ..Round::default() }];
    assert_eq!(backend.poll(sequence).unwrap(), round(2));
    assert_eq!(backend.read_rows(accepted).unwrap().positions, [2]);
    assert_eq!(backend.poll(sequence).unwrap(), round(1));
    assert_eq!(backend.poll(sequence).unwrap(), []);
}
