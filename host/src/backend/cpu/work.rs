//! What operations read: for the meter. Nothing is computed here.

use coppice_model::weight::Weight;

use super::{Cpu, MlaForm, swiglu_bytes};
use crate::backend::{MlaSpec, Op, Reads};

impl Cpu {
    /// What `op` is about to read; nothing where its handles are unknown or it has no rows.
    pub(super) fn reads(&self, op: &Op) -> Reads {
        let bytes = |bytes: usize| Reads { bytes: bytes as u64, experts: None };
        let found = match *op {
            Op::Embed { rows, table, .. } => self.rows.get(rows.0).and_then(|rows| {
                let table = self.matrices.get(table.0)?;
                Ok(bytes(rows.len() * row_bytes(table)))
            }),
            Op::Linear { weight, .. } => self.matrices.get(weight.0).map(|weight| bytes(weight.bytes())),
            Op::Mlp { mlp, .. } => self.mlps.get(mlp.0).map(|mlp| bytes(swiglu_bytes(mlp))),
            Op::Route { moe, .. } => self.moes.get(moe.0).map(|(_, weights)| bytes(weights.router.bytes())),
            Op::Experts { moe, routes, .. } => self.moes.get(moe.0).and_then(|(_, weights)| {
                let (_, routes) = self.routes.get(routes.0)?;
                let mut chosen = vec![false; weights.experts.len()];
                for id in &routes.ids {
                    if let Some(chosen) = chosen.get_mut(*id as usize) {
                        *chosen = true;
                    }
                }
                let woken = weights.experts.iter().zip(&chosen).filter(|(_, chosen)| **chosen);
                let read: usize = woken.map(|(expert, _)| expert).chain(&weights.shared).map(swiglu_bytes).sum();
                let experts = Some((moe.0, chosen.iter().filter(|chosen| **chosen).count()));
                Ok(Reads { experts, ..bytes(read) })
            }),
            // Both forms read the matrix once a round: expanded when entries are made, absorbed when they are attended to.
            Op::MlaAppend { mla, .. } => self.mlas.get(mla.0).map(|layer| bytes(layer.kv_b.bytes())),
            Op::MlaAttention { rows, sequence, mla, .. } => self.mlas.get(mla.0).and_then(|layer| {
                let slots = self.sequences.get(sequence.0)?.len() + self.rows.get(rows.0)?.len();
                let MlaSpec { heads, nope, rope, v, kv_lora, .. } = layer.spec;
                let width = match layer.form {
                    MlaForm::Absorbed => kv_lora + rope,
                    MlaForm::Expanded => heads * (nope + v) + rope,
                };
                Ok(bytes(slots * width * size_of::<f32>()))
            }),
            Op::DraftAttention { sequence, attention, .. } => {
                self.draft_attentions.get(attention.0).and_then(|layer| {
                    let entry = 2 * layer.spec.kv_heads * layer.spec.head_dim * size_of::<f32>();
                    Ok(bytes(self.sequences.get(sequence.0)?.len() * entry))
                })
            }
            _ => Ok(Reads::default()),
        };
        found.unwrap_or_default()
    }
}

fn row_bytes(weight: &Weight) -> usize {
    weight.bytes() / weight.rows.max(1)
}
