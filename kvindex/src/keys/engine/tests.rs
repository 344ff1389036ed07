//! Against hashes that live engines published, and against CPython's own bytes.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::*;
use crate::events::Stored;

fn fixture(name: &str) -> Option<Json> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/fixtures/vllm")
        .join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(serde_json::from_str(&text).unwrap()),
        Err(_) => {
            eprintln!("skipped: {} absent", path.display());
            None
        }
    }
}

fn tokens(value: &Json) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_u64().unwrap() as u32)
        .collect()
}

fn hex(digest: &Digest) -> String {
    digest.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn published(value: &Json) -> EngineHash {
    match value.get("hex").and_then(Json::as_str) {
        Some(hex) => EngineHash(u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap()),
        None => EngineHash(value.as_u64().unwrap()),
    }
}

/// The hashes of one case that were published and are reproduced at the position that their tokens have.
fn reproduced(case: &Json, digests: &[Digest], tokens_of: &[u32], size: usize) -> (usize, usize) {
    let (mut all, mut good) = (0, 0);
    for event in case["events"].as_array().unwrap() {
        let said = tokens(&event["token_ids"]);
        for (position, hash) in event["block_hashes"].as_array().unwrap().iter().enumerate() {
            all += 1;
            let at = digests
                .iter()
                .position(|digest| digest.vllm() == published(hash));
            let same = at.is_some_and(|at| {
                tokens_of[at * size..(at + 1) * size]
                    == said[position * size..(position + 1) * size]
            });
            good += usize::from(same);
        }
    }
    (all, good)
}

#[test]
fn every_published_vllm_hash_is_reproduced() {
    let Some(vectors) = fixture("hash_vectors.json") else {
        return;
    };
    let (mut all, mut good) = (0, 0);
    for engine in vectors["engines"].as_array().unwrap() {
        let hasher = VllmHasher {
            algorithm: Algorithm::named(engine["hash_algo"].as_str().unwrap()).unwrap(),
            seed: engine["pythonhashseed"].as_str().map(str::to_owned),
            style: match engine["extra_keys_style"].as_str() {
                Some("tagged") => ExtraStyle::Tagged,
                _ => ExtraStyle::Plain,
            },
        };
        let none = hasher.none_hash().unwrap();
        assert_eq!(hex(&none), engine["none_hash_hex"].as_str().unwrap());
        let size = engine["block_size"].as_u64().unwrap() as usize;
        for case in engine["cases"].as_array().unwrap() {
            let mut ids = tokens(&case["prompt_token_ids"]);
            ids.extend(tokens(&case["output_token_ids"]));
            let extras = PromptExtras {
                adapter: None,
                salt: case["cache_salt"].as_str(),
            };
            let digests = hasher.blocks(&ids, size, extras).unwrap();
            if let Some(want) = case["block_hashes_hex"].as_array() {
                let want: Vec<&str> = want.iter().map(|hex| hex.as_str().unwrap()).collect();
                assert_eq!(
                    digests.iter().map(hex).collect::<Vec<_>>(),
                    want,
                    "{}",
                    case["name"]
                );
            }
            let (said, same) = reproduced(case, &digests, &ids, size);
            all += said;
            good += same;
        }
    }
    assert_eq!((good, all), (96, 96));
}

#[test]
fn every_sglang_page_is_reproduced() {
    let Some(vectors) = fixture("sglang_hash_vectors.json") else {
        return;
    };
    let ids = tokens(&vectors["token_ids"]);
    let size = vectors["page_size"].as_u64().unwrap() as usize;
    let list = |name: &str| -> Vec<String> {
        let values = vectors[name].as_array().unwrap();
        values
            .iter()
            .map(|value| value.as_str().unwrap().to_owned())
            .collect()
    };
    let plain = sglang_pages(&ids, size, None);
    assert_eq!(
        plain.iter().map(hex).collect::<Vec<_>>(),
        list("page_hashes_hex")
    );
    let salted = sglang_pages(&ids, size, Some("tenant-A"));
    assert_eq!(
        salted.iter().map(hex).collect::<Vec<_>>(),
        list("page_hashes_salt_tenant_A_hex")
    );
    let ints: Vec<EngineHash> = vectors["event_ints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|int| EngineHash(u64::from_ne_bytes(int.as_i64().unwrap().to_ne_bytes())))
        .collect();
    assert_eq!(plain.iter().map(Digest::sglang).collect::<Vec<_>>(), ints);
}

/// Bytes of `pickle.dumps(value, protocol=5)` and `cbor2.dumps(value, canonical=True)`.
#[test]
fn encoders_write_what_python_writes() {
    let values = Value::Tuple(vec![
        Value::Int(255),
        Value::Int(256),
        Value::Int(65_536),
        Value::Int(-1),
        Value::None,
        Value::Tuple(vec![]),
        Value::Text("é"),
    ]);
    assert_eq!(
        Encoding::Pickle.encode(&values),
        b"\x80\x05\x95\x1a\0\0\0\0\0\0\0(K\xffM\0\x01J\0\0\x01\0J\xff\xff\xff\xffN)\x8c\x02\xc3\xa9\x94t\x94."
    );
    assert_eq!(
        Encoding::Cbor.encode(&values),
        b"\x87\x18\xff\x19\x01\0\x1a\0\x01\0\0\x20\xf6\x80\x62\xc3\xa9"
    );
    let long = vec![b'x'; 300];
    assert_eq!(
        Encoding::Cbor.encode(&Value::Int(1 << 32)),
        b"\x1b\0\0\0\x01\0\0\0\0"
    );
    assert_eq!(
        Encoding::Cbor.encode(&Value::Bytes(&long))[..3],
        *b"\x59\x01\x2c"
    );
    assert_eq!(
        Encoding::Pickle.encode(&Value::Bytes(&long))[11..16],
        *b"B\x2c\x01\0\0"
    );
    assert_eq!(
        Encoding::Pickle.encode(&Value::Int(1 << 31)),
        b"\x80\x05\x95\x08\0\0\0\0\0\0\0\x8a\x05\0\0\0\x80\0."
    );
    assert_eq!(Encoding::Pickle.encode(&Value::None), b"\x80\x05N.");
}

#[test]
fn a_random_seed_cannot_be_predicted() {
    let hasher = VllmHasher {
        algorithm: Algorithm::Xxhash,
        seed: None,
        style: ExtraStyle::Tagged,
    };
    assert_eq!(hasher.none_hash(), None);
    assert_eq!(hasher.blocks(&[1; 32], 16, PromptExtras::default()), None);
    assert_eq!(Algorithm::named("sha1"), None);
}

#[test]
fn an_adapter_and_its_path_change_every_block() {
    let hasher = |style| VllmHasher {
        algorithm: Algorithm::Sha256Cbor,
        seed: None,
        style,
    };
    let blocks = |style, adapter| {
        let extras = PromptExtras {
            adapter,
            salt: None,
        };
        hasher(style).blocks(&[1; 64], 32, extras).unwrap()
    };
    let base = blocks(ExtraStyle::Tagged, None);
    let here = blocks(ExtraStyle::Tagged, Some(("food", "/a")));
    let there = blocks(ExtraStyle::Tagged, Some(("food", "/b")));
    assert!(here.iter().zip(&there).all(|(a, b)| a != b));
    assert!(here.iter().zip(&base).all(|(a, b)| a != b));
    let plain = |path| blocks(ExtraStyle::Plain, Some(("food", path)));
    assert_eq!(plain("/a"), plain("/b"));
}

/// One event of blocks of 32 equal tokens, published as the scheme hashes them.
fn event(
    scheme: &HashScheme,
    parent: Option<EngineHash>,
    tokens: Vec<u32>,
    hashes: &[Digest],
) -> Stored {
    let published = |digest: &Digest| match scheme {
        HashScheme::Vllm(_) => digest.vllm(),
        HashScheme::Sglang => digest.sglang(),
    };
    Stored {
        hashes: hashes.iter().map(published).collect(),
        parent,
        tokens,
        block_size: 32,
        ..Stored::default()
    }
}

#[test]
fn a_check_follows_chains_and_tells_what_differs() {
    let hasher = VllmHasher {
        algorithm: Algorithm::Sha256,
        seed: None,
        style: ExtraStyle::Tagged,
    };
    let ids: Vec<u32> = (0..128).collect();
    for (scheme, digests) in [
        (
            HashScheme::Vllm(hasher.clone()),
            hasher.blocks(&ids, 32, PromptExtras::default()).unwrap(),
        ),
        (HashScheme::Sglang, sglang_pages(&ids, 32, None)),
    ] {
        let counts = |same, different, untold| Checked {
            same,
            different,
            untold,
        };
        let mut check = HashCheck::new(scheme.clone(), 100);
        let root = event(&scheme, None, ids[..64].to_vec(), &digests[..2]);
        let next = event(
            &scheme,
            Some(root.hashes[1]),
            ids[64..].to_vec(),
            &digests[2..],
        );
        assert_eq!(
            check.stored(&next),
            counts(0, 0, 2),
            "nothing is known of its parent"
        );
        assert_eq!(check.stored(&root), counts(2, 0, 0));
        assert_eq!(check.stored(&next), counts(2, 0, 0));
        let mut other = root.clone();
        other.tokens[0] += 1;
        assert_eq!(check.stored(&other), counts(0, 1, 1));
        check.clear();
        assert_eq!(check.stored(&next), counts(0, 0, 2));
        let mut adapter = root.clone();
        adapter.adapter = Some("food".to_owned());
        assert_eq!(
            check.stored(&adapter),
            counts(0, 0, 2),
            "its path is not published"
        );
        // An event of a new tier says no tokens; one with fewer tokens than blocks is checked as far as it goes.
        let tier = Stored {
            tokens: vec![],
            ..root.clone()
        };
        assert_eq!(check.stored(&tier), counts(0, 0, 0));
        let short = Stored {
            tokens: ids[..40].to_vec(),
            ..root.clone()
        };
        assert_eq!(check.stored(&short), counts(1, 0, 0));
        let none = Stored {
            block_size: 0,
            ..root.clone()
        };
        assert_eq!(check.stored(&none), counts(0, 0, 0));
        // What is remembered is bounded, the oldest goes first.
        let mut small = HashCheck::new(scheme.clone(), 1);
        assert_eq!(small.stored(&root), counts(2, 0, 0));
        assert_eq!(small.stored(&next), counts(2, 0, 0));
        assert_eq!(small.stored(&next), counts(0, 0, 2));
    }
}
