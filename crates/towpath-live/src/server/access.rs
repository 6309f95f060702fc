//! Access of a collector's devices: the server's key, and the policy for each connection.

use std::sync::{Arc, PoisonError, RwLock};

use towpath_os::clock::unix_us;
use towpath_scenario::Scenario;

use super::ServerState;
use crate::protocol::{AdmissionError, GrantPolicy, ProvedGrant, ServerAccess, TestPlan};
use crate::reservation::GrantReservation;

/// Access for devices of a collector. Clones share the key, which may arrive and change while the
/// server runs.
#[derive(Debug, Clone, Default)]
pub struct DeviceAccess {
    access: Arc<RwLock<Option<ServerAccess>>>,
    is_required: bool,
}

impl DeviceAccess {
    /// Creates the access without a key. With `is_required`, a client needs a grant or the server's
    /// own secret.
    pub fn new(is_required: bool) -> Self {
        Self { access: Arc::default(), is_required }
    }

    /// Sets the name and the key that the collector has sent.
    pub fn set(&self, access: ServerAccess) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Some(access);
    }

    fn current(&self) -> Option<ServerAccess> {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ServerState {
    /// Returns true if a client without any secret gets no test.
    pub(super) fn requires_proof(&self) -> bool {
        let access = self.config.access.as_ref();
        self.config.secret.is_some() || access.is_some_and(|access| access.is_required)
    }

    /// Returns the admission of clients with grants at this time; `None` without a collector.
    pub(super) fn grant_policy(&self) -> Option<GrantPolicy> {
        let access = self.config.access.as_ref()?;
        let is_required = access.is_required;
        Some(GrantPolicy { access: access.current(), is_required, now_s: now_s() })
    }

    /// Reserves the bytes of a plan from the client's grant; `None` for a client without one.
    pub(super) fn reserve(
        &self,
        grant: Option<&ProvedGrant>,
        (plan, scenario): (&TestPlan, &Scenario),
    ) -> Result<Option<GrantReservation>, AdmissionError> {
        let Some(grant) = grant else { return Ok(None) };
        self.grant_accounts.reserve(grant, (plan, scenario), now_s()).map(Some)
    }
}

/// Returns the time in seconds since 1970.
fn now_s() -> u64 {
    unix_us() / 1_000_000
}
