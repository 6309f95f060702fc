//! Report of one end of a message session, to be joined with the other end's report. Between real
//! hosts, the ends are on different machines.

use serde::{Deserialize, Serialize};
use towpath_net::Instant;
use towpath_result::Message;
use towpath_scenario::DataDirection;

use super::{MessageSession, MessageStream};

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
    /// Creates a report from the current state of `session`.
    pub fn of(session: &MessageSession) -> Self {
        Self {
            streams: session.streams.iter().map(StreamReport::of).collect(),
            broken: session.broken().map(|broken| broken.to_string()),
        }
    }
}

impl StreamReport {
    fn of(stream: &MessageStream) -> Self {
        let nanos = |at: Option<Instant>| at.map(Instant::as_nanos);
        let requests = stream.requests.iter().map(|request| RequestReport {
            due_ns: request.request.due.as_nanos(),
            request_bytes: request.request.request_bytes,
            reply_bytes: request.request.reply_bytes,
            ack: request.request.ack,
            warm_up: request.request.warm_up,
            sent_ns: nanos(request.sent),
            acked_ns: nanos(request.acked),
            replied_ns: nanos(request.replied),
        });
        let received = stream.received_requests.iter().map(|(number, at)| (*number, at.as_nanos()));
        Self {
            is_requester: stream.is_requester,
            requests: requests.collect(),
            received_requests: received.collect(),
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
    let mut messages = Vec::new();
    for (index, client_stream) in client.streams.iter().enumerate() {
        let server_stream = server.and_then(|server| server.streams.get(index));
        let (direction, requester, responder) = match server_stream {
            Some(server_stream) if !client_stream.is_requester => {
                (DataDirection::Down, server_stream, Some(client_stream))
            }
            _ if client_stream.is_requester => (DataDirection::Up, client_stream, server_stream),
            _ => continue,
        };
        let mut received =
            responder.map_or(&[][..], |stream| &stream.received_requests).iter().peekable();
        for (number, request) in (0_u32..).zip(&requester.requests) {
            // Requests on one stream are read in the order in which they were written.
            let delivered_ns = received
                .next_if(|(received_number, _)| *received_number == number)
                .map(|(_, read_ns)| *read_ns);
            let (answered_ns, replied_ns) = if request.ack {
                (request.acked_ns, request.replied_ns)
            } else {
                (request.replied_ns, None)
            };
            messages.push(Message {
                flow,
                stream: index as u32,
                direction,
                number,
                warm_up: request.warm_up,
                request_bytes: request.request_bytes,
                reply_bytes: request.reply_bytes,
                due_ns: request.due_ns,
                sent_ns: request.sent_ns,
                delivered_ns,
                answered_ns,
                replied_ns,
            });
        }
    }
    messages.sort_by_key(|message| (message.due_ns, message.stream, message.number));
    messages
}
