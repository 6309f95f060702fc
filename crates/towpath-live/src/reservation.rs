//! Bytes of tests that are reserved from access grants.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_scenario::Scenario;

use crate::protocol::{AdmissionError, GrantAccounts, ProvedGrant, TestPlan};

/// Accounts of all grants, shared with the reservations of tests.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedGrantAccounts(Arc<Mutex<GrantAccounts>>);

impl SharedGrantAccounts {
    fn lock(&self) -> MutexGuard<'_, GrantAccounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the bytes of a plan. `now_s` is in seconds since 1970.
    pub(crate) fn reserve(
        &self,
        grant: &ProvedGrant,
        (plan, scenario): (&TestPlan, &Scenario),
        now_s: u64,
    ) -> Result<GrantReservation, AdmissionError> {
        let bytes = self.lock().reserve(grant, (plan, scenario), now_s)?;
        let (accounts, grant) = (self.clone(), grant.clone());
        Ok(GrantReservation { accounts, grant, bytes, is_consumed: false })
    }
}

/// Bytes of one test, reserved from its grant. On drop, they are returned unless they were consumed.
#[derive(Debug)]
pub(crate) struct GrantReservation {
    accounts: SharedGrantAccounts,
    grant: ProvedGrant,
    bytes: u64,
    is_consumed: bool,
}

impl GrantReservation {
    /// Returns the number of reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the reservation of a test whose traffic begins.
    pub(crate) fn consume(mut self) {
        self.is_consumed = true;
    }
}

impl Drop for GrantReservation {
    fn drop(&mut self) {
        if !self.is_consumed {
            self.accounts.lock().release(&self.grant, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_campaign::{AccessGrant, AccessKey};
    use towpath_scenario::Transport;

    use super::*;
    use crate::protocol::{ServerAccess, ServerLimits, TransferSettings};

    #[test]
    fn bytes_of_a_test_return_to_the_grant_unless_its_traffic_has_begun() {
        let scenario = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.p]\n\
            between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
            pattern = \"bulk\"\nsize = \"1 MB\"\n";
        let settings = TransferSettings::default();
        let plan = TestPlan { scenario: scenario.to_owned(), transport: Transport::Tcp, settings };
        let scenario = ServerLimits::default().admit(&plan).unwrap();
        let (server, device) = ("eu-1".to_owned(), "a7f3".to_owned());
        let grant =
            AccessGrant { server: server.clone(), device, expires_s: 2, max_bytes: 2_000_000 };
        let access = ServerAccess { name: server, key: AccessKey::new([7; 32]) };
        let proved = access.accept(&grant.to_string(), 1).unwrap();
        let accounts = SharedGrantAccounts::default();
        let reserve = || accounts.reserve(&proved, (&plan, &scenario), 1);
        for _ in 0..3 {
            assert_eq!(reserve().unwrap().bytes(), 1_625_000);
        }
        reserve().unwrap().consume();
        assert!(reserve().unwrap_err().reason.contains("375 kB left"));
    }
}
