//! Dense MLPs and mixtures of experts: set-up, and their launches.

use coppice_gpu::moe::{active, combine, experts, route, router};
use coppice_gpu::swiglu;
use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use cuda_std::{Bf16, Global, GlobalMut};

use super::super::{Memory, Place, error};
use super::linear::{linear, slices};
use super::scratch::{Needs, Scratch};
use super::weights::{Experts, Matrix, STEP};
use crate::error::Result;

/// A SwiGLU MLP: gate and up as one matrix, and down.
#[derive(Debug)]
pub(super) struct Mlp {
    gate_up: Matrix,
    down: Matrix,
}

impl Mlp {
    pub fn new(place: Place<'static>, weights: &SwigluWeights) -> Result<Self> {
        let (inter, hidden) = (weights.gate.rows, weights.gate.cols);
        check_swiglu(weights, hidden)?;
        check_step(&weights.gate.name, "inputs", hidden)?;
        check_step(&weights.gate.name, "outputs", inter)?;
        Ok(Self {
            gate_up: Matrix::stacked(place, &[&weights.gate, &weights.up])?,
            down: Matrix::new(place, &weights.down)?,
        })
    }

    pub fn needs(&self) -> Needs {
        Needs {
            gate_up: self.gate_up.outputs,
            outputs: self.gate_up.outputs.max(self.down.outputs),
            ..Needs::default()
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.gate_up.packed.bytes() + self.down.packed.bytes()
    }

    pub fn hidden(&self) -> usize {
        self.gate_up.inputs
    }

    /// `out` `[rows, hidden]` from `x` `[rows, hidden]`.
    ///
    /// # Safety
    /// Both hold `rows` rows, `scratch` is for as many.
    pub unsafe fn run(
        &self,
        place: Place<'static>,
        scratch: &Scratch,
        x: Global<Bf16>,
        out: GlobalMut<f32>,
        rows: usize,
    ) -> Result<()> {
        let width = self.down.inputs;
        let (both, activated) = (&scratch.gate_up, &scratch.activated);
        // SAFETY: the caller's contract; the scratch holds gate and up of `rows` rows.
        unsafe {
            linear(place, &self.gate_up, scratch.exchange.ptr_mut(), x, both.ptr_mut(), rows)?;
            let arguments = (both.ptr(), activated.ptr_mut(), width as u32);
            let shape = swiglu::shape(rows as u32, width as u32);
            place.queue(&swiglu::silu_mul::KERNEL, shape, arguments, true)?;
            linear(place, &self.down, scratch.exchange.ptr_mut(), activated.ptr(), out, rows)
        }
    }
}

/// A mixture of experts.
#[derive(Debug)]
pub(super) struct Moe {
    router: Memory<'static, f32>,
    bias: Memory<'static, f32>,
    experts: Experts,
    shared: Option<Mlp>,
    rule: route::Rule,
}

/// Choices of some rows.
#[derive(Debug)]
pub(super) struct Routes {
    pub rows: usize,
    pub ids: Memory<'static, u32>,
    pub weights: Memory<'static, f32>,
}

impl Moe {
    pub fn new(place: Place<'static>, config: &MoeConfig, weights: &MoeWeights) -> Result<Self> {
        let (count, hidden) = (weights.experts.len(), weights.router.cols);
        if [weights.router.rows, weights.bias.len()] != [count; 2] {
            let found = (weights.router.rows, weights.bias.len());
            let name = &weights.router.name;
            return Err(error(format!("moe: {name} and its bias are for {found:?} experts, expected {count}")));
        }
        weights.experts.iter().chain(&weights.shared).try_for_each(|expert| check_swiglu(expert, hidden))?;
        if count > route::MOST_EXPERTS as usize {
            let most = route::MOST_EXPERTS;
            return Err(error(format!("moe: there are {count} experts, the kernels choose among up to {most}")));
        }
        let MoeConfig { num_experts_per_tok: k, n_group, topk_group, .. } = *config;
        if n_group == 0 || !count.is_multiple_of(n_group) || topk_group > n_group || topk_group * count / n_group < k {
            return Err(error(format!(
                "moe: {topk_group} of {n_group} groups of {count} experts stay, expected groups that divide the experts \
                 and hold the {k} that a token goes to"
            )));
        }
        if k > 32 {
            return Err(error(format!("moe: a token goes to {k} experts, the kernels choose up to 32")));
        }
        let inter = weights.experts.first().map_or(STEP, |expert| expert.gate.rows);
        check_step(&weights.router.name, "inputs", hidden)?;
        check_step("an expert's gate", "outputs", inter)?;
        let router = place.input_of(&weights.router.name, count * hidden, || {
            let mut values = vec![0.0; count * hidden];
            values.chunks_mut(hidden).enumerate().for_each(|(row, out)| weights.router.expand_row(row, out));
            values
        })?;
        Ok(Self {
            router,
            bias: place.input("bias of the router", &weights.bias)?,
            experts: Experts::new(place, &weights.experts)?,
            shared: weights.shared.as_ref().map(|shared| Mlp::new(place, shared)).transpose()?,
            rule: route::Rule {
                groups: n_group,
                kept: topk_group,
                k,
                normalise: config.norm_topk_prob,
                scale: config.routed_scaling_factor,
            },
        })
    }

    pub fn needs(&self) -> Needs {
        let Experts { count, hidden, inter, .. } = self.experts;
        let own = Needs {
            chosen: self.rule.k,
            inner: self.rule.k * inter,
            outer: self.rule.k * hidden,
            shared: if self.shared.is_some() { hidden } else { 0 },
            ..Needs::router(hidden, count)
        };
        self.shared.as_ref().map_or(own, |shared| own.max(shared.needs()))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, Mlp::bytes);
        self.router.bytes() + self.bias.bytes() + self.experts.bytes() + shared
    }

    pub fn hidden(&self) -> usize {
        self.experts.hidden
    }

    /// `routes` := the experts of each row of `x`.
    ///
    /// # Safety
    /// `x` and `routes` hold `rows` rows, `scratch` is for as many.
    pub unsafe fn route(
        &self,
        place: Place<'static>,
        scratch: &Scratch,
        x: Global<Bf16>,
        routes: &Routes,
        rows: usize,
    ) -> Result<()> {
        let Self { rule, experts: Experts { count, hidden, .. }, .. } = self;
        let [experts, inputs, k, groups, kept] = [*count, *hidden, rule.k, rule.groups, rule.kept].map(|n| n as u32);
        for (first, rows) in slices(rows) {
            let x = x.add(first * hidden);
            let n = rows as u32;
            let instance = router::INSTANCES.iter().find(|instance| instance.bound >= n);
            let Some(instance) = instance else { return Err(error(format!("no router takes {rows} rows"))) };
            let partial = &scratch.scores;
            let arguments = (x, self.router.ptr(), partial.ptr_mut(), n, inputs, experts);
            // SAFETY: the caller's contract; the scratch holds the parts of that many rows.
            unsafe { place.queue(&instance.kernel, instance.shape(inputs, experts), arguments, true)? };
            let chosen = first * rule.k;
            let arguments = (
                partial.ptr(),
                self.bias.ptr(),
                routes.ids.ptr_mut().add(chosen),
                routes.weights.ptr_mut().add(chosen),
                router::parts(inputs),
                experts,
                groups,
                kept,
                k,
                rule.normalise.into(),
                rule.scale,
            );
            // SAFETY: the caller's contract; groups and k were checked when the layer was made.
            unsafe { place.queue(&route::route::KERNEL, route::shape(n, experts, groups), arguments, true)? };
        }
        Ok(())
    }

    /// `out` `[rows, hidden]` from `x` `[rows, hidden]` and the rows' choices.
    ///
    /// # Safety
    /// The buffers hold `rows` rows, `scratch` is for as many, and `routes` are this layer's for these rows.
    pub unsafe fn run(
        &self,
        place: Place<'static>,
        scratch: &Scratch,
        x: Global<Bf16>,
        routes: &Routes,
        out: GlobalMut<f32>,
        rows: usize,
    ) -> Result<()> {
        let Self { rule, experts, .. } = self;
        let [n, k, count, hidden, inter] =
            [rows, rule.k, experts.count, experts.hidden, experts.inter].map(|n| n as u32);
        let Scratch { active, active_count, choices, inner, outer, shared, .. } = scratch;
        let instance = self.instance(rows);
        let most = count.min(n * k);
        // SAFETY: the caller's contract; the scratch is as large as `needs` says.
        unsafe {
            let arguments =
                (routes.ids.ptr(), active.ptr_mut(), active_count.ptr_mut(), choices.ptr_mut(), n, k, count);
            place.queue(&active::active_experts::KERNEL, active::shape(n, count), arguments, true)?;
            let lists = (active.ptr(), active_count.ptr(), choices.ptr());
            let arguments = (x, experts.gate_up.ptr(), lists.0, lists.1, lists.2, inner.ptr_mut(), hidden, inter, k);
            place.queue(&instance.gate_up, instance.gate_up_shape(inter, most), arguments, true)?;
            let arguments =
                (inner.ptr(), experts.down.ptr(), lists.0, lists.1, lists.2, outer.ptr_mut(), inter, hidden, 1);
            place.queue(&instance.down, instance.down_shape(hidden, most), arguments, true)?;
            if let Some(own) = &self.shared {
                own.run(place, scratch, x, shared.ptr_mut(), rows)?;
            }
            let has_shared = self.shared.is_some().into();
            let weights = routes.weights.ptr();
            let arguments = (outer.ptr(), weights, shared.ptr(), out, hidden, k, has_shared);
            place.queue(&combine::moe_combine::KERNEL, combine::shape(n, hidden), arguments, true)
        }
    }

    /// The kernels that serve most experts of so many rows in one pass.
    fn instance(&self, rows: usize) -> &'static experts::Instance {
        let [few, many] = self.experts.format.instances();
        let mean = rows * self.rule.k / self.experts.count.max(1);
        if rows <= few.tile as usize || mean * 2 <= few.tile as usize { few } else { many }
    }
}

impl Routes {
    pub fn new(place: Place<'static>, rows: usize, k: usize) -> Result<Self> {
        Ok(Self { rows, ids: place.output("experts", rows * k)?, weights: place.output("experts' weights", rows * k)? })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.ids.bytes() + self.weights.bytes()
    }
}

/// Fails unless `size` fills whole steps of a product.
fn check_step(name: &str, what: &str, size: usize) -> Result<()> {
    if size.is_multiple_of(STEP) {
        return Ok(());
    }
    Err(error(format!("{name} has {size} {what}, expected a multiple of {STEP}: this model runs with --device cpu")))
}

/// Checks an MLP over `hidden` inputs and outputs.
fn check_swiglu(weights: &SwigluWeights, hidden: usize) -> Result<()> {
    let inter = weights.gate.rows;
    let shapes = [(&weights.gate, [inter, hidden]), (&weights.up, [inter, hidden]), (&weights.down, [hidden, inter])];
    match shapes.into_iter().find(|(weight, shape)| [weight.rows, weight.cols] != *shape) {
        Some((weight, shape)) => {
            let found = [weight.rows, weight.cols];
            Err(error(format!("mlp: {} has shape {found:?}, expected {shape:?}", weight.name)))
        }
        None => Ok(()),
    }
}
