//! The traffic of one test on a server: it gives back its place, however it ends.

use std::net::SocketAddr;
use std::sync::Arc;

use towpath_measure::live::{Half, HostHalf};

use super::{ServerSaid, Shared};
use crate::live::end::{End, Stream};
use crate::live::host::Before;
use crate::live::test::Test;
use crate::pace::Pace;

/// What its client reads of a test that ended without a result.
const FAILED: &str = "the server could not run the test: it has no threads left, or a defect; its \
                      half of the result is missing";

/// The traffic of one test.
pub(super) struct Course {
    shared: Arc<Shared>,
    test: Arc<Test>,
    client: Option<SocketAddr>,
    half: Option<String>,
}

impl Course {
    pub(super) fn new(shared: &Arc<Shared>, test: Arc<Test>, client: Option<SocketAddr>) -> Self {
        Self { shared: Arc::clone(shared), test, client, half: None }
    }

    pub(super) fn run(mut self, pace: &Pace, streams: Vec<Stream>) {
        let test = &self.test;
        let end = End {
            pace,
            scenario: &test.scenario,
            transport: test.plan.transport,
            settings: &test.plan.settings,
            is_client: false,
            aim: None,
        };
        let before = Before::read();
        let mut half = end.play(&streams, &before, &mut |_| {});
        drop(streams);
        if let Some(why) = test.purse.over() {
            half.host.warnings.push(format!("the server has ended the test: {why}"));
        }
        self.half = Some(half.into_text());
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let half = self.half.take().unwrap_or_else(|| {
            let warnings = vec![FAILED.to_owned()];
            Half { host: HostHalf { warnings, ..HostHalf::default() }, ..Half::default() }
                .into_text()
        });
        let (now, limits) = (self.shared.clock.now(), &self.shared.config.limits);
        self.shared.tests.end(&self.test, half, now, limits);
        self.shared.tell(ServerSaid::Ended { client: self.client });
    }
}
