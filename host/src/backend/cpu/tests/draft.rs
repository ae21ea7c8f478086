//! Drafter attention against a naive reference.

use super::*;
use crate::backend::{DraftAttentionSpec, Rope};

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 10;
const KV: usize = KV_HEADS * HEAD_DIM;
const EPS: f32 = 1e-5;
const MASK: u32 = 2;

struct Drafter {
    cpu: Cpu,
    sequence: Sequence,
    attention: crate::backend::DraftAttention,
    rows: Rows,
    accepted: Rows,
    /// q, k and v by token.
    tables: [Vec<f32>; 3],
    matrices: [Matrix; 3],
    tensors: [Tensor; 4],
    norms: [Vec<f32>; 2],
    inv_freq: Vec<f32>,
}

impl Drafter {
    fn new(window: Option<usize>, context: usize) -> Self {
        let mut cpu = Cpu::new(2);
        let inv_freq: Vec<f32> = (0..HEAD_DIM / 2).map(|i| 100f32.powf(-2.0 * i as f32 / HEAD_DIM as f32)).collect();
        let table = RopeTable { inv_freq: inv_freq.clone(), amplitude: 1.0, interleave: false };
        let table: Rope = cpu.rope(&table).unwrap();
        let spec =
            DraftAttentionSpec { heads: HEADS, kv_heads: KV_HEADS, head_dim: HEAD_DIM, norm_eps: EPS, window, table };
        let norms = [1, 2].map(|seed| noise(seed, HEAD_DIM).iter().map(|x| 1.0 + x / 2.0).collect::<Vec<f32>>());
        let attention = cpu.draft_attention(spec, &norms[0], &norms[1]).unwrap();
        let spec = SequenceSpec { context, max_rows: 200, target: vec![], draft: vec![attention] };
        let sequence = cpu.sequence(&spec).unwrap();
        let widths = [HEADS * HEAD_DIM, KV, KV];
        let tables = [0, 1, 2].map(|i| noise(10 + i as u64, VOCAB * widths[i]));
        let matrices = [0, 1, 2].map(|i| cpu.matrix(&weight(VOCAB, widths[i], tables[i].clone())).unwrap());
        let tensors = [0, 1, 2, 0].map(|i| cpu.tensor(200, widths[i]).unwrap());
        let (rows, accepted) = (cpu.rows(200).unwrap(), cpu.rows(200).unwrap());
        cpu.submit(Op::Begin { sequence, request: request(50, &[]) });
        Self { cpu, sequence, attention, rows, accepted, tables, matrices, tensors, norms, inv_freq }
    }

    /// Makes tokens context of the target and the drafter, `chunk` at a time; the root is token 5.
    fn extend(&mut self, ids: &[u32], chunk: usize) {
        let Self { sequence, attention, rows, accepted, matrices, tensors: [_, k, v, _], .. } = *self;
        let mut next = vec![0.0; VOCAB * VOCAB];
        next.iter_mut().skip(5).step_by(VOCAB).for_each(|logit| *logit = 1.0);
        let table = self.cpu.matrix(&weight(VOCAB, VOCAB, next)).unwrap();
        let logits = self.cpu.tensor(200, VOCAB).unwrap();
        for part in ids.chunks(chunk) {
            self.cpu.submit(Op::PromptRows { sequence, rows, ids: part.into() });
            self.cpu.submit(Op::Embed { rows, table, out: logits });
            self.cpu.submit(Op::Walk { sequence, rows, accept: Accept::Prompt { logits: Some(logits) } });
            self.cpu.submit(Op::Commit { sequence, rows, features: None, accepted });
            self.cpu.submit(Op::Embed { rows: accepted, table: matrices[1], out: k });
            self.cpu.submit(Op::Embed { rows: accepted, table: matrices[2], out: v });
            self.cpu.submit(Op::DraftAppend { rows: accepted, sequence, layer: 0, attention, k, v });
        }
    }

    fn block(&mut self, block: usize) -> Vec<f32> {
        let Self { sequence, attention, rows, matrices, tensors: [q, k, v, out], .. } = *self;
        self.cpu.submit(Op::BlockRows { sequence, rows, block, mask_token: MASK });
        for (table, out) in matrices.into_iter().zip([q, k, v]) {
            self.cpu.submit(Op::Embed { rows, table, out });
        }
        self.cpu.submit(Op::DraftAttention { rows, sequence, layer: 0, attention, q, k, v, out });
        self.cpu.poll(sequence).unwrap();
        self.cpu.read_tensor(out, block).unwrap()
    }

    /// One head of a token's q, k or v, normed and turned where it is to be.
    fn head(&self, table: usize, head: usize, token: u32, position: usize) -> Vec<f64> {
        let width = [HEADS, KV_HEADS, KV_HEADS][table] * HEAD_DIM;
        let start = token as usize * width + head * HEAD_DIM;
        let x: Vec<f64> = self.tables[table][start..][..HEAD_DIM].iter().map(|x| f64::from(*x)).collect();
        let Some(norm) = self.norms.get(table) else { return x };
        let rms = (x.iter().map(|x| x * x).sum::<f64>() / HEAD_DIM as f64 + f64::from(EPS)).sqrt();
        let x: Vec<f64> = x.iter().zip(norm).map(|(x, norm)| x / rms * f64::from(*norm)).collect();
        let mut turned = x.clone();
        for (i, frequency) in self.inv_freq.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let j = i + HEAD_DIM / 2;
            (turned[i], turned[j]) = (x[i] * cos - x[j] * sin, x[j] * cos + x[i] * sin);
        }
        turned
    }

    fn reference(&self, context: &[u32], block: usize, window: Option<usize>) -> Vec<f64> {
        let tokens: Vec<u32> = context.iter().copied().chain([5]).chain(std::iter::repeat_n(MASK, block - 1)).collect();
        let mut out = Vec::new();
        for row in 0..block {
            let position = context.len() + row;
            let seen: Vec<usize> = (0..tokens.len())
                .filter(|key| *key >= context.len() || window.is_none_or(|window| key + window > position))
                .collect();
            for head in 0..HEADS {
                let (q, kv_head) = (self.head(0, head, tokens[position], position), head / (HEADS / KV_HEADS));
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|key| {
                        let k = self.head(1, kv_head, tokens[*key], *key);
                        (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (HEAD_DIM as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                let mut sum = vec![0.0; HEAD_DIM];
                for (key, weight) in seen.iter().zip(&weights) {
                    let v = self.head(2, kv_head, tokens[*key], *key);
                    sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight / total * v);
                }
                out.extend(sum);
            }
        }
        out
    }
}

#[test]
fn a_block_sees_its_context_within_the_window_and_all_of_itself() {
    let mut failed = Vec::new();
    for context in [1, 31, 32, 33, 100] {
        for block in [1, 2, 8] {
            for window in [None, Some(1), Some(4), Some(33), Some(64), Some(1000)] {
                let ids = text(context as u64, context);
                let mut drafter = Drafter::new(window, 120);
                drafter.extend(&ids, 50);
                let found = drafter.block(block);
                let error = relative_error(&found, &drafter.reference(&ids, block, window));
                if error > 2e-6 || error.is_nan() {
                    failed.push((context, block, window, error));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_block_leaves_no_trace_in_the_context() {
    let ids = text(4, 70);
    let mut plain = Drafter::new(Some(40), 120);
    plain.extend(&ids, 70);
    let mut drafted = Drafter::new(Some(40), 120);
    for part in ids.chunks(9) {
        drafted.extend(part, 9);
        drafted.block(8);
    }
    let caches = [&mut plain, &mut drafted].map(|d| d.cpu.read_cache(d.sequence, CacheLayer::Draft(0)).unwrap());
    assert_eq!(caches[0].len(), 70 * 2 * KV);
    assert!(caches[0] == caches[1]);
    assert!(plain.block(8) == drafted.block(8));
}
