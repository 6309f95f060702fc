//! Address of a bucket, and its client with the settings of the environment.
//!
//! Keys come from the environment only, and no error contains them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use reqwest::Url;

use super::super::store::StorageError;
use super::root_cause;

/// Time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time of one request with its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the first request after which none is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time between two requests.
const MAX_BACKOFF: Duration = Duration::from_secs(4);
/// Number of times that a request is repeated.
const MAX_RETRIES: usize = 8;

const ACCESS_KEY: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";
/// Names of the endpoint, the more specific first, as in the tools of AWS.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Variables of the environment that concern S3.
struct Settings(BTreeMap<String, String>);

impl Settings {
    fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let pairs = environment.into_iter().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            (name.starts_with("AWS_") && !value.is_empty()).then_some((name, value))
        });
        Self(pairs.collect())
    }

    fn first(&self, names: &[&str]) -> Option<&String> {
        names.iter().find_map(|name| self.0.get(*name))
    }

    fn required(&self, name: &'static str) -> Result<&String, StorageError> {
        self.0.get(name).ok_or(StorageError::NotSet(name))
    }
}

/// Parses `s3://BUCKET/PREFIX`; returns the name of the bucket and the prefix, which may be empty.
pub(super) fn parse_url(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let has_only = |text: &str, marks: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
    };
    let is_bucket = (3..=63).contains(&bucket.len()) && has_only(bucket, b".-_");
    let is_folder =
        |part: &str| !part.is_empty() && part != "." && part != ".." && has_only(part, b".-_=+!");
    let is_prefix = prefix.is_empty() || prefix.split('/').all(is_folder);
    (is_bucket && is_prefix).then_some((bucket, prefix))
}

/// Prepares access to a bucket. Nothing is sent.
pub(super) fn client(
    bucket: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<AmazonS3, StorageError> {
    let settings = Settings::new(environment);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_access_key_id(settings.required(ACCESS_KEY)?)
        .with_secret_access_key(settings.required(SECRET_KEY)?)
        // Not every server has the request that deletes several objects.
        .with_disable_bulk_delete(true);
    let endpoint = settings.first(&ENDPOINTS);
    let verify = |url: &String| verify_endpoint(url, &settings);
    let is_http = endpoint.map(verify).transpose()?.unwrap_or(false);
    let options = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
        .with_allow_http(is_http)
        // A container without certificates can still use a server on its own host.
        .with_no_system_certificates(is_http);
    let backoff = BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT };
    builder = builder.with_client_options(options).with_retry(retry);
    if let Some(token) = settings.first(&[SESSION_TOKEN]) {
        builder = builder.with_token(token);
    }
    if let Some(region) = settings.first(&REGIONS) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    // The HTTP client takes the provider of the process. It fails if another library installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder.build().map_err(|error| StorageError::Client(root_cause(&error)))
}

/// Checks the address of the server; returns true if it is plain HTTP.
fn verify_endpoint(url: &str, settings: &Settings) -> Result<bool, StorageError> {
    let url = Url::parse(url).map_err(|_| StorageError::Endpoint)?;
    let host = url.host_str().ok_or(StorageError::Endpoint)?;
    let has_password = !url.username().is_empty() || url.password().is_some();
    if has_password || url.query().is_some() {
        return Err(StorageError::Endpoint);
    }
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_allowed =
        settings.first(&[ALLOW_HTTP]).is_some_and(|value| value == "true" || value == "1");
    match url.scheme() {
        "https" => Ok(false),
        "http" if is_loopback || is_allowed => Ok(true),
        "http" => Err(StorageError::PlainHttp),
        _ => Err(StorageError::Endpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, &str); 2] = [(ACCESS_KEY, "AKIDSECRET"), (SECRET_KEY, "hunter2")];

    fn open(url: &str, variables: &[(&str, &str)]) -> Result<AmazonS3, StorageError> {
        let (bucket, _) = parse_url(url).ok_or(StorageError::Address)?;
        client(bucket, variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn an_address_is_a_bucket_and_a_prefix_without_other_parts() {
        assert_eq!(parse_url("s3://lab"), Some(("lab", "")));
        assert_eq!(parse_url("s3://lab/"), Some(("lab", "")));
        assert_eq!(parse_url("s3://lab.example/a/b-1/"), Some(("lab.example", "a/b-1")));
        for url in ["s3://", "s3://l", "s3:///a", "s3://lab//a", "s3://lab/../a", "s3://lab/a?b"] {
            assert_eq!(parse_url(url), None, "{url}");
        }
        for url in ["S3://lab", "gs://lab/a", "https://lab/a", "s3://key:password@lab/a"] {
            assert_eq!(parse_url(url), None, "{url}");
        }
    }

    #[test]
    fn an_invalid_setting_is_named_without_the_keys() {
        let endpoint = |url| [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", url)];
        for (url, variables, words) in [
            ("s3://AKIDSECRET:hunter2@lab", &KEYS[..], "s3://BUCKET/PREFIX"),
            ("s3://lab", &[], "`AWS_ACCESS_KEY_ID` is not set"),
            ("s3://lab", &KEYS[..1], "`AWS_SECRET_ACCESS_KEY` is not set"),
            ("s3://lab", &endpoint("http://s3.example.org"), "AWS_ALLOW_HTTP=true"),
            ("s3://lab", &endpoint("http://127.0.0.1.example.org"), "AWS_ALLOW_HTTP=true"),
            ("s3://lab", &endpoint("s3.example.org"), "not an address such as"),
            ("s3://lab", &endpoint("https://AKIDSECRET:hunter2@x"), "not an address such as"),
        ] {
            let error = open(url, variables).unwrap_err();
            let text = format!("{error} {error:?} {}", error.hint().unwrap());
            assert!(text.contains(words), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("AKIDSECRET"), "{url}: {text}");
        }
        for url in ["http://127.0.0.1:9000", "http://[::1]:9000", "http://localhost/storage"] {
            let client = open("s3://lab/a", &endpoint(url)).unwrap();
            // The debug output of a sweep contains that of its client.
            assert!(!format!("{client:?}").contains("hunter2"), "{url}");
        }
        let allowed = [&endpoint("http://s3.example.org")[..], &[(ALLOW_HTTP, "true")]].concat();
        assert!(open("s3://lab", &allowed).is_ok());
    }
}
