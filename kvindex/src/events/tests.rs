//! Every shape that engines have used, and what is none.

use super::*;

/// Writes MessagePack, for tests.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn raw(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn array(self, count: u8) -> Writer {
        self.raw(&[0x90 | count])
    }

    fn map(self, count: u8) -> Writer {
        self.raw(&[0x80 | count])
    }

    fn text(self, text: &str) -> Writer {
        self.raw(&[0xd9, text.len() as u8]).raw(text.as_bytes())
    }

    fn number(self, value: u64) -> Writer {
        self.raw(&[0xcf]).raw(&value.to_be_bytes())
    }

    fn signed(self, value: i64) -> Writer {
        self.raw(&[0xd3]).raw(&value.to_be_bytes())
    }

    fn array_of_nothing(self, _: u8) -> Writer {
        self.array(0)
    }

    fn nil(self) -> Writer {
        self.raw(&[0xc0])
    }

    fn numbers(self, values: &[u64]) -> Writer {
        let start = self.raw(&[0xdc]).raw(&(values.len() as u16).to_be_bytes());
        values
            .iter()
            .fold(start, |writer, value| writer.number(*value))
    }
}

fn batch(events: &[Writer]) -> Vec<u8> {
    let start = Writer::default()
        .array(3)
        .raw(&[0xcb])
        .raw(&7.5f64.to_be_bytes());
    let start = start.array(events.len() as u8);
    let all = events
        .iter()
        .fold(start, |writer, event| writer.raw(&event.0));
    all.raw(&[1]).0
}

fn decode(events: &[Writer]) -> Batch {
    decode_batch(&batch(events), Dialect::Vllm, Limits::default()).unwrap()
}

fn hashes(values: &[u64]) -> Vec<EngineHash> {
    values.iter().copied().map(EngineHash).collect()
}

/// A stored event up to its block size, in an array that has room for `fields` fields.
fn stored_start(fields: u8) -> Writer {
    let event = Writer::default()
        .array(fields + 1)
        .text("BlockStored")
        .numbers(&[1, 2])
        .number(9);
    event.numbers(&[10, 11, 12, 13]).number(2)
}

fn stored() -> Stored {
    Stored {
        hashes: hashes(&[1, 2]),
        parent: Some(EngineHash(9)),
        tokens: vec![10, 11, 12, 13],
        block_size: 2,
        ..Stored::default()
    }
}

#[test]
fn arrays_of_every_length_are_read() {
    let named = |fields| stored_start(fields).nil().text("GPU").text("food");
    let extra = |fields| named(fields).array(2).array(1).text("food").nil();
    let adapted = Stored {
        adapter: Some("food".into()),
        ..stored()
    };
    let extras = vec![BlockExtras {
        block: 0,
        extras: vec![Extra::Text("food".into())],
    }];
    let keyed = Stored {
        extras,
        ..adapted.clone()
    };
    let grouped = Stored {
        group: 3,
        ..keyed.clone()
    };
    let decoded = decode(&[
        stored_start(4),
        stored_start(5).number(4),
        stored_start(6).nil().text("cpu"),
        named(7),
        extra(8),
        extra(9).number(3),
        extra(11).number(3).text("sliding_window").number(128),
        extra(13)
            .number(3)
            .text("mla_attention")
            .nil()
            .text("new")
            .nil(),
    ]);
    let want = [
        stored(),
        Stored {
            adapter_id: Some(4),
            ..stored()
        },
        Stored {
            tier: Tier::Host,
            ..stored()
        },
        adapted,
        keyed,
        grouped.clone(),
        Stored {
            kind: GroupKind::Other,
            ..grouped.clone()
        },
        grouped,
    ];
    assert_eq!(decoded.events, want.map(Event::Stored));
    assert_eq!(
        (decoded.unknown_fields, decoded.unknown, decoded.malformed),
        (2, 0, 0)
    );
    assert_eq!((decoded.published, decoded.rank), (7.5, Some(1)));
}

#[test]
fn maps_are_read_in_any_order_with_fields_of_the_future() {
    let event = Writer::default().map(9).text("block_size").number(2);
    let event = event.text("hologram").map(1).text("deep").array(1).nil();
    let event = event
        .text("token_ids")
        .numbers(&[10, 11, 12, 13])
        .number(7)
        .nil();
    let event = event
        .text("type")
        .text("BlockStored")
        .text("block_hashes")
        .numbers(&[1, 2]);
    let event = event
        .text("parent_block_hash")
        .number(9)
        .text("medium")
        .text("CPU_PINNED");
    let event = event.text("ownership").text("owned");
    let removed = Writer::default().map(4).text("type").text("BlockRemoved");
    let removed = removed
        .text("block_hashes")
        .numbers(&[5])
        .text("group_idx")
        .number(2);
    let removed = removed.text("medium").text("disk");
    let cleared = Writer::default()
        .map(1)
        .text("type")
        .text("AllBlocksCleared");
    let short = Writer::default().array(1).text("AllBlocksCleared");
    let decoded = decode(&[event, removed, cleared, short]);
    let want = [
        Event::Stored(Stored {
            tier: Tier::Host,
            ..stored()
        }),
        Event::Removed(Removed {
            hashes: hashes(&[5]),
            tier: Tier::Disk,
            group: 2,
        }),
        Event::Cleared,
        Event::Cleared,
    ];
    assert_eq!(decoded.events, want);
    assert_eq!((decoded.unknown_fields, decoded.malformed), (2, 0));
}

#[test]
fn hashes_may_be_signed_or_bytes() {
    let bytes = |bytes: &[u8]| {
        Writer::default()
            .raw(&[0xc4, bytes.len() as u8])
            .raw(bytes)
            .0
    };
    let long: Vec<u8> = (0..32).collect();
    let event = Writer::default()
        .array(2)
        .text("BlockRemoved")
        .array(4)
        .signed(-2);
    let event = event
        .raw(&bytes(&long))
        .raw(&bytes(&[1, 2]))
        .number(u64::MAX);
    let want = hashes(&[u64::MAX - 1, 0x1819_1a1b_1c1d_1e1f, 0x0102, u64::MAX]);
    let removed = Removed {
        hashes: want,
        ..Removed::default()
    };
    assert_eq!(decode(&[event]).events, [Event::Removed(removed)]);
}

#[test]
fn sglang_arrays_have_a_salt_where_vllm_has_an_adapter() {
    let event = stored_start(9)
        .nil()
        .text("CPU_PINNED")
        .text("tenant")
        .text("session")
        .text("food");
    let decoded = decode_batch(&batch(&[event]), Dialect::Sglang, Limits::default()).unwrap();
    let want = Stored {
        tier: Tier::Host,
        salt: Some("tenant".into()),
        adapter: Some("food".into()),
        ..stored()
    };
    assert_eq!(decoded.events, [Event::Stored(want)]);
}

#[test]
fn what_makes_no_sense_is_left_out_and_the_rest_stays() {
    let good = || {
        Writer::default()
            .array(2)
            .text("BlockRemoved")
            .numbers(&[5])
    };
    let stored = |tokens: &[u64], size: u64| {
        let event = Writer::default()
            .array(5)
            .text("BlockStored")
            .numbers(&[1, 2])
            .nil();
        event.numbers(tokens).number(size)
    };
    let decoded = decode(&[
        good(),
        Writer::default()
            .array(2)
            .text("BlockPromoted")
            .numbers(&[5]),
        Writer::default()
            .map(2)
            .text("type")
            .text("BlockMoved")
            .text("x")
            .array(1)
            .nil(),
        stored(&[1, 2, 3], 2),
        stored(&[1, 2, 3, 4], 0),
        stored(&[1, 2, 3, u64::from(u32::MAX) + 1], 2),
        Writer::default().array(2).text("BlockRemoved").text("five"),
        Writer::default()
            .array(2)
            .text("BlockRemoved")
            .array(1)
            .nil(),
        Writer::default().array(1).text("BlockStored"),
        Writer::default().map(1).text("block_hashes").numbers(&[5]),
        Writer::default().array(0),
        Writer::default().number(3),
        good(),
    ]);
    assert_eq!(decoded.events.len(), 2);
    assert_eq!((decoded.unknown, decoded.malformed), (2, 9));
}

#[test]
fn media_and_other_extras_are_told_apart() {
    let extras = Writer::default().array(2).nil().array(4);
    let extras = extras
        .array(2)
        .text("cat")
        .signed(-4)
        .array(2)
        .number(12)
        .number(3);
    let extras = extras.raw(&[0xc4, 1, 7]).text("salt");
    let event = stored_start(8).nil().nil().nil().raw(&extras.0);
    let media = |id: &str, offset| Extra::Media {
        id: id.into(),
        offset,
    };
    let extras = vec![
        media("cat", -4),
        media("12", 3),
        Extra::Opaque(vec![0xc4, 1, 7]),
        Extra::Text("salt".into()),
    ];
    let want = Stored {
        extras: vec![BlockExtras { block: 1, extras }],
        ..stored()
    };
    assert_eq!(decode(&[event]).events, [Event::Stored(want)]);
}

#[test]
fn blocks_without_tokens_are_read() {
    let event = Writer::default()
        .array(7)
        .text("BlockStored")
        .numbers(&[1, 2])
        .nil()
        .nil();
    let event = event.number(16).nil().text("CPU");
    let want = Stored {
        hashes: hashes(&[1, 2]),
        block_size: 16,
        tier: Tier::Host,
        ..Stored::default()
    };
    assert_eq!(decode(&[event]).events, [Event::Stored(want)]);
}

#[test]
fn payloads_that_are_none_are_refused() {
    let read = |bytes: &[u8]| decode_batch(bytes, Dialect::Vllm, Limits::default());
    assert_eq!(read(&[]), Err(BatchError::Broken));
    assert_eq!(read(&[0xc1]), Err(BatchError::Broken));
    assert_eq!(read(&[0x80]), Err(BatchError::Shape));
    assert_eq!(read(&[0x91, 0xc0]), Err(BatchError::Shape));
    assert_eq!(read(&[0x92, 0xc0, 0xc0]), Err(BatchError::Shape));
    assert!(read(&[0x92, 0xc0, 0x90]).unwrap().published.is_nan());
    let whole = batch(&[stored_start(4)]);
    for cut in 0..whole.len() {
        assert!(read(&whole[..cut]).is_err(), "{cut}");
    }
    let small = Limits {
        bytes: whole.len() - 1,
        ..Limits::default()
    };
    let refused = decode_batch(&whole, Dialect::Vllm, small);
    assert_eq!(refused, Err(BatchError::TooLong(whole.len())));
    let nested = Writer(vec![0x91; 60]);
    assert_eq!(read(&batch(&[nested])), Err(BatchError::Broken));
}

#[test]
fn extras_are_bounded_over_all_events() {
    let extra = |count| {
        let start = stored_start(8).nil().nil().nil().array(1).array(count);
        (0..count).fold(start, Writer::array_of_nothing)
    };
    let payload = batch(&[extra(2), extra(1), extra(1), stored_start(4)]);
    let limits = Limits {
        extras: 3,
        ..Limits::default()
    };
    let decoded = decode_batch(&payload, Dialect::Vllm, limits).unwrap();
    assert_eq!((decoded.events.len(), decoded.malformed), (3, 1));
    assert_eq!(decode(&[extra(2), extra(1), extra(1)]).events.len(), 3);
}

#[test]
fn messages_have_three_parts() {
    let seq = 7u64.to_be_bytes();
    let frame = parse_frames(&[b"kv@a@b", &seq, &[0x92]]).unwrap();
    assert_eq!(
        (frame.topic, frame.sequence, frame.payload),
        (&b"kv@a@b"[..], 7, &[0x92][..])
    );
    assert_eq!(parse_frames(&[b"", &seq]), Err(FrameError::Parts(2)));
    assert_eq!(
        parse_frames(&[b"", &seq, b"x", b"y"]),
        Err(FrameError::Parts(4))
    );
    assert_eq!(
        parse_frames(&[b"", &seq[..7], b"x"]),
        Err(FrameError::Sequence(7))
    );
    assert_eq!(parse_frames(&[b"", &seq, b""]), Err(FrameError::Empty));
    let end = parse_frames(&[b"", &[0xff; 8], b""]).unwrap();
    assert_eq!(end.sequence, REPLAY_END);
}

#[test]
fn media_names_have_tiers() {
    let names = [
        "",
        "GPU",
        "gpu",
        "CPU",
        "CPU_PINNED",
        "DISK",
        "EXTERNAL",
        "holographic",
    ];
    use Tier::{Device, Disk, External, Host};
    let tiers = [Device, Device, Device, Host, Host, Disk, External, External];
    assert_eq!(names.map(Tier::of_medium), tiers);
}

mod captured {
    use std::path::PathBuf;

    use serde_json::Value as Json;

    use super::*;

    fn hash(value: &Json) -> EngineHash {
        let hex = value.get("hex").and_then(Json::as_str);
        let low = |hex: &str| u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap();
        EngineHash(hex.map_or_else(|| value.as_u64().unwrap(), low))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    /// The fields of an event by name, whether it is an array or a map.
    fn field<'a>(event: &'a Json, name: &str, position: usize) -> &'a Json {
        event
            .get(name)
            .or_else(|| event.get(position))
            .unwrap_or(&Json::Null)
    }

    fn same(event: &Event, want: &Json) {
        let tag = field(want, "type", 0).as_str().unwrap();
        let list = |value: &Json| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(hash)
                .collect::<Vec<_>>()
        };
        match event {
            Event::Cleared => assert_eq!(tag, "AllBlocksCleared"),
            Event::Removed(removed) => {
                assert_eq!(tag, "BlockRemoved");
                assert_eq!(removed.hashes, list(field(want, "block_hashes", 1)));
            }
            Event::Stored(stored) => {
                assert_eq!(tag, "BlockStored");
                assert_eq!(stored.hashes, list(field(want, "block_hashes", 1)));
                let parent = field(want, "parent_block_hash", 2);
                assert_eq!(stored.parent, (!parent.is_null()).then(|| hash(parent)));
                let tokens = field(want, "token_ids", 3).as_array().unwrap().iter();
                let tokens: Vec<u32> = tokens.map(|token| token.as_u64().unwrap() as u32).collect();
                assert_eq!(stored.tokens, tokens);
                let size = field(want, "block_size", 4).as_u64().unwrap();
                assert_eq!(u64::from(stored.block_size), size);
                assert_eq!(stored.adapter_id, field(want, "lora_id", 5).as_i64());
                assert_eq!(
                    stored.adapter.as_deref(),
                    field(want, "lora_name", 7).as_str()
                );
                assert_eq!(
                    (stored.tier, stored.kind, stored.group),
                    (Tier::Device, GroupKind::Full, 0)
                );
            }
        }
    }

    #[test]
    fn what_engines_sent_is_what_another_decoder_reads() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/vllm");
        let Ok(entries) = std::fs::read_dir(&folder) else {
            eprintln!("skipped: {} absent", folder.display());
            return;
        };
        let mut read = 0;
        for path in entries.map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.starts_with("kv_events") || !name.ends_with(".jsonl") {
                continue;
            }
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let line: Json = serde_json::from_str(line).unwrap();
                let parts: Vec<Vec<u8>> = line["frames_hex"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|hex| bytes(hex.as_str().unwrap()))
                    .collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let frame = parse_frames(&parts).unwrap();
                assert_eq!(frame.sequence, line["seq"].as_u64().unwrap());
                let batch = decode_batch(frame.payload, Dialect::Vllm, Limits::default()).unwrap();
                let events = line["decoded"][1].as_array().unwrap();
                assert_eq!(batch.events.len(), events.len());
                batch
                    .events
                    .iter()
                    .zip(events)
                    .for_each(|(event, want)| same(event, want));
                read += events.len();
            }
        }
        assert!(read > 1000, "{read} events");
    }
}

mod random {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_have_an_answer(bytes in vec(any::<u8>(), 0..200)) {
            let _ = decode_batch(&bytes, Dialect::Vllm, Limits::default());
            let framed = [&[0x92, 0xc0, 0x91][..], &bytes].concat();
            let _ = decode_batch(&framed, Dialect::Sglang, Limits::default());
        }

        /// A spoilt message has an answer, and never more events than it has bytes.
        #[test]
        fn spoilt_messages_have_an_answer(spoilt in vec((any::<usize>(), any::<u8>()), 1..6)) {
            let event = || stored_start(8).nil().text("GPU").nil().array(2).nil().nil();
            let mut bytes = batch(&[event(), event(), event()]);
            for (at, value) in spoilt {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if let Ok(batch) = decode_batch(&bytes, Dialect::Vllm, Limits::default()) {
                let count = batch.events.len() + (batch.unknown + batch.malformed) as usize;
                prop_assert!(count <= bytes.len());
            }
        }
    }
}
