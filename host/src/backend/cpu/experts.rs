//! The experts of a mixture-of-experts layer: routed ones by the list of those that any row chose, and shared ones.

#![allow(unsafe_code)]

use std::ops::Range;

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;

use super::buffer::Buffer;
use super::linear::kernel::Inputs;
use super::linear::multiply;
use super::linear::pack::{Layout, Packed};
use super::mlp::{Scratch, gate_up, input_layouts};
use super::pool::{Pool, SharedMatrix, Slab};
use super::route::RouteTable;

/// The choices of all rows, sorted by expert and then by row. A choice keeps its place in every buffer of the layer.
struct Choices {
    /// Experts that some row chose, ascending, each with its places.
    active: Vec<(usize, Range<usize>)>,
    /// Row of the choice at each place.
    rows: Vec<u32>,
    /// Place of each choice `[rows, k]`.
    places: Vec<u32>,
}

impl Choices {
    fn new(routes: &RouteTable, experts: usize) -> Choices {
        let mut ends = vec![0; experts];
        for &id in &routes.ids {
            ends[id as usize] += 1;
        }
        let mut active = Vec::new();
        let mut place = 0;
        for (id, end) in ends.iter_mut().enumerate() {
            let start = place;
            place += *end;
            if place > start {
                active.push((id, start..place));
            }
            *end = start;
        }
        let mut next = ends;
        let mut rows = vec![0; routes.ids.len()];
        let mut places = vec![0; routes.ids.len()];
        for (choice, &id) in routes.ids.iter().enumerate() {
            let place = &mut next[id as usize];
            rows[*place] = (choice / routes.k) as u32;
            places[choice] = *place as u32;
            *place += 1;
        }
        Choices { active, rows, places }
    }
}

/// A task of the first half: columns of silu(gate x) * up x of one expert.
struct Columns {
    /// Position in [`Choices::active`]; `None`: the shared experts.
    active: Option<usize>,
    columns: Range<usize>,
}

/// out[r] = sum over the choices c of row r, in order, of weight[r, c] * expert[id[r, c]](x[r]), then + shared(x[r]).
///
/// `x` and `out` `[rows, hidden]`, row major, f32; `routes` as [`route`](super::route::route) leaves them. Each chosen
/// expert's weights are read once for all its rows. A row of `out` depends on that row of `x` and its routes alone, bit for
/// bit, whatever `rows` and the number of threads.
///
/// # Panics
/// If a slice is not as long as its shape says, or a route names an expert that does not exist.
#[expect(clippy::too_many_arguments, reason = "the layer's weights, inputs, choices, memory and outputs")]
pub fn experts(
    pool: &Pool,
    config: &MoeConfig,
    weights: &MoeWeights,
    x: &[f32],
    rows: usize,
    routes: &RouteTable,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let hidden = weights.router.cols;
    assert_eq!(x.len(), rows * hidden, "inputs of the experts beside {}", weights.router.name);
    assert_eq!(out.len(), x.len(), "outputs of the experts beside {}", weights.router.name);
    assert_eq!(routes.ids.len(), rows * routes.k, "choices of {}", weights.router.name);
    let choices = Choices::new(routes, weights.experts.len());

    let used = choices.active.iter().map(|(id, _)| &weights.experts[*id]).chain(&weights.shared);
    scratch.inputs.pack(pool, used.flat_map(input_layouts), x, hidden);
    inner(pool, config.moe_intermediate_size, weights, rows, &choices, scratch);
    outer(pool, weights, routes, &choices, scratch, out);
}

/// f32 of a packed row of `cols` columns, whatever the layout.
fn widest(cols: usize) -> usize {
    Layout::ALL.into_iter().map(|layout| layout.packed_len(cols)).max().unwrap_or(cols)
}

/// Fills `scratch.inner` `[choices, widest(inter)]` and `scratch.shared` `[rows, packed]`.
fn inner(pool: &Pool, inter: usize, weights: &MoeWeights, rows: usize, choices: &Choices, scratch: &mut Scratch) {
    /// Least columns of a task; a layout's block may be larger.
    const COLUMNS: usize = 64;
    let Scratch { inputs, inner, shared } = scratch;
    let mut tasks = Vec::new();
    let mut split = |active: Option<usize>, expert: &SwigluWeights| {
        let layout = Layout::of(&expert.down);
        let width = layout.packed_len(expert.down.cols);
        let step = layout.block().max(COLUMNS);
        tasks.extend((0..width).step_by(step).map(|start| Columns { active, columns: start..width.min(start + step) }));
        width
    };
    for (active, (id, _)) in choices.active.iter().enumerate() {
        split(Some(active), &weights.experts[*id]);
    }
    let shared_width = weights.shared.as_ref().map_or(0, |expert| split(None, expert));

    let width = widest(inter);
    let inner = SharedMatrix::new(inner.reset(choices.rows.len(), width), width);
    let shared = SharedMatrix::new(shared.reset(rows, shared_width), shared_width);
    pool.run(tasks.len(), |i| {
        let Columns { active, columns } = &tasks[i];
        let columns = columns.clone();
        match (active, &weights.shared) {
            (Some(active), _) => {
                let (id, places) = &choices.active[*active];
                // SAFETY: an expert's places are its own, and columns of its tasks are disjoint.
                let mut slab = unsafe { inner.slab(places.clone(), columns) };
                gate_up(pool, &weights.experts[*id], inputs, Some(&choices.rows[places.clone()]), &mut slab);
            }
            (None, Some(expert)) => {
                // SAFETY: columns of the tasks are disjoint.
                let mut slab = unsafe { shared.slab(0..rows, columns) };
                gate_up(pool, expert, inputs, None, &mut slab);
            }
            (None, None) => {}
        }
    });
}

/// `out` `[rows, hidden]` from `scratch.inner` and `scratch.shared`.
fn outer(
    pool: &Pool,
    weights: &MoeWeights,
    routes: &RouteTable,
    choices: &Choices,
    scratch: &Scratch,
    out: &mut [f32],
) {
    /// Columns of a task: several tasks a thread, whole cache lines.
    const STEP: usize = 16;
    const TASKS_PER_THREAD: usize = 4;
    let hidden = weights.router.cols;
    let width = hidden.div_ceil(TASKS_PER_THREAD * pool.threads()).next_multiple_of(STEP);
    let down = |expert: &SwigluWeights, inner: &Packed, first: usize, out: &mut Slab<'_>| {
        let rows = inner.rows(first, Layout::of(&expert.down), expert.down.cols);
        multiply(pool, &expert.down, Inputs { rows, index: None }, out);
    };
    pool.run_on_columns(out, hidden, width, |mut out| {
        let columns = out.columns();
        let width = columns.len();
        let mut outputs = Buffer::default();
        let outputs = outputs.get(choices.rows.len() * width);
        for (id, places) in &choices.active {
            let slab = &mut outputs[places.start * width..places.end * width];
            down(&weights.experts[*id], &scratch.inner, places.start, &mut Slab::dense(slab, columns.clone()));
        }
        match &weights.shared {
            Some(expert) => down(expert, &scratch.shared, 0, &mut out),
            None => (0..out.rows()).for_each(|row| out.row(row).fill(0.0)),
        }
        for row in 0..out.rows() {
            combine(routes, choices, row, outputs, out.row(row));
        }
    });
}

/// out := sum of the choices' outputs `[places, out]` times their weights, in order of choice, then + out.
fn combine(routes: &RouteTable, choices: &Choices, row: usize, outputs: &[f32], out: &mut [f32]) {
    const LANES: usize = 16;
    let width = out.len();
    let chosen = row * routes.k..(row + 1) * routes.k;
    for start in (0..width).step_by(LANES) {
        let columns = start..width.min(start + LANES);
        let mut sum = [0.0; LANES];
        for (&place, &weight) in choices.places[chosen.clone()].iter().zip(&routes.weights[chosen.clone()]) {
            let outputs = &outputs[place as usize * width..][columns.clone()];
            for (sum, y) in sum.iter_mut().zip(outputs) {
                *sum += weight * y;
            }
        }
        for (out, sum) in out[columns].iter_mut().zip(sum) {
            *out += sum;
        }
    }
}

#[cfg(test)]
mod tests;
