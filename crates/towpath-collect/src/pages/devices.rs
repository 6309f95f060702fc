//! Pages of an administrator for devices of volunteers: list, invitation, revocation.

use maud::{Markup, html};
use towpath_result::device::MAX_DEVICE_NAME_BYTES;
use towpath_result::format::number;
use towpath_result::format::text::clean;

use super::qr::qr_code;
use super::{Reader, minute_text, page};
use crate::catalogue::Session;
use crate::device::{Device, OpenInvitation};
use crate::time;

/// Longest lifetime of an invitation in days.
pub(crate) const MAX_INVITATION_DAYS: u32 = 30;
/// Lifetime of an invitation in days unless the administrator changes it.
const DEFAULT_INVITATION_DAYS: u32 = 7;

/// A new invitation, whose code is shown once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewInvitation<'a> {
    /// Name of the invited device.
    pub(crate) name: &'a str,
    /// Code for joining once.
    pub(crate) code: &'a str,
    /// Time of expiry, in microseconds since 1970.
    pub(crate) expires_us: i64,
}

/// Devices and invitations of a collector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceList<'a> {
    /// Devices, the newest first.
    pub(crate) devices: &'a [Device],
    /// Invitations that no device has used.
    pub(crate) invitations: &'a [OpenInvitation],
    /// Version of the current consent text.
    pub(crate) consent: u32,
}

/// Writes the page; `url` is the address of the site.
pub(crate) fn devices(
    list: DeviceList<'_>,
    created: Option<NewInvitation<'_>>,
    url: &str,
    session: &Session,
) -> String {
    let main = html! {
        h1 { "Devices" }
        @if let Some(created) = created { (invitation(created, url)) }
        @if list.devices.is_empty() {
            p.none { "No device has joined." }
        } @else {
            (table(list.devices, list.consent))
        }
        @if !list.invitations.is_empty() {
            section {
                h2 { "Open invitations" }
                (invitations(list.invitations, session))
            }
        }
        section {
            h2 { "Invite a device" }
            form.inline method="post" action="/devices" {
                input type="hidden" name="csrf" value=(session.csrf);
                label { "Name " input name="name" required maxlength=(MAX_DEVICE_NAME_BYTES); }
                label { "Days until the code expires "
                    input.days type="number" name="days" required min="1"
                        max=(MAX_INVITATION_DAYS) value=(DEFAULT_INVITATION_DAYS); }
                button { "Invite" }
            }
            p.about {
                "The owner of the device joins with a code, which works once. Before that, the "
                "program shows the consent text. Version " (list.consent) " is the current one. "
                "Devices that accepted an earlier version send results after their owner runs "
                code { "towpath agent consent" } "."
            }
        }
    };
    page("Devices", Reader::Session(session), &main)
}

/// Writes a new invitation: the code, the command, and the command as a QR code.
fn invitation(created: NewInvitation<'_>, url: &str) -> Markup {
    let command = format!("towpath agent join {url} {}", created.code);
    html! {
        section.notice role="status" {
            h2 { "Invitation for " (created.name) }
            p {
                "Copy it now. It is not shown again. The code works once, until "
                (time::second_text(created.expires_us)) "."
            }
            p { "Code:" }
            pre { code { (created.code) } }
            p { "On the device, its owner runs:" }
            pre { code { (command) } }
            @if let Some(code) = qr_code(&command, "QR code of the command that joins") {
                p { (code) }
                p.about { "The QR code contains this command." }
            }
        }
    }
}

fn table(devices: &[Device], consent: u32) -> Markup {
    html! {
        div.scroll {
            table.list.cards.devices {
                thead { tr {
                    th scope="col" { "name" } th scope="col" { "platform" }
                    th scope="col" { "version" } th scope="col" { "consent" }
                    th scope="col" { "joined" } th scope="col" { "last seen" }
                    th scope="col" { "runs" } th scope="col" { "size" } th scope="col" { "state" }
                } }
                tbody { @for device in devices { (row(device, consent)) } }
            }
        }
    }
}

fn row(device: &Device, current: u32) -> Markup {
    let text = |text: &str| if text.is_empty() { "–".to_owned() } else { clean(text) };
    let name = clean(&device.token.name);
    let consent = match device.consent {
        0 => "withdrawn".to_owned(),
        accepted if accepted < current => format!("{accepted}, not {current}"),
        accepted => accepted.to_string(),
    };
    html! {
        tr {
            th scope="row" { (name) }
            td.platform data-label="platform" { (text(&device.platform)) }
            td data-label="version" { (text(&device.version)) }
            td.keep data-label="consent" { (consent) }
            td.keep data-label="joined" { (minute_text(device.joined_us)) }
            td.keep data-label="last seen" {
                (device.token.used_us.map_or("never".to_owned(), minute_text))
            }
            td.n data-label="runs" { (number::count(device.runs as f64)) }
            td.keep data-label="size" { (number::bytes(device.bytes as f64)) }
            td.keep data-label="state" {
                @match device.token.revoked_us {
                    Some(at) => { "revoked " (minute_text(at)) }
                    None => {
                        a href={ "/devices/revoke?device=" (device.token.id) }
                            aria-label={ "Revoke " (name) } { "Revoke…" }
                    }
                }
            }
        }
    }
}

fn invitations(invitations: &[OpenInvitation], session: &Session) -> Markup {
    html! {
        div.scroll {
            table.list.cards {
                thead { tr {
                    th scope="col" { "name" } th scope="col" { "expires" }
                    th scope="col" { "action" }
                } }
                tbody { @for invitation in invitations {
                    tr {
                        th scope="row" { (clean(&invitation.name)) }
                        td.keep data-label="expires" {
                            (minute_text(invitation.expires_us))
                        }
                        td data-label="action" {
                            form method="post" action="/devices/invitations/end" {
                                input type="hidden" name="csrf" value=(session.csrf);
                                input type="hidden" name="name" value=(invitation.name);
                                button.plain
                                    aria-label={ "End the invitation of " (clean(&invitation.name)) } {
                                    "End"
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// Writes the page that asks before a device loses its access.
pub(crate) fn revocation(device: &Device, session: &Session) -> String {
    let name = clean(&device.token.name);
    let main = html! {
        section.narrow {
            p.crumbs { a href="/devices" { "Devices" } " / " (name) }
            h1 { "Revoke " (name) "?" }
            p {
                "The device can no longer send results. Its stored runs ("
                (number::count(device.runs as f64)) ") stay. This cannot be undone: "
                "to take part again, the device needs a new invitation."
            }
            form method="post" action="/devices/revoke" {
                input type="hidden" name="csrf" value=(session.csrf);
                input type="hidden" name="device" value=(device.token.id);
                button { "Revoke the device" }
            }
            p { a href="/devices" { "Cancel" } }
        }
    };
    page("Revoke a device", Reader::Session(session), &main)
}
