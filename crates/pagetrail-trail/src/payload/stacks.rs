//! Encodes and decodes call stacks, and the part of a round that refers to them.

use super::{Decoded, Decoder, put_number, put_set, put_string};
use crate::stacks::{
    Attribution, BUILD_ID_BYTES_MAX, Frame, Module, STACK_FRAMES_MAX, Stack, StackTable,
    StackWrites, Thread,
};

/// How many entries the records so far have; what a record refers to must be among them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) modules: usize,
    pub(crate) frames: usize,
    pub(crate) stacks: usize,
}

impl Counts {
    /// The counts after `more` was appended.
    pub(crate) fn and(self, more: &StackTable) -> Self {
        Self {
            modules: self.modules + more.modules.len(),
            frames: self.frames + more.frames.len(),
            stacks: self.stacks + more.stacks.len(),
        }
    }

    /// Why `more` cannot be appended to a table of this size; `None` if it can.
    pub(crate) fn refuse(self, more: &StackTable) -> Option<&'static str> {
        let after = self.and(more);
        let within = |number: &u32, count: usize| (*number as usize) < count;
        let mut modules = more.frames.iter().filter_map(|frame| frame.module);
        let mut frames = more.stacks.iter().flat_map(|stack| &stack.frames);
        if u32::try_from(after.modules.max(after.frames).max(after.stacks)).is_err() {
            Some("more than 2^32 stacks, frames or modules")
        } else if !modules.all(|module| within(&module, after.modules)) {
            Some("a frame in a module that is not there")
        } else if !frames.all(|frame| within(frame, after.frames)) {
            Some("a stack with a frame that is not there")
        } else if more
            .stacks
            .iter()
            .any(|s| s.frames.len() > STACK_FRAMES_MAX)
        {
            Some("a stack of more than 1024 frames")
        } else if more
            .modules
            .iter()
            .any(|m| m.build_id.len() > BUILD_ID_BYTES_MAX)
        {
            Some("a build ID longer than 64 bytes")
        } else {
            None
        }
    }

    /// Why a round cannot have this attribution; `None` if it can.
    pub(crate) fn refuse_attribution(self, attribution: &Attribution) -> Option<&'static str> {
        let known = |writer: &StackWrites| (writer.stack as usize) < self.stacks;
        if attribution.period == 0 {
            Some("a sample period of 0")
        } else if !attribution.writers.iter().all(known) {
            Some("a round that refers to a stack that is not there")
        } else {
            None
        }
    }
}

pub(crate) fn put_stacks(out: &mut Vec<u8>, table: &StackTable) {
    put_number(out, table.modules.len() as u64);
    for module in &table.modules {
        put_string(out, &module.name);
        put_number(out, module.build_id.len() as u64);
        out.extend_from_slice(&module.build_id);
        put_number(out, module.file_bytes);
    }
    put_number(out, table.frames.len() as u64);
    for frame in &table.frames {
        put_number(out, frame.module.map_or(0, |module| u64::from(module) + 1));
        put_number(out, frame.address);
        put_string(out, &frame.function);
    }
    put_number(out, table.stacks.len() as u64);
    for stack in &table.stacks {
        out.push(stack.in_kernel.into());
        put_number(out, stack.frames.len() as u64);
        for frame in &stack.frames {
            put_number(out, (*frame).into());
        }
    }
    put_number(out, table.threads.len() as u64);
    for thread in &table.threads {
        put_number(out, thread.id.into());
        put_string(out, &thread.name);
    }
}

pub(super) fn put_attribution(out: &mut Vec<u8>, attribution: &Attribution) {
    put_number(out, attribution.period.into());
    put_number(out, attribution.lost);
    put_number(out, attribution.writers.len() as u64);
    for writer in &attribution.writers {
        put_number(out, writer.stack.into());
        put_number(out, writer.thread.into());
        put_set(out, &writer.pages);
    }
}

impl Decoder<'_> {
    /// Decodes entries that follow `before` others. Vectors grow with what is there, since an entry
    /// takes more memory than bytes of the file.
    pub(crate) fn stacks(&mut self, before: Counts) -> Decoded<StackTable> {
        let mut table = StackTable::default();
        for _ in 0..self.count()? {
            let name = self.string()?;
            let length = self.count()?;
            if length > BUILD_ID_BYTES_MAX {
                return self.wrong("a build ID longer than 64 bytes");
            }
            let build_id = self.take(length)?.to_vec();
            table.modules.push(Module {
                name,
                build_id,
                file_bytes: self.number()?,
            });
        }
        for _ in 0..self.count()? {
            let module = match self.number()?.checked_sub(1) {
                None => None,
                Some(module) => match u32::try_from(module) {
                    Ok(module) => Some(module),
                    Err(_) => return self.wrong("a number that does not fit into 32 bits"),
                },
            };
            table.frames.push(Frame {
                module,
                address: self.number()?,
                function: self.string()?,
            });
        }
        for _ in 0..self.count()? {
            let in_kernel = self.flag()?;
            let count = self.count()?;
            if count > STACK_FRAMES_MAX {
                return self.wrong("a stack of more than 1024 frames");
            }
            let mut frames = Vec::new();
            for _ in 0..count {
                frames.push(self.number_u32()?);
            }
            table.stacks.push(Stack { in_kernel, frames });
        }
        for _ in 0..self.count()? {
            table.threads.push(Thread {
                id: self.number_u32()?,
                name: self.string()?,
            });
        }
        match before.refuse(&table) {
            Some(what) => self.wrong(what),
            None => Ok(table),
        }
    }

    /// Decodes the attribution of a round, which may refer to the entries counted by `known`.
    pub(super) fn attribution(&mut self, known: Counts) -> Decoded<Attribution> {
        let mut attribution = Attribution {
            period: self.number_u32()?,
            lost: self.number()?,
            writers: Vec::new(),
        };
        for _ in 0..self.count()? {
            attribution.writers.push(StackWrites {
                stack: self.number_u32()?,
                thread: self.number_u32()?,
                pages: self.set()?,
            });
        }
        match known.refuse_attribution(&attribution) {
            Some(what) => self.wrong(what),
            None => Ok(attribution),
        }
    }
}
