//! A round's draft tree as `tree --json` prints it; drawn for people in `text`, for Graphviz in `dot`.

mod dot;
mod text;

use coppice_model::tokenizer::Tokenizer;
use serde::Serialize;

use super::{Environment, schema};
use crate::engine::{Request, RoundTrace};

pub(crate) use text::Glyphs;

/// One round. Probabilities are at temperature 1.
#[derive(Debug, Clone, Serialize)]
pub struct TreeReport {
    schema: &'static str,
    /// The round, from 1.
    pub round: usize,
    /// `ngram`, `dflash` or `ddtree`.
    pub mode: &'static str,
    /// Most nodes, besides the root.
    pub budget: usize,
    /// Tokens of the prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Tokens generated before the round; the root is the last of them.
    pub generated_token_ids: Vec<u32>,
    /// Rows of the tree: the root, then parents before children.
    pub nodes: Vec<NodeReport>,
    /// Rows that the target accepted, from the root down.
    pub accepted: Vec<usize>,
    /// The token after them.
    pub bonus: BonusReport,
    /// What the round ran on.
    pub env: Environment,
    /// Text before the root, for the drawings.
    #[serde(skip)]
    context: Option<String>,
}

/// A row of the tree.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// Its number; the root is 0.
    pub row: usize,
    /// The row above; null for the root.
    pub parent: Option<usize>,
    /// How far below the root.
    pub depth: u32,
    /// Absolute position in the text.
    pub position: usize,
    /// Its token.
    pub token_id: u32,
    /// The token's text, control characters escaped; null without a tokenizer.
    pub token: Option<String>,
    /// Of the token at its depth, under the drafter; null for the root, and for drafts without probabilities.
    pub draft_probability: Option<f64>,
    /// Of the path from the root to it, under the drafter.
    pub path_probability: Option<f64>,
    /// Of the token under the target, after the path before it; null for the root.
    pub target_probability: Option<f64>,
    /// Whether the target accepted it; the root was before.
    pub accepted: bool,
}

/// The token that follows the last accepted row, and which no child of it holds.
#[derive(Debug, Clone, Serialize)]
pub struct BonusReport {
    /// The row it follows.
    pub parent: usize,
    /// The token.
    pub token_id: u32,
    /// Its text, control characters escaped; null without a tokenizer.
    pub token: Option<String>,
    /// Under the target.
    pub target_probability: f64,
}

impl TreeReport {
    /// Of round `round` of the answer to `request`, which has generated the tokens `generated` by the end of the round.
    pub fn new(
        request: &Request,
        round: usize,
        generated: &[u32],
        trace: &RoundTrace,
        tokenizer: Option<&Tokenizer>,
        env: Environment,
    ) -> Self {
        let RoundTrace { tree, position, draft, target, walk, bonus } = trace;
        let token = |id| tokenizer.map(|tokenizer| tokenizer.token_text(id));
        let paths = trace.draft_paths();
        let probability = |of: &Option<Vec<f64>>, row: usize| of.as_ref().filter(|_| row > 0).map(|of| of[row].exp());
        let nodes = (0..tree.len()).map(|row| NodeReport {
            row,
            parent: usize::try_from(tree.parents[row]).ok(),
            depth: tree.depths[row],
            position: position + tree.depths[row] as usize,
            token_id: tree.tokens[row],
            token: token(tree.tokens[row]),
            draft_probability: probability(draft, row),
            path_probability: probability(&paths, row),
            target_probability: (row > 0).then(|| target[row].exp()),
            accepted: walk.path.contains(&row),
        });
        // The root is the token at `position`, which the prompt's tokens precede.
        let before = (position + 1 - request.prompt.len()).min(generated.len());
        let context = [&request.prompt, &generated[..before.saturating_sub(1)]].concat();
        Self {
            schema: schema::TREE,
            round,
            mode: request.speculation.name(),
            budget: request.speculation.budget(),
            prompt_token_ids: request.prompt.clone(),
            generated_token_ids: generated[..before].to_vec(),
            nodes: nodes.collect(),
            accepted: walk.path.clone(),
            bonus: BonusReport {
                parent: walk.path.last().copied().unwrap_or_default(),
                token_id: walk.bonus,
                token: token(walk.bonus),
                target_probability: bonus.exp(),
            },
            env,
            context: tokenizer
                .map(|tokenizer| context.iter().map(|id| tokenizer.token_text(*id)).collect::<Vec<_>>().concat()),
        }
    }

    /// The rows below `row`, in their order.
    fn children(&self, row: usize) -> impl Iterator<Item = &NodeReport> {
        self.nodes.iter().filter(move |node| node.parent == Some(row))
    }

    /// What it is, in one line.
    fn title(&self) -> String {
        let (nodes, accepted) = (self.nodes.len() - 1, self.accepted.len() - 1);
        let plural = if nodes == 1 { "" } else { "s" };
        format!(
            "{}, round {}: {nodes} node{plural} of at most {}, {accepted} accepted and a bonus token",
            self.mode, self.round, self.budget
        )
    }
}

/// A token as it is drawn: its text in quotes, so that spaces are seen, or else its id.
fn drawn(token: Option<&String>, id: u32) -> String {
    token.map_or_else(|| id.to_string(), |token| format!("\"{token}\""))
}

/// A probability in six columns.
fn probability(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 0.001 || value == 0.0 => format!("{value:.4}"),
        Some(value) => format!("{value:.0e}"),
    }
}
