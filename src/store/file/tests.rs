use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::FileStore;
use crate::ledger::{Grant, GrantKey, Store, StoreError};
use crate::units::{Amount, UnixTime};

fn grant(owner: &str, upto: i128) -> Grant {
    let key = GrantKey {
        budget: "monthly".into(),
        measure: "tokens".into(),
        owner: owner.into(),
        period: UnixTime::from_nanos(1_000),
    };
    Grant { key, end: UnixTime::from_nanos(2_000), upto: Amount::from_parts(upto) }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let path = folder.path().join("ledger.redb");
    (folder, path)
}

fn error(path: &Path) -> String {
    match FileStore::open(path) {
        Ok(_) => panic!("{} opens", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_was_granted_is_there_again_and_never_less() -> Result<(), StoreError> {
    let (_folder, path) = folder();
    let mut store = FileStore::open(&path)?;
    assert_eq!(store.grants()?, []);
    store.debit(&[grant("a", 10), grant("b", 7)])?;
    store.debit(&[grant("a", 30)])?;
    store.debit(&[grant("a", 20)])?;
    drop(store);
    let mut store = FileStore::open(&path)?;
    assert_eq!(store.grants()?, [grant("a", 30), grant("b", 7)], "a late grant takes nothing back");
    store.settle(&[grant("a", 25)])?;
    drop(store);
    assert_eq!(FileStore::open(&path)?.grants()?, [grant("a", 25), grant("b", 7)], "what was used, at a clean end");
    Ok(())
}

#[test]
fn what_is_over_is_forgotten_and_what_has_no_end_is_not() -> Result<(), StoreError> {
    let (_folder, path) = folder();
    let mut store = FileStore::open(&path)?;
    let forever = Grant { end: UnixTime::FAR, ..grant("session", 5) };
    store.debit(&[grant("a", 10), forever.clone()])?;
    assert_eq!(store.forget_before(UnixTime::from_nanos(2_000))?, 0);
    assert_eq!(store.forget_before(UnixTime::from_nanos(2_001))?, 1);
    assert_eq!(store.grants()?, [forever]);
    Ok(())
}

#[test]
fn accounts_are_bounded_and_those_granted_least_go_first() -> Result<(), StoreError> {
    let (_folder, path) = folder();
    let mut store = FileStore::with_most(&path, 16)?;
    let other = Grant { key: GrantKey { budget: "daily".into(), ..grant("x", 0).key }, ..grant("x", 0) };
    store.debit(std::slice::from_ref(&other))?;
    for number in 0..100 {
        store.debit(&[grant(&format!("owner-{number:03}"), 1_000 - number)])?;
    }
    let kept = store.grants()?;
    assert!(kept.len() <= 17 && kept.contains(&other), "{}", kept.len());
    assert!(kept.contains(&grant("owner-000", 1_000)), "who was granted most is kept");
    Ok(())
}

#[test]
fn one_process_at_a_time() -> Result<(), StoreError> {
    let (_folder, path) = folder();
    let _open = FileStore::open(&path)?;
    let told = error(&path);
    assert!(told.contains("in use by another process") && told.contains("ledger.redb"), "{told}");
    Ok(())
}

#[test]
fn places_where_none_can_be_are_told_with_what_to_do() {
    let (folder, path) = folder();
    let told = error(&folder.path().join("missing/ledger.redb"));
    assert!(told.contains("make its directory first"), "{told}");
    let told = error(folder.path());
    assert!(told.contains("name a file, not a directory"), "{told}");
    for foreign in [&b"SQLite format 3\0"[..], b"{}", b"r"] {
        std::fs::write(&path, foreign).expect("written");
        let told = error(&path);
        assert!(told.contains("of another kind") && told.contains("a file of its own"), "{told}");
        assert_eq!(std::fs::read(&path).expect("read"), foreign, "it is not touched");
    }
    std::fs::write(&path, b"").expect("written");
    assert!(FileStore::open(&path).is_ok(), "an empty file becomes one");
}

#[test]
fn a_database_of_somebody_else_or_of_another_version_is_not_touched() {
    let (_folder, path) = folder();
    let table: redb::TableDefinition<'_, &str, &str> = redb::TableDefinition::new("theirs");
    let database = redb::Database::create(&path).expect("made");
    let writing = database.begin_write().expect("begun");
    writing.open_table(table).expect("opened").insert("k", "v").expect("inserted");
    writing.commit().expect("committed");
    drop(database);
    let told = error(&path);
    assert!(told.contains("a database of another kind"), "{told}");

    std::fs::remove_file(&path).expect("removed");
    drop(FileStore::open(&path).expect("made"));
    let database = redb::Database::create(&path).expect("opened");
    let writing = database.begin_write().expect("begun");
    writing.open_table(super::ABOUT).expect("opened").insert(super::VERSION_KEY, 2).expect("inserted");
    writing.commit().expect("committed");
    drop(database);
    let told = error(&path);
    assert!(told.contains("version 2") && told.contains("reads version 1"), "{told}");
}

/// A file with a hundred accounts, and what they are.
fn a_hundred(path: &Path) -> (Vec<u8>, Vec<Grant>) {
    let grants: Vec<Grant> = (0..100).map(|number| grant(&format!("owner-{number:03}"), 1_000_000 + number)).collect();
    let mut store = FileStore::open(path).expect("made");
    grants.chunks(10).for_each(|batch| store.debit(batch).expect("written"));
    drop(store);
    (std::fs::read(path).expect("read"), grants)
}

/// Either the damage is told, or nothing was lost by it.
fn is_told_or_harmless(path: &Path, grants: &[Grant], what: &str) -> bool {
    match FileStore::open(path).and_then(|store| store.grants()) {
        Ok(read) => {
            assert_eq!(read, grants, "{what}: read as if it were whole");
            false
        }
        Err(error) => {
            let told = error.to_string();
            assert!(told.contains("ledger.redb") && told.len() > 30, "{what}: {told}");
            true
        }
    }
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let (_folder, path) = folder();
    let (whole, grants) = a_hundred(&path);
    let mut told = 0;
    for part in 1..24 {
        let length = whole.len() * part / 24;
        std::fs::write(&path, &whole[..length]).expect("written");
        told += u32::from(is_told_or_harmless(&path, &grants, &format!("cut to {length} bytes")));
    }
    assert!(told > 12, "{told} of 23");
}

#[test]
fn a_file_with_a_wrong_byte_is_refused_or_reads_right() {
    let (_folder, path) = folder();
    let (whole, grants) = a_hundred(&path);
    let mut told = 0;
    // Where something is written; most of a new file is room.
    let written: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    for step in 1..60 {
        let at = written[written.len() * step / 60];
        let mut damaged = whole.clone();
        damaged[at] ^= 0x5a;
        std::fs::write(&path, &damaged).expect("written");
        told += u32::from(is_told_or_harmless(&path, &grants, &format!("byte {at} wrong")));
    }
    // Much of what is written is of pages that are free again.
    assert!(told > 3, "{told} of 59");
}

#[test]
fn a_full_disk_is_an_error_that_says_so_and_is_tried_again() {
    // The one device that is always full, where there is one.
    let full = Path::new("/dev/full");
    if full.exists() {
        let told = error(full);
        assert!(told.contains("no regular file"), "{told}");
    }
    let (_folder, path) = folder();
    let store = FileStore::open(&path).expect("made");
    let no_space = store.io(&std::io::Error::from(std::io::ErrorKind::StorageFull)).to_string();
    assert!(no_space.contains("make room on its disk"), "{no_space}");
    drop(store);
    // A file that grew garbage at its end is still read, or told of.
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
    file.write_all(&[7; 5_000]).expect("written");
    drop(file);
    is_told_or_harmless(&path, &[], "longer than it should be");
}
