//! A draft tree for people: a line a node, 80 columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{NodeReport, TreeReport, drawn, probability};

/// Columns of a line.
const WIDTH: usize = 80;
/// Columns of the depth, and of a probability with the space before it.
const DEPTH: usize = 5;
const PROBABILITY: usize = 8;
/// Columns that are left for a token however deep it is.
const TOKEN: usize = 14;

/// What lines and marks are drawn with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Glyphs {
    /// Whether other characters than ASCII can be shown.
    unicode: bool,
    /// To a child that others follow, to the last child, past a level with more to come, past one without.
    branch: &'static str,
    last: &'static str,
    past: &'static str,
    blank: &'static str,
    /// Before what was left out.
    cut: &'static str,
    accepted: char,
    refused: char,
    bonus: char,
}

impl Glyphs {
    /// For terminals that show UTF-8.
    pub(crate) const UNICODE: Self = Self {
        unicode: true,
        branch: "├─",
        last: "└─",
        past: "│ ",
        blank: "  ",
        cut: "…",
        accepted: '●',
        refused: '○',
        bonus: '◆',
    };
    /// For all others.
    pub(crate) const ASCII: Self = Self {
        unicode: false,
        branch: "|-",
        last: "`-",
        past: "| ",
        blank: "  ",
        cut: "~",
        accepted: '*',
        refused: 'o',
        bonus: '+',
    };

    fn mark(&self, accepted: bool) -> char {
        if accepted { self.accepted } else { self.refused }
    }

    fn show(&self, text: &str) -> String {
        match self.unicode {
            true => text.to_owned(),
            false => {
                text.chars().flat_map(|c| if c.is_ascii() { vec![c] } else { c.escape_default().collect() }).collect()
            }
        }
    }

    /// At most `width` columns of `text`: its beginning.
    fn beginning(&self, text: &str, width: usize) -> String {
        if text.width() <= width {
            return text.to_owned();
        }
        taken(text.chars(), width - 1).chain(self.cut.chars()).collect()
    }

    /// At most `width` columns of `text`: its end.
    fn end(&self, text: &str, width: usize) -> String {
        if text.width() <= width {
            return text.to_owned();
        }
        let end: Vec<char> = taken(text.chars().rev(), width - 1).collect();
        self.cut.chars().chain(end.into_iter().rev()).collect()
    }
}

/// As many of the first characters as fit.
fn taken(chars: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let columns = |c: &char| c.width().unwrap_or(0);
    chars.scan(0, move |used, c| {
        *used += columns(&c);
        (*used <= width).then_some(c)
    })
}

/// A line of the drawing.
struct Line {
    depth: u32,
    /// What leads to the node, and the node.
    tree: String,
    id: u32,
    probabilities: [String; 3],
}

impl TreeReport {
    /// The tree in lines of at most 80 columns, with what its marks mean.
    pub(crate) fn text(&self, glyphs: Glyphs) -> String {
        let ids = self.nodes.iter().map(|node| node.token_id).chain([self.bonus.token_id]);
        let id_width = ids.max().unwrap_or_default().to_string().len().max(2);
        let tree_width = WIDTH - DEPTH - 2 - 2 - id_width - 3 * PROBABILITY;
        let mut text = self.title() + "\n";
        if let Some(context) = &self.context {
            let context = glyphs.end(&glyphs.show(context), WIDTH - 8);
            text.push_str(&format!("after \"{context}\"\n"));
        }
        text.push_str(&format!(
            "\n{:>DEPTH$}  {:tree_width$}  {:>id_width$}{:>PROBABILITY$}{:>PROBABILITY$}{:>PROBABILITY$}\n",
            "depth", "token", "id", "draft", "path", "target"
        ));
        let mut lines = Vec::new();
        if let Some(root) = self.nodes.first() {
            self.node(root, &[], glyphs, tree_width, &mut lines);
        }
        for Line { depth, tree, id, probabilities: [draft, path, target] } in lines {
            let pad = " ".repeat(tree_width.saturating_sub(tree.width()));
            let line = format!(
                "{depth:>DEPTH$}  {tree}{pad}  {id:>id_width$}{draft:>PROBABILITY$}{path:>PROBABILITY$}{target:>PROBABILITY$}"
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let Glyphs { accepted, refused, bonus, .. } = glyphs;
        text.push_str(&format!("\n{accepted} accepted  {refused} refused  {bonus} bonus: the target's own choice\n"));
        text
    }

    /// Draws `node` and what is below it. `levels` has an entry a level above: whether more children follow there.
    fn node(&self, node: &NodeReport, levels: &[bool], glyphs: Glyphs, width: usize, lines: &mut Vec<Line>) {
        let token = drawn(node.token.as_ref(), node.token_id);
        lines.push(Line {
            depth: node.depth,
            tree: tree_column(levels, glyphs.mark(node.accepted), &token, glyphs, width),
            id: node.token_id,
            probabilities: match node.parent {
                Some(_) => [node.draft_probability, node.path_probability, node.target_probability].map(probability),
                None => Default::default(),
            },
        });
        let bonus = self.bonus.parent == node.row;
        let mut children = self.children(node.row).peekable();
        while let Some(child) = children.next() {
            let more = children.peek().is_some() || bonus;
            self.node(child, &[levels, &[more]].concat(), glyphs, width, lines);
        }
        if bonus {
            let token = drawn(self.bonus.token.as_ref(), self.bonus.token_id);
            lines.push(Line {
                depth: node.depth + 1,
                tree: tree_column(&[levels, &[false]].concat(), glyphs.bonus, &token, glyphs, width),
                id: self.bonus.token_id,
                probabilities: [String::new(), String::new(), probability(Some(self.bonus.target_probability))],
            });
        }
    }
}

/// Lines that lead to a node, its mark, its token. The levels nearest the root are left out where there are too many.
fn tree_column(levels: &[bool], mark: char, token: &str, glyphs: Glyphs, width: usize) -> String {
    let mut column = String::new();
    if let Some((last, above)) = levels.split_last() {
        let shown = above.len().min((width - TOKEN) / 2);
        let above = &above[above.len() - shown..];
        if shown < levels.len() - 1 {
            column.push_str(glyphs.cut);
        }
        above.iter().for_each(|more| column.push_str(if *more { glyphs.past } else { glyphs.blank }));
        column.push_str(if *last { glyphs.branch } else { glyphs.last });
    }
    column.push(mark);
    column.push(' ');
    let left = width.saturating_sub(column.width());
    column + &glyphs.beginning(&glyphs.show(token), left)
}
