//! Test servers register with heartbeats, and are offered to devices.

use towpath_campaign::{CampaignState, Heartbeat, HeartbeatReply, ServerList};

use crate::access::Token;
use crate::error::CollectError;
use crate::secret;
use crate::store::Store;
use crate::test_server::{AvailableServer, TestServer, TestServerRow, oldest_us};

/// Time between two heartbeats in seconds.
const HEARTBEAT_INTERVAL_S: u32 = 30;

impl Store {
    /// Returns all test servers in order of their names, those with revoked tokens last.
    pub async fn test_servers(&self) -> Result<Vec<TestServer>, CollectError> {
        self.catalogue.test_servers().await
    }

    /// Stores a valid heartbeat. The first one of a server creates its key.
    pub(crate) async fn note_heartbeat(
        &self,
        server: &Token,
        heartbeat: Heartbeat,
        now_us: i64,
    ) -> Result<HeartbeatReply, CollectError> {
        let row = TestServerRow {
            token: server.id.clone(),
            heartbeat,
            access_key: secret::random()?,
            seen_us: now_us,
        };
        let access_key = self.catalogue.note_heartbeat(&row).await?;
        let name = server.name.clone();
        Ok(HeartbeatReply { name, access_key, interval_s: HEARTBEAT_INTERVAL_S })
    }

    /// Returns the servers of an active campaign that sent a heartbeat recently, with the access of
    /// a device.
    pub(crate) async fn offered_servers(
        &self,
        device: &Token,
        campaign: &str,
        now_us: i64,
    ) -> Result<ServerList, CollectError> {
        let entry = self.campaign(campaign, now_us).await?;
        if entry.state != CampaignState::Active {
            return Ok(ServerList { servers: Vec::new() });
        }
        let named = &entry.campaign.servers;
        let is_named = |server: &AvailableServer| {
            let hosts = &server.row.heartbeat.hosts;
            named.is_empty()
                || named.contains(&server.name)
                || hosts.iter().any(|host| named.contains(host))
        };
        let available = self.catalogue.available_servers(oldest_us(now_us)).await?;
        let offers = available
            .into_iter()
            .filter(is_named)
            .filter_map(|server| server.offer(device, &entry.campaign, now_us));
        Ok(ServerList { servers: offers.collect() })
    }
}
