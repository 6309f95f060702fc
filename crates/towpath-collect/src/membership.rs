//! Devices join and leave: invitations, consent, and the deletion of everything that a device sent.

use towpath_result::device::{ConsentText, ForgetReply, JoinReply, JoinRequest};

use crate::access::Token;
use crate::device::{Device, Invitation, OpenInvitation, consent_text, verify_name};
use crate::error::CollectError;
use crate::maintenance::{BATCH_RUNS, MaintenanceReport};
use crate::store::Store;
use crate::time;

impl Store {
    /// Creates a code with which one device may join under this name until `expires_us`.
    pub async fn invite_device(
        &self,
        name: &str,
        expires_us: i64,
    ) -> Result<Invitation, CollectError> {
        verify_name(name)?;
        let by = (&self.actor, time::now_us());
        let code = self.catalogue.create_join_code(name, expires_us, by).await?;
        Ok(Invitation { code: code.to_string(), url: self.noted_address().ok() })
    }

    /// Returns all devices, the newest first.
    pub async fn devices(&self) -> Result<Vec<Device>, CollectError> {
        self.catalogue.devices().await
    }

    /// Returns the invitations that a device can use at `now_us`, in order of their names.
    pub async fn open_invitations(&self, now_us: i64) -> Result<Vec<OpenInvitation>, CollectError> {
        self.catalogue.open_invitations(now_us).await
    }

    /// Revokes the device with this name, or ends its invitation. Its runs stay.
    pub async fn revoke_device(&self, name: &str) -> Result<(), CollectError> {
        self.catalogue.revoke_device(name, &self.actor, time::now_us()).await
    }

    /// Returns the current consent text.
    pub async fn consent(&self) -> Result<ConsentText, CollectError> {
        self.catalogue.consent().await
    }

    /// Stores a new consent text, in UTF-8; returns its version.
    pub async fn set_consent(&self, text: &[u8]) -> Result<u32, CollectError> {
        let text = consent_text(text).map_err(CollectError::ConsentText)?;
        self.catalogue.set_consent(&text, &self.actor, time::now_us()).await
    }

    /// Adds the device that sends a valid code, and returns its name and token.
    pub(crate) async fn join(&self, request: &JoinRequest) -> Result<JoinReply, CollectError> {
        let campaign_key = Some(self.campaign_key().await?.to_string());
        let (token, secret) = self.catalogue.join(request, time::now_us()).await?;
        Ok(JoinReply { name: token.name, token: secret, campaign_key })
    }

    /// Deletes everything that a device sent, then its access. After a failure, a repetition
    /// deletes the rest.
    ///
    /// The device can no longer add runs as soon as its consent is withdrawn. A note of each run
    /// survives until its records are gone.
    pub(crate) async fn forget_device(&self, token: &Token) -> Result<ForgetReply, CollectError> {
        let mut reply = ForgetReply { runs: 0, bytes: 0, remaining_runs: 0, remaining_objects: 0 };
        self.catalogue.withdraw_consent(&token.id, time::now_us()).await?;
        let remaining_outcomes = self.catalogue.delete_outcomes(&token.id).await?;
        loop {
            let runs = self.catalogue.runs_of(&token.id, BATCH_RUNS).await?;
            if runs.is_empty() {
                break;
            }
            for run in runs {
                let _guard = self.uploads.write().await;
                self.catalogue.delete_device_run(&run, &token.id).await?;
                self.objects.delete(&run.id).await?;
                reply.runs += 1;
                reply.bytes += run.stored_bytes.unsigned_abs();
            }
        }
        for id in self.catalogue.deleted_runs(&token.id).await? {
            let _guard = self.uploads.write().await;
            // Another token may have uploaded the same run since.
            if self.catalogue.run(&id).await?.is_none() && self.objects.exists(&id).await? {
                self.objects.delete(&id).await?;
                reply.remaining_objects += u64::from(self.objects.exists(&id).await?);
            }
        }
        reply.remaining_runs =
            self.catalogue.device(&token.id).await?.map_or(0, |device| device.runs);
        reply.remaining_runs += remaining_outcomes;
        if (reply.remaining_runs, reply.remaining_objects) == (0, 0) {
            let amounts =
                MaintenanceReport { runs: reply.runs, bytes: reply.bytes, ..<_>::default() };
            self.catalogue.remove_device(token, &amounts.to_string(), time::now_us()).await?;
        }
        self.catalogue.erase_log().await;
        Ok(reply)
    }
}
