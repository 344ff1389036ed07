//! From what an event says of a block to the part of it that keys commit to.

use crate::{
    events::{Extra, Stored},
    keys::{Content, Key, KeySpace, Scope},
};

/// Something at a token of a block that is no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) at: usize,
    pub(crate) name: Box<[u8]>,
}

/// What a chain begins with, by the event that begins it.
pub(crate) fn root(space: &KeySpace, model: &str, stored: &Stored) -> Key {
    let unnamed;
    let model = match (&stored.adapter, stored.adapter_id) {
        (Some(name), _) => name,
        // An adapter without a name: its blocks are no answer to any request, for the base model least of all.
        (None, Some(id)) => {
            unnamed = format!("\0adapter {id}");
            &unnamed
        }
        (None, None) => model,
    };
    let texts = texts(stored, 0);
    let domain = stored.salt.as_deref().or(texts.into_iter().next());
    space.root(Scope { model, domain })
}

fn extras(stored: &Stored, block: usize) -> &[Extra] {
    // Most events have none, and the others one for each block.
    let found = stored
        .extras
        .binary_search_by_key(&block, |extras| extras.block);
    let found = found.ok().and_then(|at| stored.extras.get(at));
    found.map_or(&[], |extras| &extras.extras)
}

/// Names among the extras of a block, without the adapter's, which comes first.
fn texts(stored: &Stored, block: usize) -> Vec<&str> {
    fn text(extra: &Extra) -> Option<&str> {
        match extra {
            Extra::Text(text) => Some(text),
            _ => None,
        }
    }
    let mut texts: Vec<&str> = extras(stored, block).iter().filter_map(text).collect();
    if stored.adapter.is_some() && texts.first().copied() == stored.adapter.as_deref() {
        texts.remove(0);
    }
    texts
}

/// What else a block of an event holds besides tokens.
pub(crate) fn items(stored: &Stored, block: usize) -> Vec<Item> {
    let extras = extras(stored, block);
    if extras.is_empty() {
        return Vec::new();
    }
    let mut texts = texts(stored, block);
    let starts_chain = block == 0 && stored.parent.is_none();
    if starts_chain && stored.salt.is_none() && !texts.is_empty() {
        // The salt is in the root.
        texts.remove(0);
    }
    let named = texts.into_iter().map(|text| Item {
        at: 0,
        name: text.as_bytes().into(),
    });
    let others = extras.iter().filter_map(|extra| match extra {
        // An item that began earlier is in the keys before this one.
        Extra::Media { id, offset } => {
            let at = usize::try_from(*offset).ok()?;
            Some(Item {
                at,
                name: id.as_bytes().into(),
            })
        }
        Extra::Opaque(bytes) => Some(Item {
            at: 0,
            name: bytes.as_slice().into(),
        }),
        Extra::Text(_) => None,
    });
    let mut items: Vec<Item> = named.chain(others).collect();
    items.sort_by_key(|item| item.at);
    items
}

/// The key after `parent` and an engine's block, which is a whole number of ours.
pub(crate) fn after(space: &KeySpace, parent: Key, tokens: &[u32], items: &[Item]) -> Key {
    let size = space.block() as usize;
    if items.is_empty() {
        let blocks = tokens.chunks_exact(size);
        return blocks.fold(parent, |key, tokens| space.next(key, tokens));
    }
    let last = (tokens.len() / size).saturating_sub(1);
    let blocks = tokens.chunks_exact(size).enumerate();
    blocks.fold(parent, |key, (block, tokens)| {
        let here = items
            .iter()
            .filter(|item| (item.at / size).min(last) == block);
        let here = here.map(|item| (item.at - block * size, &*item.name));
        space.chain(key, content(space, tokens, here))
    })
}

fn content<'a>(
    space: &KeySpace,
    tokens: &[u32],
    items: impl Iterator<Item = (usize, &'a [u8])>,
) -> Content {
    let mut items = items.peekable();
    match items.peek() {
        None => space.content(tokens),
        Some(_) => space.content_with(tokens, items),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::BlockExtras, keys::Media};

    const SPACE: fn() -> KeySpace = || KeySpace::new(16, 1);

    fn stored(tokens: Vec<u32>, extras: Vec<BlockExtras>) -> Stored {
        Stored {
            tokens,
            extras,
            block_size: 32,
            ..Stored::default()
        }
    }

    fn text(text: &str) -> Extra {
        Extra::Text(text.to_owned())
    }

    #[test]
    fn an_event_begins_where_a_request_does() {
        let space = SPACE();
        let plain = stored(vec![], vec![]);
        let salted = stored(
            vec![],
            vec![BlockExtras {
                block: 0,
                extras: vec![text("food"), text("t-A")],
            }],
        );
        let adapted = Stored {
            adapter: Some("food".into()),
            adapter_id: Some(1),
            ..salted.clone()
        };
        let scope = |model, domain| space.root(Scope { model, domain });
        assert_eq!(root(&space, "m", &plain), scope("m", None));
        assert_eq!(root(&space, "m", &salted), scope("m", Some("food")));
        assert_eq!(root(&space, "m", &adapted), scope("food", Some("t-A")));
        assert!(items(&adapted, 0).is_empty());
        let sglang = Stored {
            salt: Some("t-A".into()),
            ..plain.clone()
        };
        assert_eq!(root(&space, "m", &sglang), scope("m", Some("t-A")));
        let unnamed = Stored {
            adapter_id: Some(3),
            ..plain
        };
        assert_ne!(root(&space, "m", &unnamed), scope("m", None));
    }

    #[test]
    fn media_of_an_engine_block_are_where_a_request_has_them() {
        let space = SPACE();
        let tokens: Vec<u32> = (0..65).collect();
        let media = |offset| Extra::Media {
            id: "cat".into(),
            offset,
        };
        let event = stored(
            tokens[..64].to_vec(),
            vec![
                BlockExtras {
                    block: 0,
                    extras: vec![media(20)],
                },
                BlockExtras {
                    block: 1,
                    extras: vec![media(-12)],
                },
            ],
        );
        let mut key = root(&space, "m", &event);
        for block in 0..2 {
            let tokens = &event.tokens[block * 32..(block + 1) * 32];
            key = after(&space, key, tokens, &items(&event, block));
        }
        let mut keys = Vec::new();
        let scope = Scope {
            model: "m",
            domain: None,
        };
        space.prompt(scope, &tokens, &[Media { id: "cat", at: 20 }], &mut keys);
        assert_eq!(keys.last(), Some(&key));
        space.prompt(scope, &tokens, &[], &mut keys);
        assert_ne!(keys.last(), Some(&key));
    }
}
