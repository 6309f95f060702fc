//! The audit log: who did what, and what remains of a device whose owner deletes its data.

use towpath_campaign::CampaignState;
use towpath_collect::{Actor, ActorKind, AuditAction, AuditEntry, Role, StoreConfig};
use towpath_result::device::DEVICE_PATH;

use crate::devices::{contains, error_of, id_of, set_consent};
use crate::maintenance::with_store;
use crate::site::{Collector, Database, TestFolder, on_both_databases, result};

on_both_databases!(
    every_action_on_the_host_is_logged_with_its_user,
    an_action_that_failed_or_changed_nothing_is_not_logged,
    forms_are_logged_with_the_administrator,
    forgetting_a_device_removes_its_name_from_the_log,
    a_backup_keeps_the_log_and_does_not_bring_names_back,
);

/// Later than any schedule of the tests.
const NOW_US: i64 = 1_790_000_000_000_000;

fn log(config: &StoreConfig) -> Vec<AuditEntry> {
    with_store(config, async |store| store.audit_log(None).await)
}

/// Returns actions and objects in a fixed order: entries of one microsecond have none.
fn facts(entries: &[AuditEntry]) -> Vec<(&str, &str)> {
    let facts = entries.iter().map(|entry| (entry.action.name(), entry.object.as_str()));
    let mut facts: Vec<_> = facts.collect();
    facts.sort_unstable();
    facts
}

fn every_action_on_the_host_is_logged_with_its_user(collector: &Collector) {
    let (config, saved) = (collector.config(), TestFolder::create());
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    assert_eq!(uploader.upload(&result(1, |meta| meta["started_us"] = NOW_US.into())).status, 201);
    site.join("ada");
    site.invite("bob");
    site.login_code(Role::Viewer);
    let campaign = towpath_campaign::EXAMPLE_STABLE.as_bytes();
    with_store(&config, async |store| {
        store.revoke_device("bob").await?;
        store.revoke_device("ada").await?;
        store.revoke_token("lab").await?;
        store.create_campaign("example.toml", campaign, NOW_US).await?;
        for state in [CampaignState::Paused, CampaignState::Active, CampaignState::Ended] {
            store.change_campaign("stable-1", state, NOW_US).await?;
        }
        store.backup(saved.path()).await?;
        store.purge(i64::MAX, false).await?;
        store.restore(saved.path()).await
    });
    assert_eq!(set_consent(&config, "Version two.\n"), 2);
    let entries = log(&config);
    let folder = saved.path().display().to_string();
    let link = entries.iter().find(|entry| entry.action == AuditAction::LoginLinkCreated).unwrap();
    assert!(link.object.starts_with("browser-") && link.detail == "viewer", "{link:?}");
    let purge = entries.iter().find(|entry| entry.action == AuditAction::RunsPurged).unwrap();
    assert!(purge.object.starts_with("runs before ") && purge.detail.starts_with("1 run, "));
    let mut expected = vec![
        ("backup-made", folder.as_str()),
        ("backup-restored", &folder),
        ("campaign-created", "stable-1"),
        ("campaign-ended", "stable-1"),
        ("campaign-paused", "stable-1"),
        ("campaign-resumed", "stable-1"),
        ("consent-changed", "version 2"),
        ("device-invited", "ada"),
        ("device-invited", "bob"),
        ("device-revoked", "ada"),
        ("invitation-ended", "bob"),
        ("login-link-created", &link.object),
        ("runs-purged", &purge.object),
        ("token-created", "lab"),
        ("token-revoked", "lab"),
    ];
    expected.sort_unstable();
    assert_eq!(facts(&entries), expected);
    let user = &entries[0].actor;
    assert!(user.kind == ActorKind::Local && !user.name.is_empty());
    assert!(entries.iter().all(|entry| entry.actor == *user));
    for (day, count) in [("2020-01-01", entries.len()), ("2100-01-01", 0)] {
        let since = with_store(&config, async |store| store.audit_log(Some(day)).await);
        assert_eq!(since.len(), count);
    }
    let error = error_of(&config, async |store| store.audit_log(Some("yesterday")).await);
    assert!(error.to_string().contains("2026-11-28"), "{error}");
}

fn an_action_that_failed_or_changed_nothing_is_not_logged(collector: &Collector) {
    let config = collector.config();
    error_of(&config, async |store| store.revoke_token("unknown").await);
    error_of(&config, async |store| store.revoke_device("unknown").await);
    error_of(&config, async |store| store.invite_device("", i64::MAX).await);
    error_of(&config, async |store| {
        store.change_campaign("none", CampaignState::Ended, NOW_US).await
    });
    with_store(&config, async |store| store.purge(i64::MAX, false).await);
    let text = with_store(&config, async |store| store.consent().await).text;
    assert_eq!(set_consent(&config, &text), 1);
    assert_eq!(log(&config), []);
}

fn forms_are_logged_with_the_administrator(collector: &Collector) {
    let (config, site) = (collector.config(), collector.serve());
    let admin = site.browser(Role::Admin);
    let page = admin.get("/tokens").body;
    let csrf = crate::access::between(&page, "name=\"csrf\" value=\"", "\"");
    let form = [("csrf", csrf.as_str()), ("name", "lab"), ("role", "viewer")];
    assert_eq!(admin.post("/tokens", &form).status, 200);
    let revoked = [("csrf", csrf.as_str()), ("token", "lab")];
    assert_eq!(admin.post("/tokens/revoke", &revoked).status, 303);
    let boss = Actor { kind: ActorKind::Admin, name: "boss".to_owned() };
    with_store(&config, async |store| {
        store.acting_as(boss.clone()).invite_device("ada", i64::MAX).await
    });
    let entries = log(&config);
    let browser = &entries[0].object;
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.action, entry.actor.kind)).collect();
    assert_eq!(
        kinds,
        [
            (AuditAction::LoginLinkCreated, ActorKind::Local),
            (AuditAction::TokenCreated, ActorKind::Admin),
            (AuditAction::TokenRevoked, ActorKind::Admin),
            (AuditAction::DeviceInvited, ActorKind::Admin),
        ]
    );
    assert_eq!([&entries[1].actor.name, &entries[2].actor.name], [browser, browser]);
    assert_eq!(entries[3].actor, boss);
}

fn forgetting_a_device_removes_its_name_from_the_log(collector: &Collector) {
    let (config, site) = (collector.config(), collector.serve());
    // An earlier device with this name was revoked by its identifier on the page of tokens.
    site.join("ada-phone");
    let devices = with_store(&config, async |store| store.devices().await);
    with_store(&config, async |store| store.revoke_token(&devices[0].token.id).await);
    let device = site.client(&site.join("ada-phone"));
    site.join("bob-phone");
    let host = [("towpath-host", "volunteer-host-1")];
    id_of(&device.upload_with(&result(1, |_| {}), &host));
    assert_eq!(device.delete(DEVICE_PATH).status, 200);
    let entries = log(&config);
    let expected = [
        ("device-forgotten", "(forgotten device)"),
        ("device-invited", "(forgotten device)"),
        ("device-invited", "(forgotten device)"),
        ("device-invited", "bob-phone"),
        ("device-revoked", "(forgotten device)"),
    ];
    assert_eq!(facts(&entries), expected);
    let entry = entries.last().unwrap();
    assert_eq!(entry.actor, Actor { kind: ActorKind::Device, name: String::new() });
    assert!(entry.detail.starts_with("1 run, "), "{entry:?}");
    assert!(!format!("{entries:?}").contains("ada-phone"));
}

fn a_backup_keeps_the_log_and_does_not_bring_names_back(collector: &Collector) {
    let (config, site) = (collector.config(), collector.serve());
    let (first, second) = (TestFolder::create(), TestFolder::create());
    let device = site.client(&site.join("ada-phone"));
    with_store(&config, async |store| store.backup(first.path()).await);
    assert_eq!(device.delete(DEVICE_PATH).status, 200);
    with_store(&config, async |store| store.backup(second.path()).await);
    assert!(contains(first.path(), "ada-phone"));
    // The backup before the deletion changes nothing here, and the other one removes the name there.
    let other = Collector::create(Database::Sqlite).unwrap();
    for target in [&config, &other.config()] {
        for saved in [&first, &second, &first] {
            with_store(target, async |store| store.restore(saved.path()).await);
        }
        let entries = log(target);
        assert!(!format!("{entries:?}").contains("ada-phone"), "{entries:?}");
        let count = |action| entries.iter().filter(|entry| entry.action == action).count();
        assert_eq!(count(AuditAction::DeviceInvited), 1);
        assert_eq!(count(AuditAction::DeviceForgotten), 1);
        assert_eq!(count(AuditAction::BackupRestored), 3);
    }
}
