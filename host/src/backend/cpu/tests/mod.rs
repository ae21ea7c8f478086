//! Tests of the CPU backend through its operations. The rig stands in for a model: keys, queries and logits are rows of
//! tables, looked up by token.

mod device_rules;
mod draft;
mod errors;
mod latent;
mod rounds;
mod rows;

use std::sync::Arc;

use coppice_model::weight::{Slice, Storage, Weight};

use super::{Cpu, CpuOptions, MlaForm};
use crate::backend::{
    Accept, Backend, CacheLayer, Matrix, Mla, MlaSpec, Op, Proposal, RequestSpec, RopeTable, Round, RowValues, Rows,
    Sequence, SequenceSpec, Tensor,
};
use crate::sampling::Sampling;

/// Both forms of latent attention.
const FORMS: [MlaForm; 2] = [MlaForm::Absorbed, MlaForm::Expanded];

/// Tokens of the rig's vocabulary.
const VOCAB: usize = 50;

/// Numbers in -1..1 that look random.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..20).for_each(|_| _ = next());
    (0..count).map(|_| next()).collect()
}

fn weight(rows: usize, cols: usize, values: Vec<f32>) -> Weight {
    assert_eq!(values.len(), rows * cols);
    Weight { name: format!("w{rows}x{cols}"), rows, cols, storage: Storage::F32(Slice::from_vec(values)) }
}

/// Euclidean distance over length.
fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f64| x * x;
    let distance: f64 = found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - b)).sum();
    (distance / expected.iter().map(|x| square(*x)).sum::<f64>().max(1e-300)).sqrt()
}

fn request(max_new_tokens: usize, stop_ids: &[u32]) -> RequestSpec {
    RequestSpec { sampling: Sampling::GREEDY, max_new_tokens, stop_ids: stop_ids.into() }
}

/// Tokens below the vocabulary that look random.
fn text(seed: u64, count: usize) -> Vec<u32> {
    noise(seed, count).iter().map(|x| ((x + 1.0) / 2.0 * VOCAB as f32) as u32 % VOCAB as u32).collect()
}

/// Shape of the rig's attention; widths are odd on purpose.
#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    nope: usize,
    rope: usize,
    v: usize,
    kv_lora: usize,
}

const ODD: Shape = Shape { heads: 3, nope: 5, rope: 6, v: 7, kv_lora: 9 };
const WIDE: Shape = Shape { heads: 2, nope: 16, rope: 8, v: 40, kv_lora: 33 };

/// A target of two layers of latent attention and a bigram table for logits.
struct Rig {
    backend: Box<dyn Backend>,
    shape: Shape,
    mla: [Mla; 2],
    spec: MlaSpec,
    table: RopeTable,
    kv_b: Vec<f32>,
    kv_a_norm: Vec<f32>,
    /// `[vocab, kv_lora + rope]`, `[vocab, heads x (nope + rope)]`, `[vocab, vocab]`.
    tables: [Vec<f32>; 3],
    matrices: [Matrix; 3],
    rows: Rows,
    accepted: Rows,
    kv_a: Tensor,
    q: Tensor,
    out: Tensor,
    logits: Tensor,
}

const MAX_ROWS: usize = 80;

impl Rig {
    fn new(shape: Shape, form: MlaForm) -> Self {
        Self::on(Box::new(Cpu::with_options(CpuOptions { threads: 2, mla_form: Some(form), isa: None })), shape)
    }

    fn on(mut backend: Box<dyn Backend>, shape: Shape) -> Self {
        let Shape { heads, nope, rope, v, kv_lora } = shape;
        let inv_freq = (0..rope / 2).map(|i| 1e3f32.powf(-2.0 * i as f32 / rope as f32)).collect();
        let table = RopeTable { inv_freq, amplitude: 1.1, interleave: true };
        let handle = backend.rope(&table).unwrap();
        let softmax_scale = 1.7 / ((nope + rope) as f32).sqrt();
        let spec = MlaSpec { heads, nope, rope, v, kv_lora, norm_eps: 1e-6, softmax_scale, table: handle };
        let kv_b = noise(1, heads * (nope + v) * kv_lora);
        let kv_a_norm: Vec<f32> = noise(2, kv_lora).iter().map(|x| 1.0 + x / 2.0).collect();
        let stored = weight(heads * (nope + v), kv_lora, kv_b.clone());
        let mla = [(); 2].map(|()| backend.mla(spec, &stored, &kv_a_norm).unwrap());
        let widths = [kv_lora + rope, heads * (nope + rope), VOCAB];
        let tables = [0, 1, 2].map(|i| noise(3 + i as u64, VOCAB * widths[i]));
        let matrices = [0, 1, 2].map(|i| backend.matrix(&weight(VOCAB, widths[i], tables[i].clone())).unwrap());
        Self {
            mla,
            spec,
            table,
            kv_b,
            kv_a_norm,
            tables,
            matrices,
            rows: backend.rows(MAX_ROWS).unwrap(),
            accepted: backend.rows(MAX_ROWS).unwrap(),
            kv_a: backend.tensor(MAX_ROWS, widths[0]).unwrap(),
            q: backend.tensor(MAX_ROWS, widths[1]).unwrap(),
            out: backend.tensor(MAX_ROWS, heads * v).unwrap(),
            logits: backend.tensor(MAX_ROWS, VOCAB).unwrap(),
            backend,
            shape,
        }
    }

    fn sequence(&mut self, context: usize, request: RequestSpec) -> Sequence {
        let spec = SequenceSpec { context, max_rows: MAX_ROWS, target: self.mla.to_vec(), draft: vec![] };
        let sequence = self.backend.sequence(&spec).unwrap();
        self.backend.submit(Op::Begin { sequence, request });
        sequence
    }

    /// Keys and attention of the rows, in both layers; `out` is the second layer's.
    fn attend(&mut self, sequence: Sequence) {
        let Self { rows, kv_a, q, out, logits, matrices, .. } = *self;
        for (table, out) in matrices.into_iter().zip([kv_a, q, logits]) {
            self.backend.submit(Op::Embed { rows, table, out });
        }
        for (layer, mla) in self.mla.into_iter().enumerate() {
            self.backend.submit(Op::MlaAppend { rows, sequence, layer, mla, kv_a });
            self.backend.submit(Op::MlaAttention { rows, sequence, layer, mla, q, out });
        }
    }

    /// Attention output of tokens put after the context as a chain.
    fn chain(&mut self, sequence: Sequence, ids: &[u32]) -> Vec<f32> {
        self.backend.submit(Op::PromptRows { sequence, rows: self.rows, ids: ids.into() });
        self.attend(sequence);
        self.output(ids.len())
    }

    fn output(&mut self, rows: usize) -> Vec<f32> {
        self.backend.read_tensor(self.out, rows).unwrap()
    }

    /// Makes tokens context, `chunk` at a time, and returns their attention outputs; the last chunk chooses the root.
    fn prefill(&mut self, sequence: Sequence, ids: &[u32], chunk: usize) -> Vec<f32> {
        let mut outputs = Vec::new();
        let mut left = ids.len();
        for part in ids.chunks(chunk) {
            left -= part.len();
            outputs.extend(self.chain(sequence, part));
            let last = self.last_logits(part);
            let logits = (left == 0).then_some(last);
            self.finish(sequence, Accept::Prompt { logits });
        }
        outputs
    }

    /// Logits of the last row, as row 0 of a tensor.
    fn last_logits(&mut self, ids: &[u32]) -> Tensor {
        let last = self.backend.tensor(1, VOCAB).unwrap();
        let row = self.backend.rows(1).unwrap();
        let scratch = SequenceSpec { context: 1, max_rows: 1, target: vec![], draft: vec![] };
        let sequence = self.backend.sequence(&scratch).unwrap();
        self.backend.submit(Op::Begin { sequence, request: request(1, &[]) });
        let id = ids.last().copied().unwrap();
        self.backend.submit(Op::PromptRows { sequence, rows: row, ids: [id].into() });
        self.backend.submit(Op::Embed { rows: row, table: self.matrices[2], out: last });
        last
    }

    /// One round over the tree of `proposal`.
    fn round(&mut self, sequence: Sequence, proposal: Proposal) -> Round {
        self.backend.submit(Op::TreeRows { sequence, rows: self.rows, proposal });
        self.attend(sequence);
        self.finish(sequence, Accept::Path { logits: self.logits })
    }

    fn finish(&mut self, sequence: Sequence, accept: Accept) -> Round {
        let Self { rows, accepted, .. } = *self;
        self.backend.submit(Op::Walk { sequence, rows, accept });
        self.backend.submit(Op::Commit { sequence, rows, features: Some(self.q), accepted });
        let rounds = self.backend.poll(sequence).unwrap();
        assert_eq!(rounds.len(), 1);
        rounds.into_iter().next().unwrap()
    }

    fn rows(&mut self) -> RowValues {
        self.backend.read_rows(self.rows).unwrap()
    }

    /// Entries of both layers' caches.
    fn caches(&mut self, sequence: Sequence) -> [Vec<f32>; 2] {
        [0, 1].map(|layer| self.backend.read_cache(sequence, CacheLayer::Target(layer)).unwrap())
    }

    /// The token after `token` in greedy text: the bigram table's best.
    fn next(&self, token: u32) -> u32 {
        let row = &self.tables[2][token as usize * VOCAB..][..VOCAB];
        (0..VOCAB).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as u32
    }

    /// Greedy text after `token`.
    fn greedy(&self, token: u32, count: usize) -> Vec<u32> {
        std::iter::successors(Some(self.next(token)), |token| Some(self.next(*token))).take(count).collect()
    }
}

/// A tree of `nodes` nodes: each hangs below a row drawn at random, deep ones likelier.
fn random_tree(seed: u64, nodes: usize) -> Proposal {
    let draws = noise(seed, nodes);
    let parents: Vec<u32> =
        (0..nodes).map(|i| ((draws[i].abs().sqrt() * (i + 1) as f32) as u32).min(i as u32)).collect();
    // Distinct among siblings, so that the tree is valid.
    let tokens: Vec<u32> = (0..nodes as u32).map(|i| (i * 7 + seed as u32) % VOCAB as u32).collect();
    Proposal::Given { tokens: tokens.into(), parents: parents.into() }
}

/// A tree given by tokens and parent rows.
fn given(tokens: &[u32], parents: &[u32]) -> Proposal {
    Proposal::Given { tokens: Arc::from(tokens), parents: Arc::from(parents) }
}

/// Rows from the root of `row` down to it.
fn path(parents: &[i32], row: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(row), |row| usize::try_from(parents[*row]).ok()).collect();
    path.reverse();
    path
}
