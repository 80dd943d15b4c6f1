//! What several of the tests need: a policy from text, and the workloads and traces kept beside the project.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use tallygate::policy::{self, Policy};

/// A policy from its text, which names no files.
pub(crate) fn policy(name: &str, text: &str) -> Result<Arc<Policy>, String> {
    let parsed = policy::parse(name, text, |file| panic!("{name} names a file of keys, {file}"));
    parsed.map(Arc::new).map_err(|mistakes| mistakes.to_string())
}

/// A folder beside the project, `../shared` or where `TALLYGATE_SHARED` says; says so and is `None` when it is
/// not there.
#[expect(clippy::print_stderr, reason = "a test that was skipped must not look like one that passed")]
pub(crate) fn shared(part: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let path = std::env::var_os("TALLYGATE_SHARED").map_or(beside, PathBuf::from).join(part);
    if !path.exists() {
        eprintln!("SKIPPED: needs {}, which is not there", path.display());
        return None;
    }
    Some(path)
}

/// The workloads of one seed, made by the script beside the project.
pub(crate) fn made(workloads: &Path, seed: u64) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new("python3").arg(workloads.join("make.py")).arg(folder.path()).arg(seed.to_string()).status();
    assert!(made.expect("python3 runs").success());
    folder
}
