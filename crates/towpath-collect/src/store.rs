//! The collector's data: the catalogue and the records, opened together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::RwLock;

use crate::access::{Role, Token};
use crate::audit::Actor;
use crate::bucket::BucketConfig;
use crate::catalogue::Catalogue;
use crate::error::CollectError;
use crate::objects::Objects;
use crate::time;
use crate::upload::CheckedUpload;

/// Name of the SQLite file in the collector's folder.
const CATALOGUE_FILE: &str = "catalogue.sqlite";
/// Name of the folder of records.
const RECORDS_FOLDER: &str = "records";
/// Name of the file with the address at which the site was served last.
const ADDRESS_FILE: &str = "address";

/// Name of the file with the address of the bucket; absent if the records are in the folder.
const PLACE_FILE: &str = "bucket";

/// Places of the collector's data.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The collector's folder.
    pub dir: PathBuf,
    /// Address of a PostgreSQL database for the catalogue; `None` for SQLite in the folder.
    pub database: Option<String>,
    /// Bucket for the records; `None` for files in the folder.
    pub objects: Option<BucketConfig>,
}

/// The collector's data.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) catalogue: Catalogue,
    pub(crate) objects: Objects,
    /// Lock for writing while a row and its records are deleted, so that no upload of the same run
    /// comes between the two.
    pub(crate) uploads: Arc<RwLock<()>>,
    pub(crate) dir: PathBuf,
    /// Originator of actions in the audit log.
    pub(crate) actor: Actor,
}

impl Store {
    /// Opens the data, and creates whatever is missing.
    pub async fn open(config: &StoreConfig) -> Result<Self, CollectError> {
        create_private(&config.dir)?;
        let objects = if let Some(bucket) = &config.objects {
            Objects::open(bucket)?
        } else {
            let records = config.dir.join(RECORDS_FOLDER);
            create_private(&records)?;
            Objects::in_folder(&records)?
        };
        // SQLite reports a folder that it may not write as "unable to open database file".
        let path = config.dir.canonicalize().map_err(|source| unusable(&config.dir, source))?;
        let catalogue = match &config.database {
            Some(address) => Catalogue::open_address(address).await?,
            None => Catalogue::open_file(&path.join(CATALOGUE_FILE)).await?,
        };
        let store =
            Self { catalogue, objects, uploads: Arc::default(), dir: path, actor: Actor::local() };
        store.check_place(config.objects.as_ref().map(BucketConfig::address)).await?;
        Ok(store)
    }

    /// Checks that the records are where they were before, and notes the place of a new collector.
    ///
    /// `bucket` is the address of the bucket in use; `None` for the folder.
    async fn check_place(&self, bucket: Option<&str>) -> Result<(), CollectError> {
        let path = self.dir.join(PLACE_FILE);
        let noted = std::fs::read_to_string(&path).ok().map(|place| place.trim().to_owned());
        if noted.as_deref() == bucket {
            return Ok(());
        }
        // Another collector of the same database may have a folder without files.
        let is_used = noted.is_some() || has_entries(&self.dir.join(RECORDS_FOLDER));
        if is_used && self.catalogue.count().await? > 0 {
            return Err(CollectError::RecordsElsewhere { bucket: noted });
        }
        let written = match bucket {
            Some(bucket) => std::fs::write(&path, format!("{bucket}\n")),
            None => std::fs::remove_file(&path),
        };
        written.map_err(|source| unusable(&path, source))
    }

    /// Returns the same data for actions of another originator. After [`Store::open`], actions are
    /// those of the user who runs this process.
    #[must_use]
    pub fn acting_as(&self, actor: Actor) -> Self {
        Self { actor, ..self.clone() }
    }

    /// Closes the catalogue, after its transactions.
    pub async fn close(&self) {
        self.catalogue.close().await;
    }

    /// Creates a token and returns its secret, which cannot be read again.
    pub async fn create_token(&self, name: &str, role: Role) -> Result<String, CollectError> {
        let now_us = time::now_us();
        Ok(self.catalogue.create_token_by((name, role), &self.actor, now_us).await?.1)
    }

    /// Returns all tokens, the newest first.
    pub async fn tokens(&self) -> Result<Vec<Token>, CollectError> {
        self.catalogue.tokens().await
    }

    /// Revokes the token with this name or identifier, and ends its sessions.
    pub async fn revoke_token(&self, name: &str) -> Result<(), CollectError> {
        self.catalogue.revoke_token_by(name, &self.actor, time::now_us()).await
    }

    /// Creates a link that logs a browser in once, within ten minutes.
    ///
    /// The browser gets a token of its own, so that it can be revoked.
    pub async fn create_login_link(&self, role: Role) -> Result<String, CollectError> {
        let address = self.noted_address()?;
        let now_us = time::now_us();
        let name = format!("browser-{}", crate::secret::random_id()?);
        let code = self.catalogue.create_login_code((&name, role), &self.actor, now_us).await?;
        Ok(format!("{address}/login?code={code}"))
    }

    /// Returns the address at which the site was served last, without a slash at the end.
    pub(crate) fn noted_address(&self) -> Result<String, CollectError> {
        let path = self.dir.join(ADDRESS_FILE);
        let address = std::fs::read_to_string(&path);
        let address = address.map_err(|source| CollectError::NeverServed { path, source })?;
        Ok(address.trim().to_owned())
    }

    /// Notes the address of the site, for login links.
    pub(crate) fn note_address(&self, address: &str) -> Result<(), CollectError> {
        let (path, line) = (self.dir.join(ADDRESS_FILE), format!("{address}\n"));
        // A restart writes nothing, so it also works on a full disk.
        if std::fs::read_to_string(&path).is_ok_and(|noted| noted == line) {
            return Ok(());
        }
        std::fs::write(&path, line).map_err(|source| unusable(&path, source))
    }

    /// Stores a checked run; returns false if it was stored before.
    ///
    /// The records are stored first: a row of the catalogue always has its records.
    pub(crate) async fn add(
        &self,
        upload: &CheckedUpload,
        uploader: &Token,
        body: Vec<u8>,
    ) -> Result<bool, CollectError> {
        let run = &upload.entry;
        let _guard = self.uploads.read().await;
        if self.catalogue.run(&run.id).await?.is_some() {
            return Ok(false);
        }
        self.objects.put(&run.id, body).await?;
        let by = (uploader.id.as_str(), Some(uploader.role));
        let inserted = self.catalogue.insert_run(run, by, upload.facts.as_ref()).await;
        // The owner of the device may have withdrawn the consent since the start of the upload.
        if matches!(inserted, Err(CollectError::NoConsent))
            && self.catalogue.run(&run.id).await?.is_none()
        {
            self.objects.delete(&run.id).await?;
        }
        inserted
    }
}

fn has_entries(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

/// Creates a folder that only this user can read.
pub(crate) fn create_private(path: &Path) -> Result<(), CollectError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).map_err(|source| unusable(path, source))
}

pub(crate) fn unusable(path: &Path, source: std::io::Error) -> CollectError {
    CollectError::Folder { path: path.to_owned(), source }
}
