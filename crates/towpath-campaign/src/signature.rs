//! Signature of a campaign: Ed25519 (RFC 8032) over its time of creation and its text.

use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use towpath_result::upload::hex;
use towpath_scenario::ScenarioErrors;

use crate::digits::bytes;
use crate::document::Campaign;
use crate::message::{CampaignOffer, CampaignState, MAX_CAMPAIGN_BYTES};

/// Label that separates signatures of campaigns from other uses of the key.
const LABEL: &str = "towpath campaign 1";

/// Reason why a key cannot be created or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The system has no randomness.
    #[error("the system returned no random numbers")]
    NoRandomness,
    /// Not a private key of Ed25519 in PKCS #8.
    #[error("not a private key of Ed25519 in PKCS #8")]
    Malformed,
}

/// Private key with which a collector signs campaigns.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    /// Returns a new random key in PKCS #8 (RFC 8410), to be kept in a private file.
    pub fn generate() -> Result<Vec<u8>, KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        document.map(|bytes| bytes.as_ref().to_vec()).map_err(|_| KeyError::NoRandomness)
    }

    /// Reads a key in PKCS #8.
    pub fn from_pkcs8(bytes: &[u8]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_pkcs8(bytes).map(Self).map_err(|_| KeyError::Malformed)
    }

    /// Returns the key that verifies the signatures.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        for (byte, part) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *byte = *part;
        }
        PublicKey(bytes)
    }

    /// Signs a campaign that was created at a time in microseconds since 1970.
    pub fn sign(&self, text: String, created_us: u64) -> CampaignOffer {
        let signature = hex(self.0.sign(&signed_bytes(&text, created_us)).as_ref());
        CampaignOffer { text, created_us, signature, state: CampaignState::Active }
    }
}

/// Key of a collector that verifies its campaigns. Its text is 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        hex(&key.0)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        bytes(&text).map(Self).ok_or("expected 64 hexadecimal digits")
    }
}

/// Reason why a device refuses a campaign.
#[derive(Debug, Error)]
pub enum OfferError {
    /// The signature does not belong to the key of the collector, or the text was altered.
    #[error("the signature is not that of this collector")]
    Signature,
    /// The text is longer than [`MAX_CAMPAIGN_BYTES`].
    #[error("the campaign has more than {MAX_CAMPAIGN_BYTES} bytes")]
    TooLong,
    /// The signed text is not a campaign, for instance since it is of a later version.
    #[error("{0}")]
    Text(ScenarioErrors),
}

impl CampaignOffer {
    /// Verifies the signature, and reads the campaign.
    pub fn open(&self, key: &PublicKey) -> Result<Campaign, OfferError> {
        if self.text.len() > MAX_CAMPAIGN_BYTES {
            return Err(OfferError::TooLong);
        }
        let signature = bytes::<64>(&self.signature).ok_or(OfferError::Signature)?;
        UnparsedPublicKey::new(&ED25519, &key.0)
            .verify(&signed_bytes(&self.text, self.created_us), &signature)
            .map_err(|_| OfferError::Signature)?;
        Campaign::parse("the campaign", &self.text, self.created_us).map_err(OfferError::Text)
    }
}

fn signed_bytes(text: &str, created_us: u64) -> Vec<u8> {
    format!("{LABEL}\n{created_us}\n{text}").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::document::EXAMPLE_STABLE;

    fn key() -> SigningKey {
        SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap()
    }

    #[test]
    fn a_signed_campaign_opens_with_the_key_of_its_collector_only() {
        let (ours, others) = (key(), key());
        let offer = ours.sign(EXAMPLE_STABLE.to_owned(), 5_000_000);
        assert!(offer.open(&ours.public()).is_ok());
        assert!(matches!(offer.open(&others.public()), Err(OfferError::Signature)));
        // The state is not signed: it can only stop a campaign.
        let paused = CampaignOffer { state: CampaignState::Paused, ..offer };
        assert!(paused.open(&ours.public()).is_ok());
    }

    #[test]
    fn a_signed_text_that_is_no_campaign_is_an_error() {
        let key = key();
        let offer = key.sign("name = 3\n".to_owned(), 0);
        assert!(matches!(offer.open(&key.public()), Err(OfferError::Text(_))));
        let offer = key.sign("#".repeat(MAX_CAMPAIGN_BYTES + 1), 0);
        assert!(matches!(offer.open(&key.public()), Err(OfferError::TooLong)));
    }

    #[test]
    fn a_damaged_private_key_is_refused() {
        let mut bytes = SigningKey::generate().unwrap();
        bytes.truncate(40);
        assert_eq!(SigningKey::from_pkcs8(&bytes).unwrap_err(), KeyError::Malformed);
        assert_eq!(SigningKey::from_pkcs8(b"").unwrap_err(), KeyError::Malformed);
    }

    proptest! {
        #[test]
        fn any_altered_bit_is_noticed(
            place in any::<proptest::sample::Index>(), bit in 0_u32..8, part in 0..3,
        ) {
            let key = key();
            let offer = key.sign(EXAMPLE_STABLE.to_owned(), 5_000_000);
            let mut altered = offer.clone();
            let flip = |text: &str| {
                let mut bytes = text.as_bytes().to_vec();
                let index = place.index(bytes.len());
                bytes[index] ^= 1 << bit;
                String::from_utf8_lossy(&bytes).into_owned()
            };
            match part {
                0 => altered.text = flip(&offer.text),
                1 => altered.signature = flip(&offer.signature),
                _ => altered.created_us ^= 1 << place.index(64),
            }
            prop_assert!(matches!(altered.open(&key.public()), Err(OfferError::Signature)));
        }

        #[test]
        fn a_public_key_reads_back(bytes in any::<[u8; 32]>(), garbage in ".{0,70}") {
            let key = PublicKey(bytes);
            prop_assert_eq!(PublicKey::try_from(key.to_string()), Ok(key));
            let _ = PublicKey::try_from(garbage);
        }
    }
}
