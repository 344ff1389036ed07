//! Files that are wrong with what is said of them, and files that are right with what they come to.
//!
//! `BLESS=1 cargo test -p wicketgate-config --test fixtures` writes what is said now; read the difference then.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics has failed, which is its job"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use wicketgate_config::{Config, Errors, Warning};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|ext| ext == "yaml"))
        .collect();
    files.sort();
    files
}

fn parse(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
    let name = path.file_name().unwrap().to_string_lossy();
    Config::parse(&fs::read_to_string(path).unwrap(), &name)
}

/// What differs from the file beside the fixture, which must end with this extension.
fn difference(path: &Path, extension: &str, said: &str) -> Option<String> {
    let beside = path.with_extension(extension);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&beside, said).unwrap();
    }
    let expected = fs::read_to_string(&beside).unwrap_or_default();
    (expected != said).then(|| format!("{}:\nexpected\n{expected}\nsaid\n{said}", path.display()))
}

#[test]
fn every_wrong_file_is_refused_in_these_words() {
    let files = files("wrong");
    assert!(files.len() >= 50, "{}", files.len());
    let mut different = Vec::new();
    for path in files {
        match parse(&path) {
            Ok(_) => panic!("{} was accepted", path.display()),
            Err(errors) => different.extend(difference(&path, "err", &format!("{errors}\n"))),
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn every_right_file_comes_to_this() {
    let files = files("good");
    let mut different = Vec::new();
    for path in files
        .iter()
        .filter(|path| !path.to_string_lossy().ends_with(".effective.yaml"))
    {
        let (config, warnings) = match parse(path) {
            Ok(read) => read,
            Err(errors) => panic!("{errors}"),
        };
        let effective = config.effective_yaml();
        let (again, _) = Config::parse(&effective, "effective").unwrap();
        assert_eq!(again, config, "{}", path.display());
        assert_eq!(again.effective_yaml(), effective);
        let name = path.file_name().unwrap().to_string_lossy();
        let warned: String = warnings
            .iter()
            .map(|warning| format!("# {}\n", warning.shown(&name)))
            .collect();
        different.extend(difference(
            path,
            "effective.yaml",
            &format!("{warned}{effective}"),
        ));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
