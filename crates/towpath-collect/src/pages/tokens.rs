//! The page of an administrator: all tokens, creation, revocation.

use maud::{Markup, html};

use super::{Reader, page};
use crate::access::{Role, Token};
use crate::catalogue::Session;
use crate::time;

/// Writes the page; `created` is a new token with its secret.
pub(crate) fn tokens(tokens: &[Token], session: &Session, created: Option<(&str, &str)>) -> String {
    let main = html! {
        h1 { "Tokens" }
        @if let Some((name, secret)) = created {
            section.notice role="status" {
                h2 { "Token " (name) }
                p { "Copy it now. It is not shown again." }
                pre { code { (secret) } }
            }
        }
        div.scroll {
            table.list.tokens {
                thead { tr {
                    th scope="col" { "name" } th scope="col" { "role" } th scope="col" { "created" }
                    th scope="col" { "last used" } th scope="col" { "state" }
                } }
                tbody { @for token in tokens { (row(token, session)) } }
            }
        }
        section {
            h2 { "New token" }
            form.inline method="post" action="/tokens" {
                input type="hidden" name="csrf" value=(session.csrf);
                label { "Name " input name="name" required maxlength="60"; }
                label { "Role "
                    select name="role" {
                        @for role in Role::GRANTED {
                            option value=(role) { (role) }
                        }
                    }
                }
                button { "Create" }
            }
            p.about {
                "An uploader adds runs and reads nothing. A viewer reads everything. "
                "An admin also manages tokens. A volunteer's device gets its token when it joins, "
                "with a code from the page " a href="/devices" { "Devices" } ". A server is a test "
                "server that registers here."
            }
        }
    };
    page("Tokens", Reader::Session(session), &main)
}

fn row(token: &Token, session: &Session) -> Markup {
    let used = token.used_us.map_or("never".to_owned(), time::second_text);
    html! {
        tr {
            th scope="row" { (token.name) }
            td { (token.role) }
            td.keep { (time::second_text(token.created_us)) }
            td.keep { (used) }
            td {
                @match token.revoked_us {
                    Some(at) => { "revoked " (time::second_text(at)) }
                    None => {
                        form method="post" action="/tokens/revoke" {
                            input type="hidden" name="csrf" value=(session.csrf);
                            input type="hidden" name="token" value=(token.id);
                            button.plain aria-label={ "Revoke " (token.name) } { "Revoke" }
                        }
                    }
                }
            }
        }
    }
}
