//! Account of the memory that a server holds for its tests.
//!
//! Every holder of memory owns a [`MemoryCharge`] for as long as it holds the memory. The account
//! therefore falls only when memory is freed, and not when its release is requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of all tests of a server, in bytes.
#[derive(Debug)]
pub struct MemoryAccount {
    held_bytes: AtomicU64,
    max_bytes: u64,
}

impl MemoryAccount {
    /// Creates an account that should not exceed `max_bytes`.
    pub fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { held_bytes: AtomicU64::new(0), max_bytes })
    }

    /// Returns the sum of all charges.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// Charges memory. The account may exceed its limit, because the memory is in use already.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> MemoryCharge {
        let charge = MemoryCharge { account: Arc::clone(self), bytes: AtomicU64::new(0) };
        charge.set(bytes);
        charge
    }

    fn is_within_limit(&self) -> bool {
        self.held_bytes() <= self.max_bytes
    }
}

/// Share of a [`MemoryAccount`]; released on drop.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: AtomicU64,
}

impl MemoryCharge {
    /// Returns the charged bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Replaces the charged bytes.
    pub fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::AcqRel);
        self.account.held_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.account.held_bytes.fetch_sub(before, Ordering::AcqRel);
    }

    /// Raises the charge to `bytes`, unless it is higher. Returns false if the account is above its
    /// limit afterwards.
    pub fn raise_to(&self, bytes: u64) -> bool {
        let before = self.bytes.fetch_max(bytes, Ordering::AcqRel);
        let growth = bytes.saturating_sub(before);
        if growth > 0 {
            self.account.held_bytes.fetch_add(growth, Ordering::AcqRel);
        }
        self.account.is_within_limit()
    }

    /// Grows the charge if the account stays within its limit; returns false otherwise.
    pub fn try_grow(&self, bytes: u64) -> bool {
        let account = &self.account;
        let add = |held: u64| held.checked_add(bytes).filter(|held| *held <= account.max_bytes);
        let has_room =
            account.held_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok();
        if has_room {
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        has_room
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.account.held_bytes.fetch_sub(self.bytes(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn concurrent_growth_is_charged_once() {
        let account = MemoryAccount::new(1_000_000);
        let charge = account.charge(10);
        thread::scope(|scope| {
            for first in 0..4 {
                let charge = &charge;
                scope.spawn(move || (first..10_000).for_each(|bytes| _ = charge.raise_to(bytes)));
            }
        });
        assert_eq!((charge.bytes(), account.held_bytes()), (9_999, 9_999));
        drop(charge);
        assert_eq!(account.held_bytes(), 0);
    }

    proptest! {
        #[test]
        fn the_account_is_the_sum_of_all_live_charges(
            steps in prop::collection::vec((0_u8..5, 0_usize..5, 0_u64..1_000), 1..100),
        ) {
            let account = MemoryAccount::new(2_000);
            let mut charges: Vec<MemoryCharge> = Vec::new();
            for (step, index, bytes) in steps {
                match (step, charges.get(index)) {
                    (0, _) => charges.push(account.charge(bytes)),
                    (1, Some(charge)) => charge.set(bytes),
                    (2, Some(charge)) => {
                        let is_within_limit = charge.raise_to(bytes);
                        prop_assert_eq!(is_within_limit, account.held_bytes() <= 2_000);
                    }
                    (3, Some(charge)) => {
                        let has_room = account.held_bytes() + bytes <= 2_000;
                        prop_assert_eq!(charge.try_grow(bytes), has_room);
                    }
                    (_, Some(_)) => drop(charges.swap_remove(index)),
                    (_, None) => {}
                }
                prop_assert_eq!(account.held_bytes(), charges.iter().map(MemoryCharge::bytes).sum::<u64>());
            }
            charges.clear();
            prop_assert_eq!(account.held_bytes(), 0);
        }
    }
}
