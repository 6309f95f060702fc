//! Reading of stored runs from a collector.

use serde_json::Value;
use towpath_os::COLLECTOR_TOKEN;
use towpath_result::format::text::{clean, cut};

use super::client::Client;
use super::url::CollectorUrl;
use super::{UploadArguments, read_roots, read_token};
use crate::error::CliError;

/// Fetches the catalogue's row of a run, given by the address of its page or by its identifier.
///
/// A public collector needs no token.
pub(crate) fn fetch_run(arguments: &UploadArguments, run: &str) -> Result<Value, CliError> {
    let (base, id) = match run.rsplit_once("/runs/") {
        Some((base, id)) => (base, id),
        None => match arguments.to.as_deref() {
            Some(base) => (base, run),
            None => {
                return Err(CliError::Unavailable {
                    what: format!("`{run}` is not the address of a run"),
                    hint: "give the address of its page, or the collector's with `--to URL`"
                        .to_owned(),
                });
            }
        },
    };
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(CliError::Unavailable {
            what: format!("`{id}` is not the identifier of a run"),
            hint: "it is the end of the address of the run's page".to_owned(),
        });
    }
    let url = CollectorUrl::parse(base)?;
    let has_token = arguments.token_file.is_some() || std::env::var_os(COLLECTOR_TOKEN).is_some();
    let token = has_token.then(|| read_token(arguments.token_file.as_deref())).transpose()?;
    let roots = arguments.ca.as_deref().map(read_roots).transpose()?;
    let body = Client::get(&url, token.as_ref(), roots, id);
    let body = body.map_err(|(what, hint)| CliError::Unavailable { what, hint })?;
    serde_json::from_slice(&body).map_err(|error| CliError::Unavailable {
        what: format!("the reply of `{url}` is not that of a collector: {error}"),
        hint: format!("open {} in a browser", cut(&clean(run), 200)),
    })
}
