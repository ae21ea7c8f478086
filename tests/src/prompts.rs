//! Twenty prompts of Rust code, for tests that compare ways of decoding.

/// Beginnings of ordinary Rust code and documentation.
pub const PROMPTS: [&str; 20] = [
    "fn main() {\n",
    "/// Returns the number of elements in",
    "impl<T> Iterator for ",
    "use std::collections::HashMap;\n\n/// Counts words.\npub fn count(",
    "#[test]\nfn parses_empty_input() {\n    ",
    "pub struct Config {\n    pub name: String,\n    pub threads: usize,\n}\n\nimpl Config {\n",
    "match value {\n    Some(x) if x > 0 => ",
    "//! A small library for parsing\n//!\n",
    "impl fmt::Display for Error {\n    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {\n",
    "let mut stack = Vec::new();\nwhile let Some(node) = stack.pop() {\n",
    "#[derive(Debug, Clone, PartialEq, Eq)]\npub enum Token {\n",
    "fn fibonacci(n: u64) -> u64 {\n    if n < 2 {\n",
    "unsafe impl Send for ",
    "for (i, line) in text.lines().enumerate() {\n    if line.is_empty() {\n        continue;\n    }\n",
    "pub trait Visitor {\n    type Output;\n\n    fn visit_expr(&mut self, expr: &Expr)",
    "assert_eq!(parse(\"1 + 2\"), Ok(",
    "macro_rules! vec_of {\n    ($($x:expr),* $(,)?) => {\n",
    "const MAX_DEPTH: usize = 64;\nstatic COUNTER: AtomicUsize = ",
    "where\n    K: Hash + Eq,\n    V: Default,\n{\n    pub fn get_or_insert(",
    "x",
];
