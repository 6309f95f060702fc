//! The body of the fuzz target `control`: whatever a stranger sends to a server.

use super::control::Control;
use super::frame::Frames;
use super::half::Half;
use super::limits::Limits;
use super::message::{FromClient, FromServer};
use super::preamble::{Kind, Preamble, Token};
use super::secret::{Challenge, Secret};
use crate::live::Act;

/// A connection to a server from its first byte on; then the same bytes as an answer of a server.
pub fn control(data: &[u8]) {
    let limits = Limits::default();
    if let Ok(Some(preamble)) = Preamble::read(data)
        && preamble.kind == Kind::Control
    {
        let secret = preamble.flow.is_multiple_of(2).then(|| Secret::from_text(b"key")).flatten();
        let token = Some(preamble.token).filter(|token| *token != Token::NONE);
        let mut control = Control::new(token, secret, Challenge([1; 32]));
        let mut frames = Frames::default();
        frames.push(data.get(Preamble::BYTES..).unwrap_or_default());
        while let Ok(Some(message)) = frames.take::<FromClient>() {
            let acts = control.on_message(message, &limits);
            for act in &acts {
                if let Act::Admit(_) = act {
                    control.admitted(Token([2; 16]));
                }
            }
            if acts.contains(&Act::Close) {
                break;
            }
        }
    }
    let mut frames = Frames::default();
    frames.push(data);
    while let Ok(Some(_)) = frames.take::<FromServer>() {}
    let _not_understood = Half::from_text(&String::from_utf8_lossy(data));
}
