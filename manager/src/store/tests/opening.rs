//! The files that are opened, those that are refused and with which error, and the migration of old files.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rusqlite::Connection;
use trial_protocol::TrialJobId;

use super::{TestStore, attempt, new_trial};
use crate::code_archive::version::CodeVersion;
use crate::store::schema::{self, MIGRATIONS};
use crate::store::{Error, Store};

#[tokio::test]
async fn foreign_files_are_refused_with_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("text"), "this is a text of some length, and no database".repeat(100)).unwrap();
    Connection::open(path("stranger")).unwrap().execute_batch("CREATE TABLE cat (name)").unwrap();
    fs::create_dir(path("folder")).unwrap();
    Store::open(&path("newer")).unwrap().close().await;
    Connection::open(path("newer")).unwrap().pragma_update(None, "user_version", 99).unwrap();

    let refusal = |name: &str| Store::open(&path(name)).unwrap_err();
    assert!(matches!(refusal("text"), Error::ForeignDatabase { .. }));
    assert!(matches!(refusal("stranger"), Error::ForeignDatabase { .. }));
    assert!(matches!(refusal("folder"), Error::Open { .. }));
    assert!(matches!(refusal("no/such/folder"), Error::Lock { .. }));
    assert!(
        matches!(refusal("newer"), Error::NewerSchema { found: 99, known, .. } if known == newest_version())
    );
    for name in ["text", "stranger", "newer"] {
        assert!(refusal(name).to_string().contains(path(name).to_str().unwrap()), "{name}");
    }
    let cats = Connection::open(path("stranger")).unwrap();
    let tables: i64 =
        cats.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1, "a foreign file is not changed");
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let bed = TestStore::new();
    for sequence in 0..200 {
        bed.store
            .trials()
            .insert(vec![new_trial(&format!("t{sequence}"), sequence)])
            .await
            .unwrap();
    }
    let path = bed.path();
    bed.store.close().await;
    let mut bytes = fs::read(&path).unwrap();
    // Damages the file from the fourth page on: the header and the schema remain readable.
    bytes[3 * 4096..].fill(0x5a);
    fs::write(&path, bytes).unwrap();

    let refusal = Store::open(&path).unwrap_err();
    assert!(matches!(refusal, Error::Damaged { .. }), "{refusal}");
}

#[tokio::test]
async fn a_database_on_a_read_only_disk_is_read_if_it_is_complete() {
    let bed = TestStore::with_trial().await;
    let path = bed.path().with_file_name("100%? #1.db");
    // The first commit moves the log into the file.
    bed.store.database().probe().await.unwrap();
    fs::copy(bed.path(), &path).unwrap();
    // SQLite follows no link, so this link prevents the shared memory, as a read-only disk does, also for root.
    std::os::unix::fs::symlink("nowhere", schema::path_with_suffix(&path, "-shm")).unwrap();
    let reader = Store::open_to_read(&path).unwrap();
    assert_eq!(reader.trials().all().await.unwrap().len(), 1);

    let refusal = || Store::open_to_read(&path).unwrap_err();
    fs::write(schema::path_with_suffix(&path, "-wal"), "commits that only the log contains")
        .unwrap();
    assert!(matches!(refusal(), Error::Open { .. }));
    fs::write(schema::path_with_suffix(&path, "-wal"), "").unwrap();
    Store::open_to_read(&path).unwrap();
    let lock = fs::File::create(schema::path_with_suffix(&path, ".lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(refusal(), Error::Open { .. }), "a manager writes");
}

#[tokio::test]
async fn a_second_manager_cannot_open_the_database_until_the_first_closes_it() {
    let bed = TestStore::new();
    let path = bed.path();
    assert!(matches!(Store::open(&path).unwrap_err(), Error::InUse { .. }));
    bed.store.close().await;
    drop(Store::open(&path).unwrap());
    // Dropping the last handle closes the store, too.
    drop(Store::open(&path).unwrap());
}

#[test]
fn an_empty_file_becomes_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    fs::write(&path, "").unwrap();
    drop(Store::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    assert_eq!(schema::recognise_schema(&connection, &path).unwrap(), newest_version());
}

/// Returns the schema version of this build.
fn newest_version() -> i64 {
    MIGRATIONS.len().try_into().unwrap()
}

#[test]
fn only_missing_migrations_are_applied() {
    let steps = ["CREATE TABLE one (x)", "CREATE TABLE two (x)", "INSERT INTO one VALUES ('kept')"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let mut connection = Connection::open(&path).unwrap();
    schema::migrate(&mut connection, 0, &steps[..1]).unwrap();
    connection.execute("INSERT INTO one VALUES ('old')", []).unwrap();
    schema::migrate(&mut connection, 1, &steps).unwrap();

    let rows: String =
        connection.query_row("SELECT group_concat(x) FROM one", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, "old,kept");
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 3);
}

#[test]
fn a_failed_migration_leaves_the_database_unchanged() {
    let mut connection = Connection::open_in_memory().unwrap();
    let steps = ["CREATE TABLE one (x)", "CREATE TABLE two (x); CREATE TABLE one (x)"];
    schema::migrate(&mut connection, 0, &steps).unwrap_err();
    let tables: String = connection
        .query_row("SELECT group_concat(name) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, "one");
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 1);
}

#[tokio::test]
async fn a_migrated_old_database_can_record_code_and_images() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let mut old = Connection::open(&path).unwrap();
    schema::migrate(&mut old, 0, &MIGRATIONS[..7]).unwrap();
    drop(old);
    let store = Store::open(&path).unwrap();
    for (sequence, id) in (0..).zip(["a", "b"]) {
        store.trials().insert(vec![new_trial(id, sequence)]).await.unwrap();
    }
    let version = |sha256: &str| CodeVersion {
        sha256: sha256.to_owned(),
        files: 1,
        bytes: 2,
        cut: false,
        changed: Vec::new(),
        git: None,
    };
    assert_eq!(store.attempt_records().code_versions(9).await.unwrap(), []);
    let [first, second] = ["a", "b"].map(|id| TrialJobId::new(id).unwrap());
    let own = |id: &TrialJobId| vec![(id.clone(), attempt("a1"))];
    store.attempt_records().record_code(own(&first), version("1")).await.unwrap();
    store.attempt_records().record_code(own(&second), version("2")).await.unwrap();
    store.attempt_records().record_code(own(&second), version("1")).await.unwrap();
    let found = store.attempt_records().code(&second, &attempt("a1")).await.unwrap();
    assert_eq!(found, Some(version("2")), "the first record is kept");
    assert_eq!(store.attempt_records().image(&second, &attempt("a1")).await.unwrap(), None);
    for image in ["first@sha256:1", "later@sha256:2"] {
        let images = vec![(second.clone(), attempt("a1"), image.to_owned())];
        store.attempt_records().record_images(images).await.unwrap();
    }
    let image = store.attempt_records().image(&second, &attempt("a1")).await.unwrap();
    assert_eq!(image.as_deref(), Some("later@sha256:2"));
    let versions = store.attempt_records().code_versions(9).await.unwrap();
    let trials: Vec<_> = versions.iter().map(|row| row.trials.as_slice()).collect();
    assert_eq!(trials, [[0], [1]]);
}

/// Databases of the first release have this schema, so a released migration must never change.
#[test]
fn released_migrations_do_not_change() {
    let digest = ring::digest::digest(&ring::digest::SHA256, MIGRATIONS[0].as_bytes());
    assert_eq!(
        BASE64_STANDARD.encode(digest),
        "ajsOaXmdsldHI28JknH/YDBmUOHzzVF8Oz+4TexyP9Q=",
        "write a new migration instead"
    );
}
