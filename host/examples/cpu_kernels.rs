//! Times the CPU backend's kernels at the shapes of the embedded model and of Kimi-K2:
//! `cargo run --release -p coppice --example cpu_kernels [-- FILTER]`. `COPPICE_SIMD` picks the instruction set.
//!
//! A line holds the least of many calls: time, share of arithmetic (a multiply-add is two operations) and the bytes of
//! weights over the time. Ceilings of the machine come first.

use std::hint::black_box;
use std::time::{Duration, Instant};

use coppice::backend::cpu::experts::experts;
use coppice::backend::cpu::linear::linear;
use coppice::backend::cpu::mlp::{Scratch, mlp};
use coppice::backend::cpu::pool::Pool;
use coppice::backend::cpu::route::{RouteTable, route};
use coppice::simd::Isa;
use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::{Slice, Storage, Weight};
use half::bf16;

fn main() -> Result<(), String> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let isa = Isa::from_env()?;
    for threads in [1, 2] {
        let pool = Pool::with_isa(threads, isa);
        println!("{isa}, {} threads", pool.threads());
        if "ceilings".contains(&filter) {
            ceilings(&pool);
        }
        if "linear".contains(&filter) {
            for (kind, outputs, inputs) in LINEAR {
                linear_times(&pool, kind, outputs, inputs);
            }
        }
        if "layers".contains(&filter) {
            layer_times(&pool, &TINY);
            layer_times(&pool, &KIMI);
        }
    }
    Ok(())
}

/// A stored type.
#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    Fp8,
    Int4,
}

/// Type, outputs, inputs.
const LINEAR: [(Kind, usize, usize); 9] = [
    (Kind::Bf16, 192, 256),
    (Kind::Bf16, 576, 256),
    (Kind::Bf16, 4096, 256),
    (Kind::F32, 4096, 256),
    (Kind::Fp8, 4096, 256),
    (Kind::Int4, 4096, 256),
    (Kind::Int4, 16384, 7168),
    (Kind::Fp8, 16384, 7168),
    (Kind::Bf16, 16384, 7168),
];

/// Sizes of a mixture-of-experts model.
struct Model {
    name: &'static str,
    hidden: usize,
    dense: usize,
    inter: usize,
    experts: usize,
    k: usize,
}

const TINY: Model = Model { name: "tiny", hidden: 256, dense: 768, inter: 160, experts: 16, k: 4 };
/// As many of Kimi's experts as leave the caches cold.
const KIMI: Model = Model { name: "kimi", hidden: 7168, dense: 2048, inter: 2048, experts: 16, k: 8 };

/// Reproducible noise in [-1, 1).
fn noise(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

impl Kind {
    fn weight(self, rows: usize, cols: usize) -> Weight {
        let count = rows * cols;
        let storage = match self {
            Kind::F32 => Storage::F32(Slice::from_vec(noise(count))),
            Kind::Bf16 => Storage::Bf16(Slice::from_vec(noise(count).into_iter().map(bf16::from_f32).collect())),
            Kind::Fp8 => Storage::Fp8Block {
                // Normal numbers of both signs: real weights hold one subnormal in ten thousand, and each costs many cycles.
                values: Slice::from_vec((0..count).map(|i| (8 + i * 31 % 119 + i % 2 * 128) as u8).collect()),
                scale_inv: Slice::from_vec(vec![1e-3; rows.div_ceil(128) * cols.div_ceil(128)]),
                block: [128, 128],
            },
            Kind::Int4 => Storage::Int4Group {
                packed: Slice::from_vec((0..count as u32 / 8).map(|i| i.wrapping_mul(2_654_435_761)).collect()),
                scale: Slice::from_vec(vec![bf16::from_f32(0.01); count / 32]),
                group: 32,
            },
        };
        Weight { name: format!("{self:?}"), rows, cols, storage }
    }

    fn swiglu(self, hidden: usize, inter: usize) -> SwigluWeights {
        SwigluWeights {
            gate: self.weight(inter, hidden),
            up: self.weight(inter, hidden),
            down: self.weight(hidden, inter),
        }
    }
}

fn bytes(weight: &Weight) -> usize {
    match &weight.storage {
        Storage::F32(v) => 4 * v.len(),
        Storage::Bf16(v) => 2 * v.len(),
        Storage::F16(v) => 2 * v.len(),
        Storage::Fp8Block { values, scale_inv, .. } => values.len() + 4 * scale_inv.len(),
        Storage::Int4Group { packed, scale, .. } => 4 * packed.len() + 2 * scale.len(),
    }
}

fn mlp_bytes(mlp: &SwigluWeights) -> usize {
    bytes(&mlp.gate) + bytes(&mlp.up) + bytes(&mlp.down)
}

/// The least time of a call, over at least 5 calls and 0.15 s.
fn least(mut call: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut least = Duration::MAX;
    let mut calls = 0;
    while calls < 5 || start.elapsed() < Duration::from_millis(150) {
        let start = Instant::now();
        call();
        least = least.min(start.elapsed());
        calls += 1;
    }
    least
}

fn report(name: &str, rows: usize, time: Duration, macs: usize, bytes: usize) {
    let seconds = time.as_secs_f64();
    println!(
        "{name:<34} {rows:>4} rows {:>11.2} us {:>7.1} GFLOP/s {:>7.1} GB/s",
        seconds * 1e6,
        2.0 * macs as f64 / seconds / 1e9,
        bytes as f64 / seconds / 1e9
    );
}

/// Start and end of an empty region, and reads of f32 from memory and from the last-level cache.
fn ceilings(pool: &Pool) {
    let time = least(|| {
        for _ in 0..1000 {
            pool.run(pool.threads(), |i| {
                black_box(i);
            });
        }
    });
    println!("{:<34} {:>21.2} us", "empty region", time.as_secs_f64() * 1e3);
    for (name, mib) in [("read 8 MiB", 8), ("read 512 MiB", 512)] {
        let values = vec![1u64; mib << 17];
        let tasks = 4 * pool.threads();
        let time = least(|| {
            pool.run(tasks, |i| {
                let part = &values[i * values.len() / tasks..(i + 1) * values.len() / tasks];
                let mut sums = [0u64; 32];
                for block in part.as_chunks::<32>().0 {
                    for (sum, value) in sums.iter_mut().zip(block) {
                        *sum ^= value;
                    }
                }
                black_box(sums);
            });
        });
        println!("{name:<34} {:>51.1} GB/s", (mib << 20) as f64 / time.as_secs_f64() / 1e9);
    }
}

fn linear_times(pool: &Pool, kind: Kind, outputs: usize, inputs: usize) {
    let weight = kind.weight(outputs, inputs);
    let large = outputs * inputs > 1 << 24;
    for rows in [1, 2, 4, 8, 17, 64, 128] {
        if large && rows > 8 {
            break;
        }
        let x = noise(rows * inputs);
        let mut out = vec![0.0; rows * outputs];
        let time = least(|| linear(pool, &weight, black_box(&x), rows, &mut out));
        report(&format!("{kind:?} {outputs} x {inputs}"), rows, time, rows * outputs * inputs, bytes(&weight));
    }
}

fn layer_times(pool: &Pool, model: &Model) {
    let &Model { name, hidden, dense, inter, experts: count, k } = model;
    let dense = Kind::Bf16.swiglu(hidden, dense);
    let config = MoeConfig {
        n_routed_experts: count,
        n_shared_experts: 1,
        moe_intermediate_size: inter,
        num_experts_per_tok: k,
        n_group: 1,
        topk_group: 1,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
    };
    let moe = MoeWeights {
        router: Kind::F32.weight(count, hidden),
        bias: vec![0.0; count],
        experts: (0..count).map(|_| Kind::Int4.swiglu(hidden, inter)).collect(),
        shared: Some(Kind::Bf16.swiglu(hidden, inter)),
    };
    let mut scratch = Scratch::default();
    let mut routes = RouteTable::default();
    for rows in [1, 8, 17, 64, 128] {
        if hidden > 1024 && rows > 8 {
            break;
        }
        let x = noise(rows * hidden);
        let mut out = vec![0.0; rows * hidden];

        let time = least(|| mlp(pool, &dense, black_box(&x), rows, &mut scratch, &mut out));
        let macs = rows * 3 * dense.gate.rows * hidden;
        report(&format!("{name} dense MLP"), rows, time, macs, mlp_bytes(&dense));

        let mut outcome = Ok(());
        let time = least(|| outcome = route(pool, &config, &moe.router, &moe.bias, black_box(&x), rows, &mut routes));
        outcome.unwrap_or_else(|error| println!("{error}"));
        report(&format!("{name} route"), rows, time, rows * count * hidden, bytes(&moe.router));

        let time = least(|| experts(pool, &config, &moe, black_box(&x), rows, &routes, &mut scratch, &mut out));
        let touched = (0..count).filter(|&id| routes.ids.contains(&(id as u32)));
        let bytes =
            touched.map(|id| mlp_bytes(&moe.experts[id])).sum::<usize>() + moe.shared.as_ref().map_or(0, mlp_bytes);
        report(&format!("{name} experts"), rows, time, rows * (k + 1) * 3 * inter * hidden, bytes);
    }
}
