//! What `towpath collect device` and `towpath collect consent` do.

use std::fs::File;
use std::io::{Read as _, Write as _};

use serde_json::json;
use towpath_collect::{Device, OpenInvitation, Store, run_to_end};
use towpath_os::clock::unix_us;
use towpath_result::device::MAX_CONSENT_BYTES;
use towpath_result::format;

use super::server::{date, store_config};
use super::{
    ConsentCommand, DeviceCommand, InviteDeviceArguments, ListDevicesArguments,
    RevokeDeviceArguments, SetConsentArguments, ShowConsentArguments,
};
use crate::error::CliError;
use crate::ui::Ui;

/// Carries out `towpath collect device`.
pub(super) fn administer(command: &DeviceCommand, ui: &mut Ui) -> Result<(), CliError> {
    match command {
        DeviceCommand::Invite(arguments) => invite(arguments, ui),
        DeviceCommand::List(arguments) => list(arguments, ui),
        DeviceCommand::Revoke(arguments) => revoke(arguments, ui),
    }
}

/// Carries out `towpath collect consent`.
pub(super) fn consent(command: &ConsentCommand, ui: &mut Ui) -> Result<(), CliError> {
    match command {
        ConsentCommand::Show(arguments) => show_consent(arguments, ui),
        ConsentCommand::Set(arguments) => set_consent(arguments, ui),
    }
}

fn invite(arguments: &InviteDeviceArguments, ui: &mut Ui) -> Result<(), CliError> {
    let lifetime_us = u64::try_from(arguments.expires.as_micros()).unwrap_or(u64::MAX);
    let expires_us = i64::try_from(unix_us().saturating_add(lifetime_us)).unwrap_or(i64::MAX);
    let invitation = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.invite_device(arguments.name.trim(), expires_us).await
    })?;
    writeln!(ui.out, "{}", invitation.code)?;
    let url = invitation.url.as_deref().unwrap_or("URL");
    ui.progress(&format!("the code works once, until {}", date(Some(expires_us))));
    ui.progress(&format!("hint: the owner runs `towpath agent join {url} {}`", invitation.code));
    if invitation.url.is_none() {
        ui.progress("hint: URL is the collector's address: `towpath collect serve` prints it");
    }
    Ok(())
}

fn list(arguments: &ListDevicesArguments, ui: &mut Ui) -> Result<(), CliError> {
    let now_us = i64::try_from(unix_us()).unwrap_or(i64::MAX);
    let (devices, invitations) = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        Ok((store.devices().await?, store.open_invitations(now_us).await?))
    })?;
    if !arguments.json {
        writeln!(
            ui.out,
            "{:24} {:28} {:28} {:10} {:>7} {:>6} revoked",
            "name", "joined", "last seen", "version", "consent", "runs"
        )?;
    }
    for device in devices {
        let Device { token, consent, version, platform, joined_us, withdrawn_us, runs, bytes } =
            device;
        if arguments.json {
            let line = json!({
                "id": token.id,
                "name": token.name,
                "state": if token.revoked_us.is_some() { "revoked" } else { "joined" },
                "joined_us": joined_us,
                "used_us": token.used_us,
                "version": version,
                "platform": platform,
                "consent": consent,
                "withdrawn_us": withdrawn_us,
                "runs": runs,
                "bytes": bytes,
                "revoked_us": token.revoked_us,
            });
            writeln!(ui.out, "{line}")?;
            continue;
        }
        let (joined, used, revoked) =
            (date(Some(joined_us)), date(token.used_us), date(token.revoked_us));
        let version = if version.is_empty() { "-".to_owned() } else { version };
        let consent = if consent == 0 { "-".to_owned() } else { consent.to_string() };
        writeln!(
            ui.out,
            "{:24} {joined:28} {used:28} {version:10} {consent:>7} {runs:>6} {revoked}",
            token.name
        )?;
    }
    list_invitations(&invitations, arguments.json, ui)
}

/// Lists invitations below the devices.
fn list_invitations(
    invitations: &[OpenInvitation],
    json: bool,
    ui: &mut Ui,
) -> Result<(), CliError> {
    if !invitations.is_empty() && !json {
        writeln!(ui.out)?;
        writeln!(ui.out, "{:24} expires", "invited")?;
    }
    for OpenInvitation { name, expires_us } in invitations {
        if json {
            let line = json!({ "name": name, "state": "invited", "expires_us": expires_us });
            writeln!(ui.out, "{line}")?;
        } else {
            writeln!(ui.out, "{name:24} {}", date(Some(*expires_us)))?;
        }
    }
    Ok(())
}

fn revoke(arguments: &RevokeDeviceArguments, ui: &mut Ui) -> Result<(), CliError> {
    run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.revoke_device(&arguments.name).await
    })?;
    ui.progress(&format!("revoked {}", arguments.name));
    Ok(())
}

fn show_consent(arguments: &ShowConsentArguments, ui: &mut Ui) -> Result<(), CliError> {
    let consent =
        run_to_end(async { Store::open(&store_config(&arguments.store)).await?.consent().await })?;
    // An argument of a format is one line: its line ends would be escaped.
    for line in consent.text.lines() {
        writeln!(ui.out, "{line}")?;
    }
    ui.progress(&format!("version {}", consent.version));
    Ok(())
}

fn set_consent(arguments: &SetConsentArguments, ui: &mut Ui) -> Result<(), CliError> {
    let path = &arguments.file;
    let read = |source| CliError::Read { path: path.clone(), source };
    let mut text = Vec::new();
    // One more byte shows that the text is too long.
    let limit = MAX_CONSENT_BYTES as u64 + 1;
    File::open(path).map_err(read)?.take(limit).read_to_end(&mut text).map_err(read)?;
    let (version, devices) = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        Ok((store.set_consent(&text).await?, store.devices().await?))
    })?;
    ui.progress(&format!("the current version is {version}"));
    let waiting = devices
        .iter()
        .filter(|device| device.token.revoked_us.is_none() && device.consent != version);
    let waiting = waiting.count() as u64;
    if waiting > 0 {
        let devices = format::count(waiting, "device");
        ui.progress(&format!("hint: {devices} can send results after `towpath agent consent`"));
    }
    Ok(())
}
