//! Splices: change spans of a body, leave every other byte alone.
//!
//! [`ObjectEdit`] says what should become of an object's members and finds the spans; [`Splice`] holds them and
//! makes the new body, in one piece or as a list of pieces that shares the old one.

mod members;
mod splice;

pub use members::{EditError, ObjectEdit};
pub use splice::{Overlap, Piece, Splice};

use crate::{json, request::RequestFacts};

/// The change that gives a request another model: its value is replaced, or the member is added where there is none.
///
/// # Errors
/// When `facts` are not this body's.
pub fn set_model(body: &[u8], facts: &RequestFacts, model: &str) -> Result<Splice, EditError> {
    let mut splice = Splice::new();
    match &facts.model_span {
        Some(span) if facts.model_keys == 1 => splice.replace(span.clone(), json::quote(model))?,
        Some(_) | None => {
            let edit = ObjectEdit::new().set("model", json::quote(model));
            edit.splice(body, facts.object.clone(), &mut splice)?;
        }
    }
    Ok(splice)
}

#[cfg(test)]
mod tests;
