//! Batches of events as MessagePack, in the two shapes that vLLM has used.

use super::KvEventsConfig;
use crate::batch::KvEvent;

/// How an event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KvShape {
    /// A map from field names, as from vLLM 0.24 on.
    #[default]
    Map,
    /// An array of fields in order, as vLLM 0.20 has it.
    Array,
}

/// Where blocks are; vLLM says so even when it computes on a CPU.
const MEDIUM: &str = "GPU";

/// `[time, [event, ...], rank]`.
pub(super) fn batch(config: &KvEventsConfig, now: f64, events: &[KvEvent]) -> Vec<u8> {
    let mut out = Out(Vec::with_capacity(64 + events.len() * 256));
    out.array(3);
    out.0.push(0xcb);
    out.0.extend(now.to_be_bytes());
    out.array(events.len());
    for event in events {
        let mut fields = Fields {
            out: &mut out,
            shape: config.shape,
        };
        match event {
            KvEvent::Stored {
                hashes,
                parent,
                tokens,
                salt,
                adapter,
            } => {
                fields.begin("BlockStored", [9, 10]);
                fields.field("block_hashes").numbers(hashes.iter().copied());
                fields.field("parent_block_hash").optional(*parent);
                let tokens = tokens.iter().map(|token| u64::from(*token));
                fields.field("token_ids").numbers(tokens);
                fields.field("block_size").number(config.block_size.into());
                let adapter = adapter.as_deref();
                let number =
                    adapter.and_then(|name| config.loras.iter().position(|one| one == name));
                fields
                    .field("lora_id")
                    .optional(number.map(|at| at as u64 + 1));
                fields.field("medium").text(MEDIUM);
                match adapter {
                    Some(name) => fields.field("lora_name").text(name),
                    None => fields.field("lora_name").nil(),
                }
                let salt = salt.as_deref().filter(|_| parent.is_none());
                extras(fields.field("extra_keys"), hashes.len(), adapter, salt);
                fields.field("group_idx").number(0);
                if config.shape == KvShape::Map {
                    fields.field("kv_cache_spec_kind").text("full_attention");
                }
            }
            KvEvent::Removed { hash } => {
                fields.begin("BlockRemoved", [3, 3]);
                fields.field("block_hashes").numbers([*hash].into_iter());
                fields.field("medium").text(MEDIUM);
                fields.field("group_idx").number(0);
            }
            KvEvent::Cleared => fields.begin("AllBlocksCleared", [0, 0]),
        }
    }
    out.number(0);
    out.0
}

/// For each block what makes it different besides its tokens: the adapter, and the salt in the first one of a prompt.
fn extras(out: &mut Out, blocks: usize, adapter: Option<&str>, salt: Option<&str>) {
    out.array(blocks);
    for block in 0..blocks {
        let salt = salt.filter(|_| block == 0);
        let count = usize::from(adapter.is_some()) + usize::from(salt.is_some());
        if count == 0 {
            out.nil();
            continue;
        }
        out.array(count);
        adapter
            .into_iter()
            .chain(salt)
            .for_each(|key| out.text(key));
    }
}

/// One event. A map has one field more than an array has after its tag: its names tell what is left out.
struct Fields<'a> {
    out: &'a mut Out,
    shape: KvShape,
}

impl Fields<'_> {
    /// Begins an event with so many fields as an array and as a map, its tag not counted.
    fn begin(&mut self, tag: &str, [array, map]: [usize; 2]) {
        match self.shape {
            KvShape::Array => self.out.array(array + 1),
            KvShape::Map => {
                self.out.map(map + 1);
                self.out.text("type");
            }
        }
        self.out.text(tag);
    }

    fn field(&mut self, name: &str) -> &mut Out {
        if self.shape == KvShape::Map {
            self.out.text(name);
        }
        self.out
    }
}

/// MessagePack, as much of it as events use.
struct Out(Vec<u8>);

impl Out {
    fn head(&mut self, length: usize, short: (u8, usize), sizes: [Option<u8>; 3]) {
        let [byte, word, long] = sizes;
        match (u8::try_from(length), u16::try_from(length), byte, word) {
            (Ok(short_length), ..) if length < short.1 => self.0.push(short.0 | short_length),
            (Ok(length), _, Some(mark), _) => self.0.extend([mark, length]),
            (_, Ok(length), _, Some(mark)) => {
                self.0.push(mark);
                self.0.extend(length.to_be_bytes());
            }
            _ => {
                self.0.extend(long);
                self.0
                    .extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            }
        }
    }

    fn array(&mut self, length: usize) {
        self.head(length, (0x90, 16), [None, Some(0xdc), Some(0xdd)]);
    }

    fn map(&mut self, length: usize) {
        self.head(length, (0x80, 16), [None, Some(0xde), Some(0xdf)]);
    }

    fn text(&mut self, text: &str) {
        self.head(text.len(), (0xa0, 32), [Some(0xd9), Some(0xda), Some(0xdb)]);
        self.0.extend(text.as_bytes());
    }

    fn nil(&mut self) {
        self.0.push(0xc0);
    }

    fn number(&mut self, number: u64) {
        if let Ok(small) = u8::try_from(number) {
            if small >= 128 {
                self.0.push(0xcc);
            }
            self.0.push(small);
        } else if let Ok(word) = u16::try_from(number) {
            self.0.push(0xcd);
            self.0.extend(word.to_be_bytes());
        } else if let Ok(long) = u32::try_from(number) {
            self.0.push(0xce);
            self.0.extend(long.to_be_bytes());
        } else {
            self.0.push(0xcf);
            self.0.extend(number.to_be_bytes());
        }
    }

    fn optional(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.nil(),
        }
    }

    fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.array(numbers.len());
        numbers.for_each(|number| self.number(number));
    }
}
