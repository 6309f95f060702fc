//! Report of one end of a message session, to be joined with the other end's report. Between real
//! hosts, the ends are on different machines.

use serde::{Deserialize, Serialize};
use towpath_net::Instant;

use super::{MessageSession, MessageStream};
use crate::result::Message;
use crate::scenario::DataDirection;

/// Report of one end of a message session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExchangeReport {
    streams: Vec<StreamReport>,
    /// Framing error, if the other end sent something unexpected.
    pub broken: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StreamReport {
    is_requester: bool,
    requests: Vec<RequestReport>,
    /// Numbers of requests from the other end, and the times at which they were fully read.
    received_requests: Vec<(u32, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RequestReport {
    due_ns: u64,
    request_bytes: u32,
    reply_bytes: u32,
    ack: bool,
    warm_up: bool,
    sent_ns: Option<u64>,
    acked_ns: Option<u64>,
    replied_ns: Option<u64>,
}

impl ExchangeReport {
    /// Creates a report from the current state of `talk`.
    pub fn of(session: &MessageSession) -> Self {
        Self {
            streams: session.streams.iter().map(StreamReport::of).collect(),
            broken: session.broken().map(|broken| broken.to_string()),
        }
    }
}

impl StreamReport {
    fn of(line: &MessageStream) -> Self {
        let nanos = |at: Option<Instant>| at.map(Instant::as_nanos);
        let asked = line.requests.iter().map(|asked| RequestReport {
            due_ns: asked.request.due.as_nanos(),
            request_bytes: asked.request.request_bytes,
            reply_bytes: asked.request.reply_bytes,
            ack: asked.request.ack,
            warm_up: asked.request.warm_up,
            sent_ns: nanos(asked.sent),
            acked_ns: nanos(asked.acked),
            replied_ns: nanos(asked.replied),
        });
        let heard = line.received_requests.iter().map(|(number, at)| (*number, at.as_nanos()));
        Self {
            is_requester: line.is_requester,
            requests: asked.collect(),
            received_requests: heard.collect(),
        }
    }
}

/// Returns the records of a flow's messages by due time; times of both ends must be on one clock.
/// Without the server's report, the delivery times are unknown.
pub fn merge_reports(
    flow: u32,
    client: &ExchangeReport,
    server: Option<&ExchangeReport>,
) -> Vec<Message> {
    let mut found = Vec::new();
    for (index, one) in client.streams.iter().enumerate() {
        let other = server.and_then(|server| server.streams.get(index));
        let (direction, asks, answers) = match other {
            Some(other) if !one.is_requester => (DataDirection::Down, other, Some(one)),
            _ if one.is_requester => (DataDirection::Up, one, other),
            _ => continue,
        };
        let mut heard = answers.map_or(&[][..], |line| &line.received_requests).iter().peekable();
        for (number, asked) in (0_u32..).zip(&asks.requests) {
            // Requests on one stream are read in the order in which they were written.
            let delivered_ns = heard.next_if(|(own, _)| *own == number).map(|(_, at)| *at);
            let (answered_ns, replied_ns) = if asked.ack {
                (asked.acked_ns, asked.replied_ns)
            } else {
                (asked.replied_ns, None)
            };
            found.push(Message {
                flow,
                stream: index as u32,
                direction,
                number,
                warm_up: asked.warm_up,
                request_bytes: asked.request_bytes,
                reply_bytes: asked.reply_bytes,
                due_ns: asked.due_ns,
                sent_ns: asked.sent_ns,
                delivered_ns,
                answered_ns,
                replied_ns,
            });
        }
    }
    found.sort_by_key(|message| (message.due_ns, message.stream, message.number));
    found
}
