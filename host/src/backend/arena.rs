//! Where a backend keeps what its handles name.

/// Objects of one kind, by handle.
#[derive(Debug)]
pub(in crate::backend) struct Arena<T> {
    kind: &'static str,
    items: Vec<T>,
}

impl<T> Arena<T> {
    /// An empty arena; `kind` names its objects in errors.
    pub(in crate::backend) fn new(kind: &'static str) -> Self {
        Self { kind, items: Vec::new() }
    }

    /// Stores an object and returns its index.
    pub(in crate::backend) fn push(&mut self, item: T) -> usize {
        self.items.push(item);
        self.items.len() - 1
    }

    pub(in crate::backend) fn get(&self, index: usize) -> Result<&T, String> {
        self.items.get(index).ok_or_else(|| unknown(self.kind, index, self.items.len()))
    }

    pub(in crate::backend) fn get_mut(&mut self, index: usize) -> Result<&mut T, String> {
        let len = self.items.len();
        self.items.get_mut(index).ok_or_else(|| unknown(self.kind, index, len))
    }

    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }
}

fn unknown(kind: &str, index: usize, len: usize) -> String {
    format!("{kind} {index} is not of this backend, which has {len}")
}
