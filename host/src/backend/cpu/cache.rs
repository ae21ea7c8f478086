//! Storage of keys and values by slot, laid out for the attention kernel. What a key or a value is, the owners decide.

/// Keys that the kernel scores at once: a tile is 32 slots, and tile edges are absolute.
pub(super) const TILE: usize = 32;

/// Keys `[heads, tiles, width, 32]`: within a tile the slot is the fastest axis, so that one query element meets 32 keys.
#[derive(Debug)]
pub(super) struct KeyTiles {
    data: Vec<f32>,
    heads: usize,
    tiles: usize,
    width: usize,
}

impl KeyTiles {
    pub(super) fn new(heads: usize, slots: usize, width: usize) -> Self {
        let tiles = slots.div_ceil(TILE);
        Self { data: vec![0.0; heads * tiles * width * TILE], heads, tiles, width }
    }

    /// Heads; one serves all.
    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of a key.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Keys of one tile `[width, 32]`. A store of one head serves every head.
    pub(super) fn tile(&self, head: usize, tile: usize) -> &[f32] {
        let size = self.width * TILE;
        let start = (head.min(self.heads - 1) * self.tiles + tile) * size;
        &self.data[start..start + size]
    }

    pub(super) fn write(&mut self, head: usize, slot: usize, key: &[f32]) {
        let start = self.start(head, slot);
        for (element, value) in self.data[start..].iter_mut().step_by(TILE).zip(&key[..self.width]) {
            *element = *value;
        }
    }

    /// The key of one slot, element by element.
    pub(super) fn key(&self, head: usize, slot: usize) -> impl Iterator<Item = f32> + '_ {
        self.data[self.start(head, slot)..].iter().step_by(TILE).take(self.width).copied()
    }

    /// Copies the keys of slot `from` to slot `to`, for every head.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        for head in 0..self.heads {
            let (from, to) = (self.start(head, from), self.start(head, to));
            for element in 0..self.width {
                self.data[to + element * TILE] = self.data[from + element * TILE];
            }
        }
    }

    fn start(&self, head: usize, slot: usize) -> usize {
        (head * self.tiles + slot / TILE) * self.width * TILE + slot % TILE
    }
}

/// Vectors `[heads, slots, stride]`, where the stride is the width rounded up to whole panels of 32 and the rest is zero.
#[derive(Debug)]
pub(super) struct SlotRows {
    data: Vec<f32>,
    heads: usize,
    slots: usize,
    width: usize,
    stride: usize,
}

impl SlotRows {
    pub(super) fn new(heads: usize, slots: usize, width: usize) -> Self {
        // Whole tiles, so that a tile of rows can be cut anywhere in the used part.
        let slots = slots.next_multiple_of(TILE);
        let stride = width.next_multiple_of(TILE);
        Self { data: vec![0.0; heads * slots * stride], heads, slots, width, stride }
    }

    /// Elements of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Elements from one slot's row to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Rows of `head`, from `slot` on.
    pub(super) fn from(&self, head: usize, slot: usize) -> &[f32] {
        &self.data[(head * self.slots + slot) * self.stride..(head + 1) * self.slots * self.stride]
    }

    /// The row of one slot.
    pub(super) fn row(&self, head: usize, slot: usize) -> &[f32] {
        &self.from(head, slot)[..self.width]
    }

    pub(super) fn write(&mut self, head: usize, slot: usize, row: &[f32]) {
        let start = (head * self.slots + slot) * self.stride;
        self.data[start..start + self.width].copy_from_slice(&row[..self.width]);
    }

    /// Copies the rows of slot `from` to slot `to`, for every head.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        for head in 0..self.heads {
            let start = (head * self.slots + from) * self.stride;
            self.data.copy_within(start..start + self.width, (head * self.slots + to) * self.stride);
        }
    }
}
