//! Devices of the study, each with what happens to it.

use std::fmt::Write as _;

use super::network::{COLLECTOR_V4, COLLECTOR_V6};

/// Case of a device, whose effect on the results is known before the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceCase {
    /// Wi-Fi and a cellular network that work.
    Healthy,
    /// Wi-Fi that fades, and disappears for some seconds, again and again.
    FadingWifi,
    /// No IPv4 addresses.
    Ipv6Only,
    /// No IPv6 addresses.
    Ipv4Only,
    /// A firewall that drops UDP.
    UdpBlocked,
    /// A firewall that drops all ports of test servers except 443.
    OnlyPort443,
    /// The agent is stopped in the middle of a run, and does not return.
    Leaves,
    /// The agent is killed with `kill -9` in the middle of a run, and starts again.
    Killed,
    /// The owner allows 6 MB a day, less than the campaign needs.
    Capped,
    /// The operator revokes the device during the campaign.
    Revoked,
    /// The owner deletes everything at the end.
    Forgets,
}

/// Times of a fading Wi-Fi as its host saw them, in the folder of the device.
pub(crate) const LINK_LOG: &str = "links.log";
/// Bytes per day of [`DeviceCase::Capped`].
pub(crate) const CAP_BYTES: u64 = 6_000_000;

/// Cases that a single device of the study has.
const SINGLE: [DeviceCase; 9] = [
    DeviceCase::Ipv6Only,
    DeviceCase::Ipv4Only,
    DeviceCase::UdpBlocked,
    DeviceCase::OnlyPort443,
    DeviceCase::Leaves,
    DeviceCase::Killed,
    DeviceCase::Capped,
    DeviceCase::Revoked,
    DeviceCase::Forgets,
];

/// Devices with [`DeviceCase::FadingWifi`].
const FADING: usize = 5;

/// Smallest number of devices: each case once, and one healthy device.
pub(crate) const MIN_DEVICES: usize = SINGLE.len() + FADING + 1;

/// A device of the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    /// Number from 1.
    pub(crate) number: usize,
    pub(crate) case: DeviceCase,
}

/// Returns the devices of a study.
pub(crate) fn devices(count: usize) -> Vec<Device> {
    let fading = [DeviceCase::FadingWifi; FADING];
    let special: Vec<_> = SINGLE.into_iter().chain(fading).collect();
    (1..=count)
        .map(|number| {
            let case = special.get(number - 1).copied().unwrap_or(DeviceCase::Healthy);
            Device { number, case }
        })
        .collect()
}

impl Device {
    /// Returns the host name, which is also the name on the collector.
    pub(crate) fn name(&self) -> String {
        format!("d{:02}", self.number)
    }

    pub(crate) fn wifi(&self) -> String {
        format!("wifi{}", self.number)
    }

    /// Returns true if the cellular network is a backup. Of devices with a fading Wi-Fi, all but the
    /// first one have a backup.
    pub(crate) fn has_backup(&self) -> bool {
        self.case == DeviceCase::FadingWifi && self.number > SINGLE.len() + 1
    }

    pub(crate) fn cellular(&self) -> String {
        format!("lte{}", self.number)
    }

    /// Returns the shell script of the device: it sets the network up, joins and runs the agent.
    pub(crate) fn script(&self) -> String {
        let (name, wifi, cellular) = (self.name(), self.wifi(), self.cellular());
        let mut script = format!(
            "set -u\ncd {name}\nexport HOME=$PWD XDG_STATE_HOME=$PWD/state\n\
             ip route add default dev {wifi}\n\
             ip route add default dev {cellular} metric 200\n\
             ip -6 route add default dev {wifi} metric 100\n\
             ip -6 route add default dev {cellular} metric 200\n"
        );
        let collector = match self.case {
            DeviceCase::Ipv6Only => COLLECTOR_V6,
            DeviceCase::Healthy
            | DeviceCase::FadingWifi
            | DeviceCase::Ipv4Only
            | DeviceCase::UdpBlocked
            | DeviceCase::OnlyPort443
            | DeviceCase::Leaves
            | DeviceCase::Killed
            | DeviceCase::Capped
            | DeviceCase::Revoked
            | DeviceCase::Forgets => COLLECTOR_V4,
        };
        script.push_str(&self.network_commands());
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            script,
            "agent() {{ \"$TOWPATH\" agent --no-config --config agent.toml \"$@\"; }}\n\
             agent join {collector} \"$(cat code)\" --accept 1 >> log 2>&1\n\
             agent limits --bytes-per-day {} >> log 2>&1",
            match self.case {
                DeviceCase::Capped => format!("{CAP_BYTES}"),
                DeviceCase::Healthy
                | DeviceCase::FadingWifi
                | DeviceCase::Ipv6Only
                | DeviceCase::Ipv4Only
                | DeviceCase::UdpBlocked
                | DeviceCase::OnlyPort443
                | DeviceCase::Leaves
                | DeviceCase::Killed
                | DeviceCase::Revoked
                | DeviceCase::Forgets => "1G".to_owned(),
            }
        );
        script.push_str(&self.agent_commands());
        script
    }

    /// Returns the commands that make the network of the device special.
    fn network_commands(&self) -> String {
        let (wifi, cellular) = (self.wifi(), self.cellular());
        let table = "nft add table inet fw\n\
            nft 'add chain inet fw out { type filter hook output priority 0; }'\n";
        match self.case {
            DeviceCase::Ipv6Only => {
                format!("ip -4 address flush dev {wifi}\nip -4 address flush dev {cellular}\n")
            }
            DeviceCase::Ipv4Only => {
                format!("ip -6 address flush dev {wifi}\nip -6 address flush dev {cellular}\n")
            }
            DeviceCase::UdpBlocked => {
                format!("{table}nft add rule inet fw out meta l4proto udp drop\n")
            }
            DeviceCase::OnlyPort443 => format!(
                "{table}nft 'add rule inet fw out meta l4proto {{ tcp, udp }} th dport != {{ 443, 7080 }} drop'\n"
            ),
            // An interface that was off has lost its routes.
            DeviceCase::FadingWifi => format!(
                "TZ=UTC ip -ts monitor link dev {wifi} > {LINK_LOG} 2> /dev/null &\n\
                 while sleep 0.5; do ip route replace default dev {wifi} 2> /dev/null\n\
                 ip -6 route replace default dev {wifi} metric 100 2> /dev/null; done > /dev/null &\n"
            ),
            DeviceCase::Healthy
            | DeviceCase::Leaves
            | DeviceCase::Killed
            | DeviceCase::Capped
            | DeviceCase::Revoked
            | DeviceCase::Forgets => String::new(),
        }
    }

    /// Returns the commands that run the agent to the end of the study.
    fn agent_commands(&self) -> String {
        // `agent` is a function, so its process is not `$!`: the program is started directly.
        let start = "\"$TOWPATH\" agent --no-config --config agent.toml run --json \
                     >> outcomes.jsonl 2>> log &\npid=$!\n";
        // Waits until some outcomes exist, and a further run has just begun.
        let in_a_run = "until [ \"$(wc -l < outcomes.jsonl)\" -ge 4 ]; do sleep 0.1; done\n\
                        until tail -n 1 agent.journal | grep -q '\"begin\".*\"stable\"'\n\
                        do sleep 0.05; done\nsleep 0.3\n";
        match self.case {
            DeviceCase::Healthy
            | DeviceCase::FadingWifi
            | DeviceCase::Ipv6Only
            | DeviceCase::Ipv4Only
            | DeviceCase::UdpBlocked
            | DeviceCase::OnlyPort443 => {
                format!("{start}wait $pid\necho exit $? >> log\nsleep 1000\n")
            }
            DeviceCase::Capped => format!(
                "{start}while sleep 1; do ip -s -j link > counters.new\n\
                 mv counters.new counters; done > /dev/null 2>&1\n"
            ),
            DeviceCase::Leaves => format!(
                "touch outcomes.jsonl\n{start}{in_a_run}kill -TERM $pid\nwait $pid\n\
                 echo exit $? >> log\nsleep 1000\n"
            ),
            DeviceCase::Killed => format!(
                "touch outcomes.jsonl\n{start}{in_a_run}kill -KILL $pid\nwait $pid\n\
                 echo exit $? >> log\nsleep 3\n{start}wait $pid\nsleep 1000\n"
            ),
            DeviceCase::Revoked => format!(
                "{start}until [ -e revoked ]; do sleep 0.2; done\nwait $pid\n\
                 echo exit $? >> log\nip -s -j link > counters-stopped\nsleep 30\n\
                 ip -s -j link > counters-later\nsleep 1000\n"
            ),
            DeviceCase::Forgets => format!(
                "{start}until [ -e forget ]; do sleep 0.2; done\nkill -TERM $pid\nwait $pid\n\
                 agent results --json > results.jsonl 2>> log\n\
                 agent forget --yes > forgotten 2>> log\necho exit $? >> log\ntouch done\nsleep 1000\n"
            ),
        }
    }
}
