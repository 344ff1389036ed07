//! Secrets: where they are, never what they are.

use std::{fmt, path::PathBuf};

use serde::Serialize;

use crate::scalar::env_reference;

/// Where a secret comes from. Its value is in no configuration, message or view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Secret {
    /// The content of a file, without white space at its ends.
    File(PathBuf),
    /// The value of an environment variable.
    Env(String),
}

/// A secret that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretError {
    what: String,
}

impl fmt::Display for SecretError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.what)
    }
}

impl std::error::Error for SecretError {}

impl Secret {
    /// From a file, else from a reference such as `${env:NAME}`.
    pub(crate) fn of(file: Option<&str>, reference: Option<&str>) -> Option<Secret> {
        if let Some(path) = file {
            return Some(Secret::File(path.into()));
        }
        let name = env_reference(reference?).ok()?;
        Some(Secret::Env(name.to_owned()))
    }

    /// Reads the secret. It blocks for as long as reading a file does.
    ///
    /// # Errors
    /// When the file or the variable is not there, is no text, or is empty.
    pub fn read(&self) -> Result<String, SecretError> {
        let (from, value) = match self {
            Secret::File(path) => {
                let value = std::fs::read_to_string(path).map_err(|error| error.to_string());
                (format!("file {}", path.display()), value)
            }
            Secret::Env(name) => {
                let value = std::env::var(name).map_err(|error| match error {
                    std::env::VarError::NotPresent => "not set".to_owned(),
                    std::env::VarError::NotUnicode(_) => "not a text".to_owned(),
                });
                (format!("environment variable {name}"), value)
            }
        };
        let fail = |why: String| SecretError {
            what: format!("secret from {from}: {why}"),
        };
        let value = value.map_err(fail)?;
        match value.trim() {
            "" => Err(fail("empty".to_owned())),
            value => Ok(value.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_from_a_file_has_no_line_break() {
        let path = std::env::temp_dir().join(format!("wicketgate-secret-{}", std::process::id()));
        std::fs::write(&path, "  token-1\n").unwrap();
        let secret = Secret::File(path.clone());
        assert_eq!(secret.read().as_deref(), Ok("token-1"));
        std::fs::write(&path, "\n").unwrap();
        let said = secret.read().unwrap_err().to_string();
        assert_eq!(said, format!("secret from file {}: empty", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert!(secret.read().is_err());
    }

    #[test]
    fn a_secret_from_the_environment() {
        // Cargo sets this one for every test.
        let secret = Secret::Env("CARGO_PKG_NAME".to_owned());
        assert_eq!(secret.read().as_deref(), Ok("wicketgate-config"));
        let missing = Secret::Env("WICKETGATE_NO_SUCH_VARIABLE".to_owned());
        assert_eq!(
            missing.read().unwrap_err().to_string(),
            "secret from environment variable WICKETGATE_NO_SUCH_VARIABLE: not set"
        );
    }
}
