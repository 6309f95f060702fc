//! The catalogue: tokens, sessions, devices, campaigns, the audit log, and one row for each run with
//! its facts, in SQLite or PostgreSQL.
//!
//! Both databases get the same statements. Only the migrations differ, in the names of types.

mod audit;
mod campaigns;
mod devices;
mod facts;
mod invitations;
mod page;
mod runs;
mod summary;
mod test_servers;
mod tokens;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, Connection as _, Executor as _};

use crate::error::CollectError;

pub(crate) use facts::{CampaignRunRow, FactsRow, IncompleteRun};
pub(crate) use page::{RunPage, SeriesPoint, facet_value};
pub(crate) use tokens::Session;

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

/// Connections to the database. More would only wait for its locks.
const MAX_CONNECTIONS: u32 = 8;
/// Time after which a request without a connection fails.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// Connection pool of the catalogue.
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    pool: AnyPool,
    kind: DatabaseKind,
}

impl Catalogue {
    /// Opens the SQLite file, creates it if necessary, and brings its tables up to date.
    pub(crate) async fn open_file(path: &Path) -> Result<Self, CollectError> {
        let encoded: String =
            path.to_string_lossy().bytes().fold(String::new(), |mut url, byte| {
                if byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte) {
                    url.push(char::from(byte));
                } else {
                    let _ = write!(url, "%{byte:02x}"); // cannot fail
                }
                url
            });
        Self::open(&format!("sqlite://{encoded}?mode=rwc"), DatabaseKind::Sqlite).await
    }

    /// Opens a PostgreSQL database by its address, and brings its tables up to date.
    pub(crate) async fn open_address(address: &str) -> Result<Self, CollectError> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| address.starts_with(scheme)) {
            let shown = address.split("://").next().unwrap_or_default();
            return Err(CollectError::DatabaseAddress(format!("{shown}://…")));
        }
        Self::open(address, DatabaseKind::Postgres).await
    }

    async fn open(address: &str, kind: DatabaseKind) -> Result<Self, CollectError> {
        sqlx::any::install_default_drivers();
        let options = AnyPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(CONNECTION_TIMEOUT)
            // SQLite itself rolls back a transaction that finds the disk full. sqlx still counts it
            // as open, and such a connection refuses every later transaction.
            .before_acquire(|connection, _| {
                Box::pin(async move { Ok(!connection.is_in_transaction()) })
            })
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    connection
                        .execute(match kind {
                            DatabaseKind::Sqlite => SQLITE_SETTINGS,
                            DatabaseKind::Postgres => POSTGRES_SETTINGS,
                        })
                        .await?;
                    Ok(())
                })
            });
        let pool = options.connect(address).await?;
        let migrations = match kind {
            DatabaseKind::Sqlite => &SQLITE,
            DatabaseKind::Postgres => &POSTGRES,
        };
        migrations.run(&pool).await?;
        Ok(Self { pool, kind })
    }

    /// Closes all connections, after their transactions.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Returns an error if the database does not answer.
    pub(crate) async fn ping(&self) -> Result<(), CollectError> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }

    /// Removes the log of SQLite, which contains deleted rows. Best effort: a reader may use it.
    pub(crate) async fn erase_log(&self) {
        if self.kind == DatabaseKind::Postgres {
            return;
        }
        let checkpoint = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)");
        if let Err(error) = checkpoint.fetch_optional(&self.pool).await {
            tracing::warn!("cannot remove the log of the catalogue: {error}");
        }
    }

    /// Statement that begins a transaction which writes.
    ///
    /// SQLite must take the lock at once: a transaction that reads first cannot always take it
    /// later.
    fn begin_writing(&self) -> &'static str {
        match self.kind {
            DatabaseKind::Sqlite => "BEGIN IMMEDIATE",
            DatabaseKind::Postgres => "BEGIN",
        }
    }
}

/// Settings of each PostgreSQL connection: no forgotten transaction or lock stops the others.
const POSTGRES_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '10s'; \
     SET lock_timeout = '10s'";

/// Settings of each SQLite connection.
///
/// With `synchronous = FULL`, a confirmed upload survives a loss of power. With `secure_delete`, the
/// file does not contain deleted rows.
const SQLITE_SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
     PRAGMA secure_delete = ON; PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 10000; PRAGMA cache_size = -32768";
