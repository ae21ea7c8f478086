//! What device and host share about a sequence, a row set and a finished round: layouts in words of 32 bits. No kernel.
use cuda_std::prelude::*;

/// Most stop ids of a sequence.
pub const MAX_STOPS: usize = 48;

/// A sequence as kernels see it: how far it is, what ends it, how its tokens are chosen. The host writes it when a request
/// begins; afterwards kernels alone change it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceState {
    /// Context tokens: those whose keys and values are cached.
    pub len: u32,
    /// The token after the context; `u32::MAX` before one was chosen.
    pub root: u32,
    /// New tokens that may still be chosen.
    pub left: u32,
    /// Not 0: the sequence has ended, rounds compute nothing.
    pub done: u32,
    /// Number of the next round.
    pub round: u32,
    /// Most context tokens.
    pub context: u32,
    /// What the probabilities of this round's nodes add up to, where the budget was chosen by them.
    pub promised: f32,
    /// Keeps so many of the highest logits and their ties; 0 keeps all.
    pub top_k: u32,
    /// Key of the random numbers, low word first.
    pub seed: [u32; 2],
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Cumulative probability that is kept; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the highest; 0 keeps all.
    pub min_p: f32,
    /// Stop ids in use.
    pub stops: u32,
    /// 0.
    pub reserved: [u32; 2],
    /// Tokens that end the sequence.
    pub stop_ids: [u32; MAX_STOPS],
}

/// Words of a [`SequenceState`].
pub const STATE_WORDS: usize = size_of::<SequenceState>() / 4;

impl SequenceState {
    /// A sequence of no tokens, greedy, without stop ids.
    pub const fn new(context: u32, max_new_tokens: u32) -> Self {
        Self {
            len: 0,
            root: u32::MAX,
            left: max_new_tokens,
            done: 0,
            round: 0,
            context,
            promised: 0.0,
            top_k: 0,
            seed: [0; 2],
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            stops: 0,
            reserved: [0; 2],
            stop_ids: [0; MAX_STOPS],
        }
    }

    /// Sets the stop ids; `None` if there are more than [`MAX_STOPS`].
    pub fn with_stops(mut self, ids: &[u32]) -> Option<Self> {
        self.stop_ids.get_mut(..ids.len())?.copy_from_slice(ids);
        self.stops = ids.len() as u32;
        Some(self)
    }

    /// Its words, as they lie in device memory.
    pub fn words(self) -> [u32; STATE_WORDS] {
        // SAFETY: `repr(C)` of 4-byte fields has no padding, and any bits are valid words.
        unsafe { core::mem::transmute(self) }
    }

    /// From the words that [`words`](Self::words) gives.
    pub fn from_words(words: [u32; STATE_WORDS]) -> Self {
        // SAFETY: every field takes any bits.
        unsafe { core::mem::transmute(words) }
    }
}

/// Address of a state, field by field.
#[derive(Clone, Copy)]
pub(crate) struct State(pub GlobalMut<SequenceState>);

macro_rules! fields {
    ($($name:ident: $type:ty;)*) => {
        impl State {
            $(
                #[inline(always)]
                pub fn $name(self) -> GlobalMut<$type> {
                    self.0.byte_add(core::mem::offset_of!(SequenceState, $name)).cast()
                }
            )*
        }
    };
}
fields! {
    len: u32;
    root: u32;
    left: u32;
    done: u32;
    round: u32;
    context: u32;
    promised: f32;
    top_k: u32;
    seed: [u32; 2];
    temperature: f32;
    top_p: f32;
    min_p: f32;
    stops: u32;
    stop_ids: u32;
}

/// Where a row set of `capacity` rows keeps what, in words.
///
/// A row set is one buffer: count, start (context tokens before its rows), two words unused, then ids, positions, parents
/// and slots of all rows, then their masks. Rows past the count hold a harmless row: token 0, position and slot as in a
/// chain, no parent, seeing itself; so a kernel that works on the whole capacity wastes time and breaks nothing.
///
/// A parent is a row, `u32::MAX` for the context. A slot is where the row's keys and values go. Bit u % 32 of word u / 32
/// of a mask says whether the row sees row u.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Most rows.
    pub capacity: u32,
}

impl RowLayout {
    /// Word of the count.
    pub const COUNT: u32 = 0;
    /// Word of the start.
    pub const START: u32 = 1;
    /// First word of the ids.
    pub const IDS: u32 = 4;

    /// Words of a field of all rows: whole vectors of 16 B.
    const fn stride(self) -> u32 {
        self.capacity.next_multiple_of(4)
    }

    /// First word of the positions.
    pub const fn positions(self) -> u32 {
        Self::IDS + self.stride()
    }

    /// First word of the parents.
    pub const fn parents(self) -> u32 {
        Self::IDS + 2 * self.stride()
    }

    /// First word of the slots.
    pub const fn slots(self) -> u32 {
        Self::IDS + 3 * self.stride()
    }

    /// First word of the masks.
    pub const fn mask(self) -> u32 {
        Self::IDS + 4 * self.stride()
    }

    /// Words of one row's mask.
    pub const fn mask_words(self) -> u32 {
        self.capacity.div_ceil(32)
    }

    /// Words of the whole set.
    pub const fn words(self) -> u32 {
        self.mask() + self.capacity * self.mask_words()
    }
}

/// Address of a row set.
#[derive(Clone, Copy)]
pub(crate) struct RowSet {
    pub base: GlobalMut<u32>,
    pub layout: RowLayout,
}

impl RowSet {
    #[inline(always)]
    pub fn new(base: GlobalMut<u32>, capacity: u32) -> Self {
        Self { base, layout: RowLayout { capacity } }
    }

    #[inline(always)]
    pub fn word(self, index: u32) -> GlobalMut<u32> {
        self.base.add(index as usize)
    }

    #[inline(always)]
    pub fn count(self) -> GlobalMut<u32> {
        self.word(RowLayout::COUNT)
    }

    #[inline(always)]
    pub fn id(self, row: u32) -> GlobalMut<u32> {
        self.word(RowLayout::IDS + row)
    }

    #[inline(always)]
    pub fn parent(self, row: u32) -> GlobalMut<u32> {
        self.word(self.layout.parents() + row)
    }
}

/// Where a verdict keeps what, in words: what a round's end decided, for [`compact_rows`](crate::commit::compact_rows) to
/// carry out.
pub struct VerdictLayout;

impl VerdictLayout {
    /// Rows that became context.
    pub const LENGTH: u32 = 0;
    /// Context tokens before the round: the slot of row 0.
    pub const START: u32 = 1;
    /// Always 0: the start where rows lie from 0 on.
    pub const ZERO: u32 = 2;
    /// First of the accepted rows' numbers.
    pub const PATH: u32 = 4;

    /// Words for a row set of that capacity.
    pub const fn words(capacity: u32) -> u32 {
        Self::PATH + capacity
    }
}

/// A finished round, at the head of its slot of the ring; its tokens follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundRecord {
    /// Number of the round + 1, written last: who reads it (acquire) may read the rest.
    pub number: u32,
    /// Tokens committed: the accepted nodes' and the new root.
    pub tokens: u32,
    /// Prompt tokens made context.
    pub prompt_tokens: u32,
    /// Nodes verified besides the root.
    pub nodes: u32,
    /// What the drafter's probabilities promised.
    pub promised: f32,
    /// [`IDLE`](Self::IDLE), [`DONE`](Self::DONE), [`FAULT`](Self::FAULT).
    pub flags: u32,
    /// Context tokens after the round.
    pub len: u32,
    /// With [`FAULT`](Self::FAULT): the row whose logits hold NaN.
    pub row: u32,
}

/// Words of a [`RoundRecord`].
pub const RECORD_WORDS: usize = size_of::<RoundRecord>() / 4;

impl RoundRecord {
    /// The sequence was done before the round began.
    pub const IDLE: u32 = 1;
    /// The sequence is done after the round.
    pub const DONE: u32 = 2;
    /// Logits held NaN: nothing was committed, and the sequence is done.
    pub const FAULT: u32 = 4;

    /// Words of a slot of the ring for row sets of that capacity.
    pub const fn slot_words(capacity: u32) -> u32 {
        (RECORD_WORDS as u32 + capacity).next_multiple_of(4)
    }

    /// From its words.
    pub fn from_words(words: [u32; RECORD_WORDS]) -> Self {
        // SAFETY: `repr(C)` of 4-byte fields has no padding, and every field takes any bits.
        unsafe { core::mem::transmute(words) }
    }

    /// Its words.
    pub fn words(self) -> [u32; RECORD_WORDS] {
        // SAFETY: as above.
        unsafe { core::mem::transmute(self) }
    }
}
