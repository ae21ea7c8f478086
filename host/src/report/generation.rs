//! A generation as `generate --json` prints it, and in words for `--stats`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Bytes, Environment, schema};
use crate::backend::MemoryUse;
use crate::engine::stats::{Acceptance, Timings};
use crate::engine::{Generation, Speculation};

/// One generation.
#[derive(Debug, Clone, Serialize)]
pub struct GenerationReport {
    schema: &'static str,
    /// What was printed; null for a model without a tokenizer.
    pub text: Option<String>,
    /// Tokens generated, the end-of-text token left out, cut to what the text needs where a stop string ended it.
    pub token_ids: Vec<u32>,
    /// The [`digest`] of `token_ids`.
    pub digest: String,
    /// Tokens it was generated from.
    pub prompt_token_ids: Vec<u32>,
    /// `stop`, `eos`, `length` or `interrupted`.
    pub finish_reason: &'static str,
    /// How fast it was.
    pub timings: TimingsReport,
    /// How drafting went.
    pub spec: SpeculationReport,
    /// Bytes held by the device.
    pub memory: MemoryReport,
    /// What it ran on.
    pub env: Environment,
}

/// Times in milliseconds, rates in tokens a second; null where too little happened for a figure.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TimingsReport {
    /// From the start of reading the model to the start of the request.
    pub load_ms: f64,
    /// From the request to the first token.
    pub ttft_ms: Option<f64>,
    /// (End to end - TTFT) / (tokens - 1).
    pub tpot_ms: Option<f64>,
    /// Prompt tokens / TTFT.
    pub prefill_tok_s: Option<f64>,
    /// 1 / TPOT.
    pub decode_tok_s: Option<f64>,
}

/// What was drafted and what of it was accepted.
#[derive(Debug, Clone, Serialize)]
pub struct SpeculationReport {
    /// `none`, `ngram`, `dflash`, `ddtree` or `auto`.
    pub mode: &'static str,
    /// Most nodes a round, besides the root.
    pub budget: usize,
    /// The nodes of a round were decided by what rounds cost and brought.
    pub auto_budget: bool,
    /// Decode rounds.
    pub rounds: usize,
    /// Those whose tree came from the drafter.
    pub drafted_rounds: usize,
    /// Nodes verified in all rounds, roots left out.
    pub nodes: usize,
    /// Tokens committed by each round, the bonus token included.
    pub accept_lengths: Vec<usize>,
    /// Their mean; null without rounds.
    pub tau: Option<f64>,
    /// By depth from 1: share of all rounds that accepted it.
    pub accept_rate_uncond: Vec<f64>,
    /// By depth from 1: share of the rounds that accepted the depth before; null where none did.
    pub accept_rate_cond: Vec<Option<f64>>,
}

/// Bytes held by the device.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryReport {
    /// Weights, in their stored type.
    pub weights_bytes: usize,
    /// Key-value caches.
    pub cache_bytes: usize,
    /// Activations and row sets.
    pub buffers_bytes: usize,
}

impl From<MemoryUse> for MemoryReport {
    fn from(memory: MemoryUse) -> Self {
        Self { weights_bytes: memory.weights, cache_bytes: memory.cache, buffers_bytes: memory.buffers }
    }
}

/// For people.
impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weights, cache, buffers] =
            [self.weights_bytes, self.cache_bytes, self.buffers_bytes].map(|bytes| Bytes(bytes as u64));
        write!(f, "{weights} weights, {cache} cache, {buffers} buffers")
    }
}

impl TimingsReport {
    /// In the units of the report.
    pub fn new(load: Duration, timings: &Timings) -> Self {
        Self {
            load_ms: load.as_secs_f64() * 1e3,
            ttft_ms: timings.ttft.map(|ttft| ttft.as_secs_f64() * 1e3),
            tpot_ms: timings.tpot.map(|tpot| tpot * 1e3),
            prefill_tok_s: timings.prefill_tok_s,
            decode_tok_s: timings.decode_tok_s,
        }
    }
}

impl SpeculationReport {
    /// Of drafting by `speculation`.
    pub fn new(speculation: Speculation, acceptance: Acceptance) -> Self {
        Self {
            mode: speculation.name(),
            budget: speculation.budget(),
            auto_budget: speculation.is_auto(),
            rounds: acceptance.lengths.len(),
            drafted_rounds: acceptance.drafted.len(),
            nodes: acceptance.nodes,
            accept_lengths: acceptance.lengths,
            tau: acceptance.tau,
            accept_rate_uncond: acceptance.uncond,
            accept_rate_cond: acceptance.cond,
        }
    }
}

impl GenerationReport {
    /// Of a finished generation from `prompt`.
    pub fn new(
        prompt: &[u32],
        text: Option<String>,
        generation: &Generation,
        timings: TimingsReport,
        spec: SpeculationReport,
        memory: MemoryUse,
        env: Environment,
    ) -> Self {
        Self {
            schema: schema::GENERATE,
            text,
            token_ids: generation.tokens.clone(),
            digest: digest(&generation.tokens),
            prompt_token_ids: prompt.to_vec(),
            finish_reason: generation.finish.name(),
            timings,
            spec,
            memory: memory.into(),
            env,
        }
    }
}

/// 64-bit FNV-1a of token ids, 4 bytes each, little endian, in hex: equal for runs that generated the same.
pub fn digest(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// For people, a line a topic.
impl fmt::Display for GenerationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timings, spec, memory, env, .. } = self;
        writeln!(f, "model    {}", env.model.path)?;
        let drafter = env.draft.as_ref().map(|draft| format!(" by {}", draft.path)).unwrap_or_default();
        match spec.mode {
            "none" => writeln!(f, "draft    none")?,
            mode => {
                let decided = if spec.auto_budget { ", as many as pay" } else { "" };
                writeln!(f, "draft    {mode}{drafter}, at most {} tokens a round{decided}", spec.budget)?;
            }
        }
        let cpu = &env.cpu;
        writeln!(f, "device   {}: {}, {} threads, {}", env.device, cpu.model, cpu.threads, cpu.simd)?;
        writeln!(f, "memory   {memory}")?;
        writeln!(f, "load     {:.0} ms", timings.load_ms)?;
        write!(f, "prompt   {} tokens", self.prompt_token_ids.len())?;
        if let (Some(ttft), Some(rate)) = (timings.ttft_ms, timings.prefill_tok_s) {
            write!(f, ", first token after {ttft:.1} ms, {rate:.1} tok/s")?;
        }
        write!(f, "\ndecode   {} tokens", self.token_ids.len())?;
        if let (Some(tpot), Some(rate)) = (timings.tpot_ms, timings.decode_tok_s) {
            write!(f, ", {tpot:.2} ms a token, {rate:.1} tok/s")?;
        }
        write!(f, ", ended by {}", self.finish_reason)?;
        if let Some(tau) = spec.tau {
            write!(f, "\nrounds   {}, {tau:.2} tokens a round", spec.rounds)?;
        }
        if !spec.accept_rate_uncond.is_empty() {
            write!(f, "\naccepted of all rounds, by depth:")?;
            spec.accept_rate_uncond.iter().try_for_each(|rate| write!(f, " {rate:.2}"))?;
            write!(f, "\naccepted where the depth before was:")?;
            for rate in &spec.accept_rate_cond {
                match rate {
                    Some(rate) => write!(f, " {rate:.2}")?,
                    None => write!(f, " -")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_the_digest_is_fnv_1a_of_the_ids() {
        // Published values: of nothing, and of the byte `a`, which three zero bytes follow here.
        assert_eq!(digest(&[]), "cbf29ce484222325");
        let a = 0xaf63_dc4c_8601_ec8c_u64;
        let prime = 0x0100_0000_01b3_u64;
        assert_eq!(digest(&[0x61]), format!("{:016x}", (0..3).fold(a, |hash, _| hash.wrapping_mul(prime))));
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
    }
}
