//! Grants in one file, in an embedded database (redb).
//!
//! One transaction a batch, durable when it returns: a crash at any moment leaves the last batch that returned, or one
//! that was about to. The file is locked while it is open. On opening it is checked as a whole, so that a damaged file is
//! refused and not read as if budgets had never been used. *Bound:* [`MOST`] accounts of each budget, as in the core;
//! beyond that an eighth of them goes, those that were granted least.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition, TableError,
    WriteTransaction,
};

use crate::ledger::{Grant, GrantKey, Store, StoreError};
use crate::units::{Amount, UnixTime};

/// The most accounts kept of one budget.
const MOST: usize = 65_536;
/// How the tables below are laid out. A file of another version is refused.
const VERSION: u64 = 1;

/// What the file is, and its version.
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("tallygate-ledger");
/// Budget, measure, owner and start of the period; end of the period and amount.
const GRANTS: TableDefinition<'_, (&str, &str, &str, i64), (i64, i128)> = TableDefinition::new("grants");

const VERSION_KEY: &str = "version";

const OTHER_PLACE: &str = "give --ledger a file of its own";
const DAMAGED: &str = "put a copy of it back, or move it away to begin all budgets anew";
const NO_ROOM: &str = "make room on its disk, or move it to one that can be written; it is tried again meanwhile";

/// A ledger in a file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    most: usize,
    /// Nothing while it has to be opened again after a failure.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    database: Database,
    /// How many accounts each budget has.
    accounts: BTreeMap<String, usize>,
}

/// How a write failed.
enum Failed {
    Storage(StorageError),
    Other(String),
}

impl<E: Into<redb::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(error) => Self::Storage(StorageError::Io(error)),
            redb::Error::Corrupted(what) => Self::Storage(StorageError::Corrupted(what)),
            other => Self::Other(other.to_string()),
        }
    }
}

impl FileStore {
    /// Opens the ledger in a file, or makes one where there is none, and checks all of it.
    ///
    /// # Errors
    /// When it is in use, damaged, of another kind or version, or cannot be read and written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::with_most(path, MOST)
    }

    fn with_most(path: &Path, most: usize) -> Result<Self, StoreError> {
        let mut store = Self { path: path.to_owned(), most, open: None };
        store.reopen()?;
        Ok(store)
    }

    fn error(&self, what: impl Into<String>, fix: &'static str) -> StoreError {
        StoreError { place: self.path.display().to_string(), what: what.into(), fix }
    }

    fn failed(&self, failed: Failed) -> StoreError {
        match failed {
            Failed::Storage(StorageError::Io(error)) => self.io(&error),
            Failed::Storage(StorageError::Corrupted(what)) => self.error(format!("it is damaged ({what})"), DAMAGED),
            Failed::Storage(other) => self.error(other.to_string(), NO_ROOM),
            Failed::Other(what) => self.error(what, NO_ROOM),
        }
    }

    fn io(&self, error: &io::Error) -> StoreError {
        let fix = match error.kind() {
            io::ErrorKind::NotFound => "make its directory first",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "let the gateway's user read and write it and its directory"
            }
            io::ErrorKind::IsADirectory => "name a file, not a directory",
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => DAMAGED,
            _ => NO_ROOM,
        };
        self.error(error.to_string(), fix)
    }

    /// Opens the file, checks it, and counts what is in it.
    fn reopen(&mut self) -> Result<&mut Open, StoreError> {
        self.open = None;
        self.refuse_what_is_no_ledger()?;
        // A file that was tampered with can surprise the database; then it is as damaged as one that it finds so itself.
        let opened = catch_unwind(AssertUnwindSafe(|| self.open_and_check()));
        let open = opened.unwrap_or_else(|_| Err(self.error("it is damaged", DAMAGED)))?;
        Ok(self.open.insert(open))
    }

    /// A file that is empty becomes a ledger; any other that does not begin as one is not touched.
    fn refuse_what_is_no_ledger(&self) -> Result<(), StoreError> {
        use io::Read as _;
        let about = match std::fs::metadata(&self.path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.io(&error)),
        };
        if about.is_dir() {
            return Err(self.io(&io::ErrorKind::IsADirectory.into()));
        }
        if !about.is_file() {
            return Err(self.error("it is no regular file", OTHER_PLACE));
        }
        let mut beginning = Vec::new();
        let file = std::fs::File::open(&self.path).map_err(|error| self.io(&error))?;
        file.take(4).read_to_end(&mut beginning).map_err(|error| self.io(&error))?;
        if beginning.is_empty() || beginning == *b"redb" {
            return Ok(());
        }
        Err(self.error("it is a file of another kind", OTHER_PLACE))
    }

    fn open_and_check(&self) -> Result<Open, StoreError> {
        let mut database = Database::create(&self.path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                self.error("it is in use by another process", "stop that one, or give each gateway a file of its own")
            }
            DatabaseError::UpgradeRequired(version) => self.error(
                format!("its database is of format {version}, which is not read here"),
                "use the version of Tallygate that wrote it, or move it away to begin all budgets anew",
            ),
            DatabaseError::Storage(StorageError::Io(error)) => self.io(&error),
            other => self.error(format!("it is damaged ({other})"), DAMAGED),
        })?;
        match database.check_integrity() {
            Ok(true) => {}
            Ok(false) => return Err(self.error("it is damaged, and what was written last is lost", DAMAGED)),
            Err(error) => return Err(self.error(format!("it is damaged ({error})"), DAMAGED)),
        }
        self.check_version(&database)?;
        let mut accounts = BTreeMap::new();
        for grant in self.read(&database)? {
            *accounts.entry(grant.key.budget).or_default() += 1;
        }
        Ok(Open { database, accounts })
    }

    /// Whether it is a ledger of this version; a new file becomes one.
    fn check_version(&self, database: &Database) -> Result<(), StoreError> {
        let read = || -> Result<Option<u64>, Failed> {
            let reading = database.begin_read()?;
            match reading.open_table(ABOUT) {
                Ok(about) => Ok(about.get(VERSION_KEY)?.map(|version| version.value())),
                Err(TableError::TableDoesNotExist(_)) if reading.list_tables()?.next().is_none() => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        match read() {
            Ok(Some(VERSION)) => Ok(()),
            Ok(Some(other)) => Err(self.error(
                format!("it is a ledger of version {other}, and this build reads version {VERSION}"),
                "use the version of Tallygate that wrote it, or move it away to begin all budgets anew",
            )),
            Ok(None) => {
                let begin = |writing: &WriteTransaction| {
                    writing.open_table(GRANTS)?;
                    writing.open_table(ABOUT)?.insert(VERSION_KEY, VERSION)?;
                    Ok(())
                };
                commit(database, begin).map_err(|failed| self.failed(failed))
            }
            Err(Failed::Storage(error)) => Err(self.failed(Failed::Storage(error))),
            Err(Failed::Other(_)) => Err(self.error("it is a database of another kind", OTHER_PLACE)),
        }
    }

    fn read(&self, database: &Database) -> Result<Vec<Grant>, StoreError> {
        let read = || -> Result<Vec<Grant>, Failed> {
            let reading = database.begin_read()?;
            let table = reading.open_table(GRANTS)?;
            let grants = table.iter()?.map(|entry| {
                let (key, value) = entry?;
                Ok(grant(key.value(), value.value()))
            });
            grants.collect()
        };
        read().map_err(|failed| self.failed(failed))
    }

    /// Writes in one transaction. After a failure the file is opened anew before anything else is done with it.
    fn write<T>(&mut self, act: impl Fn(&Open, &WriteTransaction) -> Result<T, Failed>) -> Result<T, StoreError> {
        if self.open.is_none() {
            self.reopen()?;
        }
        let Some(open) = &self.open else { return Err(self.error("it is not open", NO_ROOM)) };
        let mut done = None;
        let written = commit(&open.database, |writing| {
            done = Some(act(open, writing)?);
            Ok(())
        });
        match (written, done) {
            (Ok(()), Some(done)) => Ok(done),
            (Ok(()), None) => Err(self.error("nothing was written", NO_ROOM)),
            (Err(failed), _) => {
                self.open = None;
                Err(self.failed(failed))
            }
        }
    }

    fn put(&mut self, grants: &[Grant], upto: impl Fn(Amount, Amount) -> Amount) -> Result<(), StoreError> {
        let most = self.most;
        let accounts = self.write(|open, writing| {
            let mut accounts = open.accounts.clone();
            let mut table = writing.open_table(GRANTS)?;
            for Grant { key, end, upto: asked } in grants {
                let key = as_key(key);
                let before = table.get(key)?.map(|kept| kept.value());
                let kept = before.map_or(*asked, |(_, kept)| upto(Amount::from_parts(kept), *asked));
                table.insert(key, (end.as_nanos(), kept.parts()))?;
                if before.is_none() {
                    *accounts.entry(key.0.to_owned()).or_default() += 1;
                }
            }
            for (budget, count) in accounts.iter_mut().filter(|(_, count)| **count > most) {
                let mut kept: Vec<(i128, GrantKey)> = Vec::new();
                for entry in table.iter()? {
                    let (key, value) = entry?;
                    let grant = grant(key.value(), value.value());
                    if grant.key.budget == *budget {
                        kept.push((grant.upto.parts(), grant.key));
                    }
                }
                kept.sort();
                // An eighth at once, so that it is not read through for every newcomer.
                let surplus = kept.len().saturating_sub(most - most / 8);
                for (_, key) in kept.drain(..surplus) {
                    table.remove(as_key(&key))?;
                }
                *count = kept.len();
            }
            Ok(accounts)
        })?;
        if let Some(open) = &mut self.open {
            open.accounts = accounts;
        }
        Ok(())
    }
}

impl Store for FileStore {
    fn grants(&self) -> Result<Vec<Grant>, StoreError> {
        match &self.open {
            Some(open) => self.read(&open.database),
            None => Err(self.error("it is not open", NO_ROOM)),
        }
    }

    fn debit(&mut self, grants: &[Grant]) -> Result<(), StoreError> {
        self.put(grants, Ord::max)
    }

    fn settle(&mut self, used: &[Grant]) -> Result<(), StoreError> {
        self.put(used, |_granted, used| used)
    }

    fn forget_before(&mut self, moment: UnixTime) -> Result<u64, StoreError> {
        let over = |grant: &Grant| grant.end < moment;
        if !self.grants()?.iter().any(over) {
            return Ok(0);
        }
        let (forgotten, accounts) = self.write(|_, writing| {
            let mut table = writing.open_table(GRANTS)?;
            let mut forgotten = 0;
            table.retain(|key, value| {
                let keep = !over(&grant(key, value));
                forgotten += u64::from(!keep);
                keep
            })?;
            let mut accounts: BTreeMap<String, usize> = BTreeMap::new();
            for entry in table.iter()? {
                *accounts.entry(entry?.0.value().0.to_owned()).or_default() += 1;
            }
            Ok((forgotten, accounts))
        })?;
        if let Some(open) = &mut self.open {
            open.accounts = accounts;
        }
        Ok(forgotten)
    }
}

fn commit(database: &Database, act: impl FnOnce(&WriteTransaction) -> Result<(), Failed>) -> Result<(), Failed> {
    let mut writing = database.begin_write()?;
    writing.set_durability(Durability::Immediate)?;
    // So that opening after a crash need not read all of it.
    writing.set_quick_repair(true);
    act(&writing)?;
    Ok(writing.commit()?)
}

fn as_key(key: &GrantKey) -> (&str, &str, &str, i64) {
    (&key.budget, &key.measure, &key.owner, key.period.as_nanos())
}

fn grant((budget, measure, owner, period): (&str, &str, &str, i64), (end, upto): (i64, i128)) -> Grant {
    let (budget, measure, owner) = (budget.to_owned(), measure.to_owned(), owner.to_owned());
    let key = GrantKey { budget, measure, owner, period: UnixTime::from_nanos(period) };
    Grant { key, end: UnixTime::from_nanos(end), upto: Amount::from_parts(upto) }
}

#[cfg(test)]
mod tests;
