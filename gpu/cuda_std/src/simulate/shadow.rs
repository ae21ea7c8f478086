//! Shared memory of a block and, word by word, who used it last: finds unwritten data, races and copies in flight.
use super::fault::FaultKind;
use super::order::Order;
use std::panic::Location;

/// Bytes a shadow word stands for.
const WORD: u32 = 4;

/// History of one word. Masks have a bit a byte.
#[derive(Clone, Copy, Default)]
struct Word {
    valid: u8,
    in_flight: u8,
    written: u8,
    read: u8,
    atomic: bool,
    writer: u16,
    first_reader: u16,
    last_reader: u16,
    write_epoch: u32,
    write_clock: u32,
    read_epoch: u32,
    first_read_clock: u32,
    last_read_clock: u32,
    write_at: Option<&'static Location<'static>>,
}

/// How a place is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Atomic,
    /// The start of a copy that lands later.
    CopyStart,
    /// Its landing.
    CopyEnd,
}

/// Shared memory of one block.
pub struct SharedMemory {
    bytes: Vec<u8>,
    words: Vec<Word>,
}

impl SharedMemory {
    pub fn new(bytes: u32) -> Self {
        let words = bytes.div_ceil(WORD) as usize;
        // Garbage, so that a kernel counting on zeros differs even where the check is blind.
        Self { bytes: vec![0xa5; words * WORD as usize], words: vec![Word::default(); words] }
    }

    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The bytes at a place that [`check`](Self::check) accepted.
    pub fn slice(&mut self, offset: u32, bytes: u32) -> &mut [u8] {
        &mut self.bytes[offset as usize..(offset + bytes) as usize]
    }

    /// The offset of an address, if the access lies inside and is aligned.
    pub fn locate(&self, base: u32, address: u32, bytes: u32, alignment: u32) -> Result<u32, FaultKind> {
        let offset = i64::from(address) - i64::from(base);
        if offset < 0 || offset + i64::from(bytes) > i64::from(self.size()) {
            return Err(FaultKind::SharedOutOfBounds { offset, bytes, size: self.size() });
        }
        let offset = offset as u32;
        if !offset.is_multiple_of(alignment) {
            return Err(FaultKind::SharedMisaligned { offset, bytes, expected: alignment });
        }
        Ok(offset)
    }

    /// Checks an access of `thread` against the history, then adds it.
    pub fn check(
        &mut self,
        order: &Order,
        thread: u32,
        (offset, bytes): (u32, u32),
        access: Access,
        at: &'static Location<'static>,
    ) -> Result<(), FaultKind> {
        let (epoch, clock) = (order.epoch(), order.clock(thread));
        let end = offset + bytes;
        for index in offset / WORD..end.div_ceil(WORD) {
            let low = offset.saturating_sub(index * WORD);
            let high = (end - index * WORD).min(WORD);
            let mask = ((1u32 << high) - (1u32 << low)) as u8;
            let word = &mut self.words[index as usize];
            if access != Access::CopyEnd && word.in_flight & mask != 0 {
                return Err(FaultKind::CopyInFlight { offset, bytes });
            }
            if matches!(access, Access::Read | Access::Atomic) && word.valid & mask != mask {
                return Err(FaultKind::Uninitialised { offset, bytes });
            }
            word.check_race(order, thread, mask, access).map_err(|(other, by)| FaultKind::Race {
                access: if access == Access::Read { "a read of" } else { "a write to" },
                offset: index * WORD + low,
                other,
                thread: by,
                at: word.write_at.filter(|_| other == "write").map(|at| format!("{}:{}", at.file(), at.line())),
            })?;
            word.record(thread, mask, access, (epoch, clock), at);
        }
        Ok(())
    }

    /// Marks bytes written by a bulk copy: valid and, for those who waited, without an owner.
    pub fn land_bulk(&mut self, offset: u32, bytes: u32) {
        for word in &mut self.words[(offset / WORD) as usize..((offset + bytes) / WORD) as usize] {
            *word = Word { valid: 0xf, ..Word::default() };
        }
    }
}

impl Word {
    fn check_race(&self, order: &Order, thread: u32, mask: u8, access: Access) -> Result<(), (&'static str, u32)> {
        let epoch = order.epoch();
        let meets_write = self.write_epoch == epoch && self.written & mask != 0;
        let both_atomic = access == Access::Atomic && self.atomic;
        let writer = u32::from(self.writer);
        if meets_write && !both_atomic && !order.is_after(thread, writer, self.write_clock) {
            return Err(("write", writer));
        }
        if access != Access::Read && self.read_epoch == epoch && self.read & mask != 0 {
            for (reader, clock) in
                [(self.first_reader, self.first_read_clock), (self.last_reader, self.last_read_clock)]
            {
                let reader = u32::from(reader);
                if !order.is_after(thread, reader, clock) {
                    return Err(("read", reader));
                }
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        thread: u32,
        mask: u8,
        access: Access,
        (epoch, clock): (u32, u32),
        at: &'static Location<'static>,
    ) {
        if access == Access::Read {
            if self.read_epoch == epoch {
                self.read |= mask;
            } else {
                (self.read_epoch, self.read) = (epoch, mask);
                (self.first_reader, self.first_read_clock) = (thread as u16, clock);
            }
            (self.last_reader, self.last_read_clock) = (thread as u16, clock);
            return;
        }
        let same = self.write_epoch == epoch && u32::from(self.writer) == thread;
        self.written = if same { self.written | mask } else { mask };
        (self.writer, self.write_epoch, self.write_clock, self.write_at) = (thread as u16, epoch, clock, Some(at));
        self.atomic = access == Access::Atomic;
        match access {
            Access::CopyStart => {
                self.in_flight |= mask;
                self.valid &= !mask;
            }
            Access::CopyEnd => {
                self.in_flight &= !mask;
                self.valid |= mask;
            }
            _ => self.valid |= mask,
        }
        // Reads before this write need no more watching: whoever races with them races with the write or was reported.
        self.read &= !mask;
    }
}
