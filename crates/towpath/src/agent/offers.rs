//! Campaigns of a collector, verified with the key that the device learned when it joined.

use std::collections::BTreeSet;

use towpath_campaign::{CampaignOffer, OfferError, PublicKey};

use super::schedule::KnownCampaign;
use crate::error::CliError;
use crate::upload::{DeviceFile, JoinedDevice};

/// Offer that is not used.
#[derive(Debug)]
pub(super) struct RefusedOffer {
    /// Position in the collector's list, from 1.
    pub(super) number: usize,
    pub(super) reason: String,
}

/// Verifies offers. A second campaign of the same name is refused.
pub(super) fn verify(
    offers: &[CampaignOffer],
    key: &PublicKey,
) -> (Vec<KnownCampaign>, Vec<RefusedOffer>) {
    let (mut known, mut refused, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (number, offer) in (1..).zip(offers) {
        let reason = match offer.open(key) {
            Ok(campaign) if names.insert(campaign.name.clone()) => {
                known.push(KnownCampaign { campaign, state: offer.state });
                continue;
            }
            Ok(campaign) => format!("`{}` is offered twice", campaign.name),
            Err(error @ (OfferError::Signature | OfferError::TooLong)) => error.to_string(),
            Err(OfferError::Text(errors)) => {
                let problem = errors.problems().first().map(|problem| problem.message.clone());
                format!("this version cannot read it: {}", problem.unwrap_or_default())
            }
        };
        refused.push(RefusedOffer { number, reason });
    }
    (known, refused)
}

/// Returns the key that verifies campaigns. Devices that joined before have none.
pub(super) fn campaign_key(
    device: &JoinedDevice,
    file: &DeviceFile,
) -> Result<PublicKey, CliError> {
    device.campaign_key.ok_or_else(|| CliError::Unavailable {
        what: format!("`{}` has no key that verifies campaigns", file.path().display()),
        hint: "the device joined before its collector had campaigns: leave with `towpath agent \
               forget`, and join again with a new code"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use towpath_campaign::{EXAMPLE_MOBILE, EXAMPLE_STABLE, SigningKey};

    use super::*;

    #[test]
    fn forged_repeated_and_unreadable_offers_are_refused() {
        let key = || SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap();
        let (ours, others) = (key(), key());
        let sign = |key: &SigningKey, text: &str| key.sign(text.to_owned(), 5_000_000);
        let altered = CampaignOffer {
            text: EXAMPLE_MOBILE.replace("200 MB", "900 GB"),
            ..sign(&ours, EXAMPLE_MOBILE)
        };
        let offers = [
            sign(&ours, EXAMPLE_STABLE),
            sign(&others, EXAMPLE_MOBILE),
            altered,
            sign(&ours, EXAMPLE_STABLE),
            sign(&ours, "later = 1\n"),
            sign(&ours, EXAMPLE_MOBILE),
        ];
        let (known, refused) = verify(&offers, &ours.public());
        let names: Vec<_> = known.iter().map(|known| known.campaign.name.as_str()).collect();
        assert_eq!(names, ["stable-1", "mobile-1"]);
        let numbers: Vec<_> = refused.iter().map(|refused| refused.number).collect();
        assert_eq!(numbers, [2, 3, 4, 5], "{refused:?}");
    }
}
