//! The corpus: what engines of every version send, and what no engine should.
//!
//! A file is messages, each a count of parts and the parts, each behind its length; numbers are 32 bits, big-endian. So
//! are the captures of real engines.

/// MessagePack, written by hand so that wrong bytes can be written too.
#[derive(Clone, Default)]
pub(crate) struct Pack(pub(crate) Vec<u8>);

impl Pack {
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Pack {
        self.0.extend_from_slice(bytes);
        self
    }

    fn then(self, value: Pack) -> Pack {
        self.raw(&value.0)
    }

    fn map(self, pairs: u8) -> Pack {
        self.raw(&[0x80 | pairs])
    }

    fn key(self, key: &str, value: Pack) -> Pack {
        self.then(text(key)).then(value)
    }
}

fn nil() -> Pack {
    Pack(vec![0xc0])
}

fn text(text: &str) -> Pack {
    Pack(vec![0xa0 | text.len() as u8]).raw(text.as_bytes())
}

/// As short as an encoder makes it.
fn number(value: u64) -> Pack {
    let start = Pack::default();
    match value {
        0..=0x7f => start.raw(&[value as u8]),
        0x80..=0xff => start.raw(&[0xcc, value as u8]),
        0x100..=0xffff => start.raw(&[0xcd]).raw(&(value as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => start.raw(&[0xce]).raw(&(value as u32).to_be_bytes()),
        _ => start.raw(&[0xcf]).raw(&value.to_be_bytes()),
    }
}

fn signed(value: i64) -> Pack {
    Pack(vec![0xd3]).raw(&value.to_be_bytes())
}

fn bytes(value: &[u8]) -> Pack {
    Pack(vec![0xc4, value.len() as u8]).raw(value)
}

fn array(values: impl IntoIterator<Item = Pack>) -> Pack {
    let values: Vec<Pack> = values.into_iter().collect();
    let start = match values.len() {
        count @ 0..=15 => Pack(vec![0x90 | count as u8]),
        count => Pack(vec![0xdc]).raw(&(count as u16).to_be_bytes()),
    };
    values.into_iter().fold(start, Pack::then)
}

fn batch(events: impl IntoIterator<Item = Pack>) -> Pack {
    let time = Pack(vec![0xcb]).raw(&1_796_000_000.5f64.to_be_bytes());
    array([time, array(events), number(0)])
}

/// Tokens of a block.
pub(crate) const SIZE: usize = 16;

/// Hash of the `block`-th block of a file's prompt.
fn hash(block: u64) -> u64 {
    0x9e37_79b9_7f4a_7c15u64.wrapping_mul(block + 1)
}

fn tokens(from: u64, blocks: u64) -> Pack {
    array((from * SIZE as u64..(from + blocks) * SIZE as u64).map(|at| number(at * 37 % 128_000)))
}

/// How a version writes an event.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Array,
    Map,
}

/// How it names a block.
#[derive(Clone, Copy)]
enum Names {
    Unsigned,
    Signed,
    Bytes(usize),
}

impl Names {
    fn of(self, block: u64) -> Pack {
        match self {
            Names::Unsigned => number(hash(block)),
            Names::Signed => signed(i64::from_ne_bytes(hash(block).to_ne_bytes())),
            Names::Bytes(width) => {
                let mut all = vec![7; width - 8];
                all.extend(hash(block).to_be_bytes());
                bytes(&all)
            }
        }
    }
}

fn event(form: Form, tag: &str, fields: Vec<(&str, Pack)>) -> Pack {
    match form {
        Form::Array => {
            let values = fields.into_iter().map(|(_, value)| value);
            array([text(tag)].into_iter().chain(values))
        }
        Form::Map => {
            // What is its default is left out of maps.
            let told: Vec<_> = fields
                .into_iter()
                .filter(|(name, value)| value.0 != [0xc0] || *name == "parent_block_hash")
                .collect();
            let start = Pack::default().map(told.len() as u8 + 1);
            let start = start.key("type", text(tag));
            told.into_iter()
                .fold(start, |pack, (name, value)| pack.key(name, value))
        }
    }
}

struct Version {
    form: Form,
    names: Names,
    /// Fields after `lora_id`, in order.
    stored: Vec<(&'static str, Pack)>,
    /// Fields after `block_hashes`.
    removed: Vec<(&'static str, Pack)>,
}

impl Version {
    fn stored(&self, parent: Option<u64>, from: u64, blocks: u64) -> Pack {
        let parent = parent.map_or_else(nil, |parent| self.names.of(parent));
        let mut fields = vec![
            (
                "block_hashes",
                array((from..from + blocks).map(|at| self.names.of(at))),
            ),
            ("parent_block_hash", parent),
            ("token_ids", tokens(from, blocks)),
            ("block_size", number(SIZE as u64)),
            ("lora_id", nil()),
        ];
        fields.extend(self.stored.clone());
        event(self.form, "BlockStored", fields)
    }

    fn removed(&self, block: u64) -> Pack {
        let mut fields = vec![("block_hashes", array([self.names.of(block)]))];
        fields.extend(self.removed.clone());
        event(self.form, "BlockRemoved", fields)
    }

    /// A prompt is stored, grows, loses its last block, is cleared and stored again.
    fn messages(&self) -> Vec<Vec<Vec<u8>>> {
        let batches = [
            batch([self.stored(None, 0, 4)]),
            batch([self.stored(Some(3), 4, 1), self.stored(Some(4), 5, 2)]),
            batch([self.removed(6)]),
            batch([
                event(self.form, "AllBlocksCleared", Vec::new()),
                self.stored(None, 0, 3),
            ]),
        ];
        let parts = |(sequence, batch): (u64, Pack)| {
            vec![
                b"kv-events".to_vec(),
                sequence.to_be_bytes().to_vec(),
                batch.0,
            ]
        };
        (0..).zip(batches).map(parts).collect()
    }
}

/// What a good file leaves behind: the blocks that the third message and the fourth let stand.
pub(crate) const LEFT: usize = 3;

/// Files by name. Those of engines begin with `vllm` or `sglang`; all else is damaged.
pub(crate) fn corpus() -> Vec<(String, Vec<Vec<Vec<u8>>>)> {
    let gpu = || ("medium", text("GPU"));
    let version =
        |form, names, stored: &[(&'static str, Pack)], removed: &[(&'static str, Pack)]| Version {
            form,
            names,
            stored: stored.to_vec(),
            removed: removed.to_vec(),
        };
    let adapter = ("lora_name", nil());
    let extras = ("extra_keys", nil());
    let group = ("group_idx", number(0));
    let kind = ("kv_cache_spec_kind", text("full_attention"));
    let window = ("kv_cache_spec_sliding_window", nil());
    let local = ("locality", text("local"));
    let owned = ("ownership", text("owned"));
    let session = ("session_id", text("s-1"));
    let ahead = ("lookahead_token_ids", array([number(1), number(2)]));
    let all = |count: usize| -> Vec<(&'static str, Pack)> {
        let fields = [
            gpu(),
            adapter.clone(),
            extras.clone(),
            group.clone(),
            kind.clone(),
            window.clone(),
            local.clone(),
            owned.clone(),
            session.clone(),
            ahead.clone(),
        ];
        fields.into_iter().take(count).collect()
    };
    let (old, new) = ([gpu()], [gpu(), group.clone()]);
    let (placed, owners) = (
        [gpu(), group.clone(), local.clone()],
        [gpu(), group.clone(), local.clone(), owned.clone()],
    );
    let unsigned = Names::Unsigned;
    let salt = ("cache_salt", text("tenant-a"));
    let versions = [
        ("vllm-0.10", version(Form::Array, unsigned, &all(1), &old)),
        ("vllm-0.14", version(Form::Array, unsigned, &all(2), &old)),
        ("vllm-0.18", version(Form::Array, unsigned, &all(3), &old)),
        ("vllm-0.20", version(Form::Array, unsigned, &all(4), &new)),
        (
            "vllm-0.20-bytes",
            version(Form::Array, Names::Bytes(32), &all(4), &new),
        ),
        ("vllm-0.22", version(Form::Array, unsigned, &all(6), &new)),
        ("vllm-0.24", version(Form::Map, unsigned, &all(6), &new)),
        (
            "vllm-0.24-bytes",
            version(Form::Map, Names::Bytes(16), &all(6), &new),
        ),
        ("vllm-0.26", version(Form::Map, unsigned, &all(7), &placed)),
        ("vllm-0.29", version(Form::Map, unsigned, &all(9), &owners)),
        ("vllm-0.33", version(Form::Map, unsigned, &all(10), &owners)),
        (
            "sglang-0.5.10",
            version(Form::Array, Names::Signed, &old, &old),
        ),
        (
            "sglang-0.5.15",
            version(Form::Array, Names::Signed, &[gpu(), salt.clone()], &old),
        ),
        (
            "sglang-0.5.20",
            version(
                Form::Map,
                Names::Signed,
                &[gpu(), salt.clone(), session.clone()],
                &old,
            ),
        ),
        (
            "sglang-0.5.23",
            version(
                Form::Map,
                Names::Signed,
                &[gpu(), salt, session, adapter.clone()],
                &old,
            ),
        ),
    ];
    let mut files: Vec<_> = versions
        .into_iter()
        .map(|(name, version)| (name.to_owned(), version.messages()))
        .collect();
    files.extend(
        damaged()
            .into_iter()
            .map(|(name, parts)| (format!("damaged-{name}"), vec![parts])),
    );
    files
}

/// Messages of which nothing may count, or only what is whole.
fn damaged() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let version = Version {
        form: Form::Array,
        names: Names::Unsigned,
        stored: vec![("medium", text("GPU"))],
        removed: Vec::new(),
    };
    let good = batch([version.stored(None, 0, 2)]).0;
    let message = |payload: Vec<u8>| vec![Vec::new(), 5u64.to_be_bytes().to_vec(), payload];
    let one = |event: Pack| message(batch([event]).0);
    let stored = |hashes: Pack, tokens: Pack, size: Pack| {
        one(array([text("BlockStored"), hashes, nil(), tokens, size]))
    };
    let head = || Pack(vec![0x93, 0x01]);
    let names = || array([number(1), number(2)]);
    vec![
        ("cut-short", message(good[..good.len() / 2].to_vec())),
        ("empty", message(Vec::new())),
        ("end-of-replay", vec![Vec::new(), vec![0xff; 8], Vec::new()]),
        ("two-parts", vec![5u64.to_be_bytes().to_vec(), good.clone()]),
        (
            "four-parts",
            vec![
                Vec::new(),
                Vec::new(),
                5u64.to_be_bytes().to_vec(),
                good.clone(),
            ],
        ),
        ("short-sequence", vec![Vec::new(), vec![0; 7], good.clone()]),
        (
            "no-array",
            message(Pack::default().map(1).key("events", array([])).0),
        ),
        ("never-used-tag", message(head().raw(&[0x91, 0xc1]).0)),
        (
            "four-billion-events",
            message(head().raw(&[0xdd, 0xff, 0xff, 0xff, 0xff]).0),
        ),
        (
            "four-billion-hashes",
            message(
                head()
                    .raw(&[0x91, 0x95])
                    .raw(&text("BlockStored").0)
                    .raw(&[0xdd, 0xff, 0xff, 0xff, 0xff])
                    .0,
            ),
        ),
        (
            "four-billion-pairs",
            message(head().raw(&[0x91, 0xdf, 0xff, 0xff, 0xff, 0xff]).0),
        ),
        (
            "four-gigabytes",
            message(head().raw(&[0x91, 0x92, 0xdb, 0xff, 0xff, 0xff, 0xff]).0),
        ),
        ("deep", message(head().raw(&[0x91; 5000]).raw(&[0xc0]).0)),
        (
            "deep-field",
            one(array([
                text("BlockRemoved"),
                names(),
                text("GPU"),
                number(0),
                Pack(vec![0x91; 64]).raw(&[0xc0]),
            ])),
        ),
        (
            "many-extras",
            one(array([
                text("BlockStored"),
                names(),
                nil(),
                tokens(0, 2),
                number(16),
                nil(),
                nil(),
                nil(),
                array((0..2000).map(|_| array([nil()]))),
            ])),
        ),
        (
            "no-text",
            one(array([Pack(vec![0xa2, 0xff, 0xfe]), names()])),
        ),
        ("wrong-size", stored(names(), tokens(0, 2), number(15))),
        ("size-of-nothing", stored(names(), tokens(0, 2), number(0))),
        (
            "size-of-everything",
            stored(names(), tokens(0, 2), number(u64::from(u32::MAX))),
        ),
        (
            "token-below-zero",
            stored(array([number(1)]), array([signed(-1)]), number(1)),
        ),
        (
            "token-too-large",
            stored(array([number(1)]), array([number(1 << 40)]), number(1)),
        ),
        (
            "hash-of-nothing",
            stored(array([nil()]), tokens(0, 1), number(16)),
        ),
        (
            "own-parent",
            one(array([
                text("BlockStored"),
                array([number(9)]),
                number(9),
                tokens(0, 1),
                number(16),
            ])),
        ),
        (
            "map-without-tag",
            one(Pack::default().map(1).key("block_hashes", names())),
        ),
        ("future-tag", one(array([text("BlockPromoted"), names()]))),
        (
            "trailing-bytes",
            message(good.iter().copied().chain([0xc1; 9]).collect()),
        ),
    ]
}

/// A file's bytes.
pub(crate) fn write(messages: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut out = Vec::new();
    for parts in messages {
        out.extend((parts.len() as u32).to_be_bytes());
        for part in parts {
            out.extend((part.len() as u32).to_be_bytes());
            out.extend(part);
        }
    }
    out
}

/// A file's messages.
pub(crate) fn read(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let number = |bytes: &mut &[u8]| {
        let (head, rest) = bytes.split_first_chunk::<4>().unwrap();
        *bytes = rest;
        u32::from_be_bytes(*head) as usize
    };
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let count = number(&mut bytes);
        let parts = (0..count).map(|_| {
            let length = number(&mut bytes);
            let (part, rest) = bytes.split_at(length);
            bytes = rest;
            part.to_vec()
        });
        messages.push(parts.collect());
    }
    messages
}

/// A prompt that nothing else uses, as a message: what must come through whatever came before.
pub(crate) fn probe(sequence: u64, round: u64) -> (Vec<Vec<u8>>, Vec<u64>) {
    let names: Vec<u64> = (0..3).map(|at| u64::MAX - (round * 3 + at)).collect();
    let stored = array([
        text("BlockStored"),
        array(names.iter().map(|name| number(*name))),
        nil(),
        array((0..3 * SIZE as u64).map(|at| number((round * 7919 + at) % 100_000))),
        number(SIZE as u64),
    ]);
    let parts = vec![
        b"kv-events".to_vec(),
        sequence.to_be_bytes().to_vec(),
        batch([stored]).0,
    ];
    (parts, names)
}
