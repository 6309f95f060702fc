//! Network of the study: a site with the collector, which forwards to two test servers, and devices
//! with a Wi-Fi and a cellular path to the site.

use std::fmt::Write as _;

use super::devices::{Device, DeviceCase};

/// Address of the collector for devices.
pub(crate) const COLLECTOR_V4: &str = "http://10.64.0.1:7080";
/// Address of the collector for devices without IPv4.
pub(crate) const COLLECTOR_V6: &str = "http://[fd74:6f77::1]:7080";
/// Seconds from the creation of the campaigns to their end.
pub(crate) const CAMPAIGN_SECONDS: u64 = 330;
/// Seconds for late reports after the end.
const GRACE_SECONDS: u64 = 60;
/// Seconds from the creation of the campaigns to the revocation of a device.
const REVOKE_AFTER_SECONDS: u64 = 60;
/// Rounds of the stable campaign.
pub(crate) const ROUNDS: u64 = 2;
/// Seconds between two losses of a fading Wi-Fi.
const FADE_PERIOD_SECONDS: u64 = 25;

/// Returns the scenario of the network.
pub(crate) fn scenario(devices: &[Device]) -> String {
    let mut text =
        "name = \"study\"\ndescription = \"Devices, a collector and two test servers\"\n\
        [hosts.site]\n[hosts.eu]\n[hosts.us]\n"
            .to_owned();
    // Writing to a `String` cannot fail.
    for device in devices {
        let _ = writeln!(text, "[hosts.{}]", device.name());
    }
    let mut path = |name: &str, [from, to]: [&str; 2], rate: u32, delay: u32, backup: bool| {
        let _ = writeln!(
            text,
            "[paths.{name}]\nbetween = [\"{from}\", \"{to}\"]\nrate = \"{rate} Mbit/s\"\n\
             delay = \"{delay} ms\"\nbackup = {backup}"
        );
    };
    path("eu", ["site", "eu"], 1_000, 5, false);
    path("us", ["site", "us"], 1_000, 40, false);
    for device in devices {
        let number = device.number as u32;
        let name = device.name();
        let hosts = [name.as_str(), "site"];
        path(&device.wifi(), hosts, 20 + number, 4 + number % 5, false);
        path(&device.cellular(), hosts, 10 + number % 7, 20 + number % 9, device.has_backup());
    }
    let first = devices.first().map(Device::name).unwrap_or_default();
    let seconds = CAMPAIGN_SECONDS + GRACE_SECONDS;
    let _ = writeln!(
        text,
        "[[flows]]\nfrom = \"{first}\"\nto = \"site\"\nrun = \"true\"\nduration = \"{seconds} s\""
    );
    for device in devices.iter().filter(|device| device.case == DeviceCase::FadingWifi) {
        text.push_str(&fading(device));
    }
    text
}

/// Returns the events of a fading Wi-Fi: the rate falls, then the interface is off for 6 s.
fn fading(device: &Device) -> String {
    let (wifi, name) = (device.wifi(), device.name());
    let mut events = String::new();
    for cycle in 0..CAMPAIGN_SECONDS / FADE_PERIOD_SECONDS {
        let start = cycle * FADE_PERIOD_SECONDS + device.number as u64 % 7;
        let event = |at: u64, change: &str| {
            format!("[[timeline]]\nat = \"{at} s\"\npath = \"{wifi}\"\n{change}\n")
        };
        let fade = "set = \"fade\"\nrate = \"1 Mbit/s\"\nover = \"4 s\"";
        events.push_str(&event(start + 8, fade));
        let down = format!("set = \"down\"\nmode = \"interface\"\nhost = \"{name}\"");
        events.push_str(&event(start + 13, &down));
        events.push_str(&event(start + 19, "set = \"up\""));
        events.push_str(&event(start + 19, "set = \"rate\"\nrate = \"20 Mbit/s\""));
    }
    events
}

/// Returns the script of a test server.
pub(crate) fn server_script(name: &str, place: &str, addresses: [&str; 2]) -> String {
    let [v4, v6] = addresses;
    format!(
        "mkdir -p {name}\nexport HOME=$PWD/{name} XDG_STATE_HOME=$PWD/{name}/state\n\
         ip route add default dev {name}\nip -6 route add default dev {name}\n\
         exec \"$TOWPATH\" server --no-config -p 443,6121 --max-tests 64 \
         --register {COLLECTOR_V4} --token-file {name}.token --place {place} \
         --announce {v4},{v6} --json > {name}/log 2>&1\n"
    )
}

/// Returns the script of the site, which forwards packets and runs the collector.
///
/// The lab's rules select the path by the source address. The collector has one address for all.
pub(crate) fn collector_script() -> String {
    format!(
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n\
         ip rule flush; ip rule add lookup main; ip -6 rule flush; ip -6 rule add lookup main\n\
         export HOME=$PWD/collector\n\
         exec \"$TOWPATH\" collect serve --no-config --dir collector --listen '[::]:7080' \
         --url {COLLECTOR_V4} --poll 5 > collector.log 2>&1\n"
    )
}

/// Returns the script that conducts the study: campaigns, the revocation, and the end.
pub(crate) fn conductor_script(devices: &[Device]) -> String {
    let with = |case| {
        let device = devices.iter().find(|device| device.case == case);
        device.map(Device::name).unwrap_or_default()
    };
    let (revoked, forgets) = (with(DeviceCase::Revoked), with(DeviceCase::Forgets));
    let rest = CAMPAIGN_SECONDS - REVOKE_AFTER_SECONDS;
    format!(
        "set -eu\nexport HOME=$PWD/collector\n\
         for device in {names}; do until [ -e $device/agent.toml ]; do sleep 0.2; done; done\n\
         end=$(date -u -d \"@$(($(date +%s) + {CAMPAIGN_SECONDS}))\" +%FT%TZ)\n\
         for mode in stable mobile; do sed \"s/END/$end/\" $mode.in > $mode.toml\n\
         \"$TOWPATH\" collect campaign create --no-config --dir collector $mode.toml; done\n\
         sleep {REVOKE_AFTER_SECONDS}\n\
         \"$TOWPATH\" collect device revoke --no-config --dir collector {revoked}\n\
         date +%s > {revoked}/revoked\n\
         sleep {rest}\nsleep {GRACE_SECONDS}\n\
         for mode in stable mobile; do \"$TOWPATH\" collect campaign show --no-config \
         --dir collector $mode --json --missing > $mode.json; done\n\
         \"$TOWPATH\" collect device list --no-config --dir collector --json > devices.json\n\
         for mode in stable mobile; do\n\
         \"$TOWPATH\" collect analyse --no-config --dir collector $mode --min-runs 3 \
         --out $mode-analysis \
         > $mode-analysis.txt\n\
         \"$TOWPATH\" collect export --no-config --dir collector --campaign $mode \
         --results $mode-results\n\
         \"$TOWPATH\" collect analyse --folder $mode-results --min-runs 3 --out $mode-again > /dev/null\n\
         done\n\
         touch {forgets}/forget\n\
         until [ -e {forgets}/done ]; do sleep 0.2; done\n",
        names = devices.iter().map(Device::name).collect::<Vec<_>>().join(" "),
    )
}

/// Campaign of stable mode; `END` is replaced by the end.
pub(crate) const STABLE: &str = "\
name = \"stable\"
description = \"Patterns, transports, families and ports, one after the other\"
mode = \"stable\"
end = END
every = \"160 s\"
jitter = \"10 s\"
rounds = 2
bytes-per-day = \"200 MB\"
families = [\"ipv4\"]

[[patterns]]
pattern = \"ping\"
families = [\"ipv4\", \"ipv6\"]
ports = [443, 6121]
transports = [\"tcp\", \"quic\"]

[[patterns]]
pattern = \"bulk\"
size = \"500 KB\"
direction = \"down\"

[[patterns]]
pattern = \"iperf\"
duration = \"2 s\"
max-bytes = \"3 MB\"
transports = [\"mptcp\"]

[[patterns]]
pattern = \"interactive\"
duration = \"3 s\"
transports = [\"mptcp\", \"mpquic\"]
";

/// Campaign of mobile mode; `END` is replaced by the end.
pub(crate) const MOBILE: &str = "\
name = \"mobile\"
description = \"How far does your Wi-Fi reach?\"
mode = \"mobile\"
end = END
every = \"200 s\"
jitter = \"30 s\"
rounds = 1
bytes-per-day = \"50 MB\"

[[patterns]]
pattern = \"interactive\"
duration = \"30 s\"
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_campaign_has_the_rounds_that_checks_expect() {
        assert!(STABLE.contains(&format!("\nrounds = {ROUNDS}\n")));
    }
}
