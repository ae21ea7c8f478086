//! Failures: each is named once by the next poll, and nothing runs after it until a sequence is begun.

use super::*;
use crate::backend::{Select, Tap, Vector};

#[test]
fn each_fault_of_an_operation_is_named() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let Rig { rows, accepted, kv_a, q, out, logits, matrices, mla, .. } = rig;
    let narrow = rig.backend.tensor(2, 3).unwrap();
    let small = rig.backend.rows(2).unwrap();
    let vector = rig.backend.vector(&[1.0, 2.0, 3.0]).unwrap();
    let other = rig.sequence(10, request(1, &[]));
    let cases: Vec<(Vec<Op>, &str)> = {
        let sequence = rig.sequence(10, request(5, &[]));
        let prompt = |ids: &[u32]| Op::PromptRows { sequence, rows, ids: ids.into() };
        let tree = |proposal| Op::TreeRows { sequence, rows, proposal };
        let walk = |accept| Op::Walk { sequence, rows, accept };
        let commit = Op::Commit { sequence, rows, features: None, accepted };
        let all = Op::Begin { sequence, request: request(5, &[]) };
        let walked = walk(Accept::Prompt { logits: None });
        [
            (vec![prompt(&[1; 11])], "prompt rows: 11 tokens after 0 do not fit a context of 10"),
            (
                vec![Op::PromptRows { sequence, rows: small, ids: [1; 3].into() }],
                "prompt rows: 3 rows do not fit a row set of 2",
            ),
            (vec![tree(Proposal::Empty)], "tree rows: no token has been chosen after the prompt"),
            (
                vec![Op::BlockRows { sequence, rows, block: 4, mask_token: 1 }],
                "block rows: no token has been chosen after the prompt",
            ),
            (
                vec![Op::BlockRows { sequence, rows, block: 81, mask_token: 1 }],
                "block rows: 81 rows exceed the sequence's 80",
            ),
            (
                vec![prompt(&[1, 50]), Op::Embed { rows, table: matrices[0], out: kv_a }],
                "embed: token 50 of row 1 is not among the 50 of w50x15",
            ),
            (
                vec![prompt(&[1]), Op::Embed { rows, table: matrices[0], out: q }],
                "embed: out has width 33, expected 15",
            ),
            (
                vec![
                    prompt(&[1; 3]),
                    Op::Linear { rows, select: Select::All, x: narrow, weight: matrices[0], out: kv_a },
                ],
                "linear: w50x15: out has width 15, expected 50",
            ),
            (
                vec![
                    prompt(&[1; 3]),
                    Op::Linear { rows, select: Select::All, x: narrow, weight: matrices[0], out: logits },
                ],
                "linear: w50x15: x has width 3, expected 15",
            ),
            (
                vec![
                    prompt(&[1; 3]),
                    Op::AddNorm { rows, x: narrow, delta: None, tap: None, weight: vector, eps: 0.0, out },
                ],
                "norm: out has width 21, expected 3",
            ),
            (
                vec![
                    prompt(&[1; 2]),
                    Op::AddNorm { rows, x: narrow, delta: None, tap: None, weight: vector, eps: 0.0, out: narrow },
                ],
                "norm: x is also the output",
            ),
            (
                vec![
                    prompt(&[1]),
                    Op::AddNorm {
                        rows,
                        x: narrow,
                        delta: None,
                        tap: Some(Tap { out: kv_a, column: 13 }),
                        weight: vector,
                        eps: 0.0,
                        out,
                    },
                ],
                "norm: tap has width 15, expected at least 16 (column + width)",
            ),
            (
                vec![
                    prompt(&[1]),
                    Op::AddNorm { rows, x: narrow, delta: None, tap: None, weight: Vector(9), eps: 0.0, out },
                ],
                "norm: vector 9 is not of this backend, which has 1",
            ),
            (
                vec![prompt(&[1; 3]), Op::MlaAppend { rows, sequence, layer: 0, mla: mla[0], kv_a: narrow }],
                "mla append, layer 0: kv_a has width 3, expected 15",
            ),
            (
                vec![prompt(&[1]), Op::MlaAppend { rows, sequence, layer: 0, mla: mla[1], kv_a }],
                "mla append, layer 0: the sequence was made for another attention here",
            ),
            (
                vec![prompt(&[1]), Op::MlaAppend { rows, sequence, layer: 2, mla: mla[1], kv_a }],
                "mla append, layer 2: the sequence has 2 target layers",
            ),
            (
                vec![
                    prompt(&[1]),
                    walked.clone(),
                    commit.clone(),
                    Op::MlaAppend { rows, sequence, layer: 0, mla: mla[0], kv_a },
                ],
                "mla append, layer 0: rows start at position 0, expected 1 (the context's end)",
            ),
            (
                vec![prompt(&[1; 3]), Op::MlaAttention { rows, sequence, layer: 1, mla: mla[1], q, out: narrow }],
                "mla attention, layer 1: out has width 3, expected 21",
            ),
            (vec![prompt(&[1]), commit.clone()], "commit: 1 rows were not walked"),
            (
                vec![prompt(&[1; 3]), walked.clone(), prompt(&[1]), commit.clone()],
                "commit: the walk was over other rows than these 1",
            ),
            (
                vec![prompt(&[1; 3]), walked, Op::Commit { sequence, rows, features: Some(narrow), accepted }],
                "commit: row 2 is beyond a tensor of 2 rows",
            ),
            (
                vec![
                    prompt(&[1]),
                    Op::Embed { rows, table: matrices[2], out: logits },
                    walk(Accept::Prompt { logits: Some(logits) }),
                    commit.clone(),
                    tree(given(&[1, 2], &[0, 2])),
                ],
                "tree rows: tree row 2 has parent 2, expected a row from 0 to 1",
            ),
        ]
        .into_iter()
        .map(|(ops, message)| (std::iter::once(all.clone()).chain(ops).collect(), message))
        .collect()
    };
    let mut failed = Vec::new();
    for (ops, message) in cases {
        ops.into_iter().for_each(|op| rig.backend.submit(op));
        let found = rig.backend.poll(other).map_or_else(|error| error.to_string(), |_| "nothing".into());
        if found != format!("cpu backend: {message}") {
            failed.push((found, message));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn nothing_runs_between_a_failure_and_the_next_begin() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let sequence = rig.sequence(10, request(5, &[]));
    let rows = rig.rows;
    let prompt = |ids: &[u32]| Op::PromptRows { sequence, rows, ids: ids.into() };
    rig.backend.submit(prompt(&[1, 2]));
    rig.backend.submit(prompt(&[0; 90]));
    rig.backend.submit(prompt(&[0; 91]));
    rig.backend.submit(prompt(&[3]));
    assert_eq!(rig.rows().ids, [1, 2]);
    let error = rig.backend.poll(sequence).unwrap_err().to_string();
    assert_eq!(error, "cpu backend: prompt rows: 90 tokens after 0 do not fit a context of 10");
    rig.backend.submit(prompt(&[3]));
    assert_eq!(rig.backend.poll(sequence).unwrap(), []);
    assert_eq!(rig.rows().ids, [1, 2]);
    rig.backend.submit(Op::Begin { sequence, request: request(5, &[]) });
    rig.backend.submit(prompt(&[3]));
    assert_eq!(rig.rows().ids, [3]);
}

#[test]
fn nan_logits_are_an_error_that_names_the_row() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let sequence = rig.sequence(10, request(5, &[]));
    rig.prefill(sequence, &[1, 2], 2);
    let table = rig.backend.matrix(&weight(VOCAB, VOCAB, vec![f32::NAN; VOCAB * VOCAB])).unwrap();
    let (rows, logits) = (rig.rows, rig.logits);
    rig.backend.submit(Op::TreeRows { sequence, rows, proposal: given(&[3], &[0]) });
    rig.backend.submit(Op::Embed { rows, table, out: logits });
    rig.backend.submit(Op::Walk { sequence, rows, accept: Accept::Path { logits } });
    let error = rig.backend.poll(sequence).unwrap_err().to_string();
    assert!(
        error.starts_with("cpu backend: walk: logits of row 0 (position 2) hold NaN, expected numbers; the weights"),
        "{error}"
    );
}

#[test]
fn nan_in_a_query_reaches_the_output_of_its_row_only() {
    for form in FORMS {
        let mut rig = Rig::new(ODD, form);
        let width = ODD.heads * (ODD.nope + ODD.rope);
        let mut table = rig.tables[1].clone();
        table[7 * width..][..width].fill(f32::NAN);
        rig.matrices[1] = rig.backend.matrix(&weight(VOCAB, width, table)).unwrap();
        let sequence = rig.sequence(100, request(5, &[]));
        rig.prefill(sequence, &text(1, 40), 40);
        let output = rig.chain(sequence, &[1, 7, 2]);
        let is_nan: Vec<bool> = output.chunks(ODD.heads * ODD.v).map(|row| row.iter().all(|x| x.is_nan())).collect();
        assert_eq!(is_nan, [false, true, false], "{form:?}");
        assert!(output[..ODD.heads * ODD.v].iter().all(|x| x.is_finite()));
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_at_set_up() {
    let mut rig = Rig::new(ODD, MlaForm::Expanded);
    let spec = rig.spec;
    let norm = vec![1.0; ODD.kv_lora];
    let errors = [
        rig.backend.mla(spec, &weight(35, 9, noise(1, 315)), &norm).unwrap_err(),
        rig.backend.mla(spec, &weight(36, 9, noise(1, 324)), &norm[1..]).unwrap_err(),
        rig.backend.mla(MlaSpec { rope: 8, ..spec }, &weight(36, 9, noise(1, 324)), &norm).unwrap_err(),
        rig.backend.mla(MlaSpec { heads: 0, ..spec }, &weight(36, 9, noise(1, 324)), &norm).unwrap_err(),
    ];
    let expected = [
        "mla: w35x9 has shape [35, 9], expected [36, 9] (heads x (nope + v), kv_lora)",
        "mla: kv_a_norm and rotation have widths (8, 6), expected (9, 6) (kv_lora, rope)",
        "mla: kv_a_norm and rotation have widths (9, 6), expected (9, 8) (kv_lora, rope)",
        "is 0",
    ];
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.to_string().contains(expected), "{error}");
    }
}
