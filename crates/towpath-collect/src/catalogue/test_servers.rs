//! Test servers: the latest heartbeat and the key of each.

use sqlx::Row as _;
use sqlx::any::AnyRow;
use towpath_campaign::Heartbeat;

use super::Catalogue;
use super::runs::AnyQuery;
use super::tokens::{TOKEN_COLUMNS, token};
use crate::access::Role;
use crate::error::CollectError;
use crate::test_server::{AvailableServer, TestServer, TestServerRow};

fn heartbeat(text: &str) -> Result<Heartbeat, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn server_row(row: &AnyRow) -> Result<TestServerRow, sqlx::Error> {
    Ok(TestServerRow {
        token: row.try_get("token")?,
        heartbeat: heartbeat(row.try_get("heartbeat")?)?,
        access_key: row.try_get("access_key")?,
        seen_us: row.try_get("seen_us")?,
    })
}

fn available_server(row: &AnyRow) -> Result<AvailableServer, sqlx::Error> {
    Ok(AvailableServer { name: row.try_get("name")?, row: server_row(row)? })
}

fn test_server(row: &AnyRow) -> Result<TestServer, sqlx::Error> {
    let text: Option<&str> = row.try_get("heartbeat")?;
    let heartbeat = text.map(heartbeat).transpose()?;
    Ok(TestServer { token: token(row)?, heartbeat, seen_us: row.try_get("seen_us")? })
}

/// Binds a row to a statement that inserts it.
fn bind(statement: &'static str, row: &TestServerRow) -> Result<AnyQuery<'static>, CollectError> {
    let TestServerRow { token, heartbeat, access_key, seen_us } = row.clone();
    let heartbeat =
        serde_json::to_string(&heartbeat).map_err(|error| sqlx::Error::Encode(error.into()))?;
    Ok(sqlx::query(statement).bind(token).bind(heartbeat).bind(access_key).bind(seen_us))
}

impl Catalogue {
    /// Stores the latest heartbeat of a server; returns the server's key. A key that exists is not
    /// replaced.
    pub(crate) async fn note_heartbeat(&self, row: &TestServerRow) -> Result<String, CollectError> {
        let statement = "INSERT INTO test_servers (token, heartbeat, access_key, seen_us) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (token) DO UPDATE \
             SET heartbeat = excluded.heartbeat, seen_us = excluded.seen_us RETURNING access_key";
        let row = bind(statement, row)?.fetch_one(&self.pool).await?;
        Ok(row.try_get("access_key")?)
    }

    /// Returns all test servers, those without a heartbeat included.
    pub(crate) async fn test_servers(&self) -> Result<Vec<TestServer>, CollectError> {
        let statement = format!(
            "SELECT {TOKEN_COLUMNS}, s.heartbeat, s.seen_us FROM tokens t \
             LEFT JOIN test_servers s ON s.token = t.id WHERE t.role = $1 \
             ORDER BY CASE WHEN t.revoked_us IS NULL THEN 0 ELSE 1 END, t.name, t.id"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(Role::Server.name());
        let rows = query.fetch_all(&self.pool).await?;
        Ok(rows.iter().map(test_server).collect::<Result<_, _>>()?)
    }

    /// Returns the servers with valid tokens whose latest heartbeat came after a time.
    pub(crate) async fn available_servers(
        &self,
        after_us: i64,
    ) -> Result<Vec<AvailableServer>, CollectError> {
        let statement = "SELECT t.name, s.token, s.heartbeat, s.access_key, s.seen_us \
             FROM test_servers s JOIN tokens t ON t.id = s.token \
             WHERE t.revoked_us IS NULL AND s.seen_us > $1 ORDER BY t.name";
        let rows = sqlx::query(statement).bind(after_us).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(available_server).collect::<Result<_, _>>()?)
    }

    /// Returns the rows of all test servers, for a backup.
    pub(crate) async fn test_server_rows(&self) -> Result<Vec<TestServerRow>, CollectError> {
        let statement =
            "SELECT token, heartbeat, access_key, seen_us FROM test_servers ORDER BY token";
        let rows = sqlx::query(statement).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(server_row).collect::<Result<_, _>>()?)
    }

    /// Adds a test server of a backup, unless it exists.
    pub(crate) async fn add_test_server(&self, row: &TestServerRow) -> Result<(), CollectError> {
        let statement = "INSERT INTO test_servers (token, heartbeat, access_key, seen_us) \
             VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
        bind(statement, row)?.execute(&self.pool).await?;
        Ok(())
    }
}
