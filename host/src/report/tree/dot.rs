//! A draft tree in Graphviz's language.

use std::fmt::Write;

use super::{TreeReport, drawn, probability};

impl TreeReport {
    /// A digraph: nodes hold token, id and path probability, edges the target's probability of the token below; what was
    /// accepted is filled, the bonus token dashed.
    pub(crate) fn dot(&self) -> String {
        let mut dot = String::from("digraph tree {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n");
        // Writing to a string cannot fail.
        let _ = writeln!(dot, "  label={};", quoted(&self.title()));
        for node in &self.nodes {
            let label = match node.path_probability {
                Some(path) => format!("{} path {}", node.token_id, probability(Some(path))),
                None => node.token_id.to_string(),
            };
            let label = format!("{}\n{label}", drawn(node.token.as_ref(), node.token_id));
            let style = if node.accepted { ", style=filled, fillcolor=\"palegreen\", penwidth=2" } else { "" };
            let _ = writeln!(dot, "  n{} [label={}{style}];", node.row, quoted(&label));
            if let Some(parent) = node.parent {
                let style = if node.accepted { ", penwidth=2" } else { "" };
                let label = quoted(&probability(node.target_probability));
                let _ = writeln!(dot, "  n{parent} -> n{} [label={label}{style}];", node.row);
            }
        }
        let bonus = &self.bonus;
        let label = format!("{}\n{} bonus", drawn(bonus.token.as_ref(), bonus.token_id), bonus.token_id);
        let _ = writeln!(dot, "  bonus [label={}, style=dashed];", quoted(&label));
        let label = quoted(&probability(Some(bonus.target_probability)));
        let _ = writeln!(dot, "  n{} -> bonus [label={label}, style=dashed];\n}}", bonus.parent);
        dot
    }
}

/// A string of the language. A backslash would begin one of its escapes.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
