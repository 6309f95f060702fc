//! A bucket of S3-compatible storage: its address, its settings, and the reasons of its failures.
//!
//! Keys come from the environment only, and no error contains them. Neither does an error contain
//! the reply of the server, which may repeat parts of the request.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::Uri;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

/// Time after which an operation fails, with all its retries. A client repeats its upload later.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(18);
/// Time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Time from the first request after which none is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(8);
/// Number of times that a request is repeated.
const MAX_RETRIES: usize = 4;
/// Maximum length of an error code in a message, in characters.
const MAX_CODE_CHARS: usize = 40;

const ACCESS_KEY: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";
/// Names of the endpoint, the more specific first, as in the tools of AWS.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Address of a bucket, and the environment variables with its endpoint, region and keys.
#[derive(Clone)]
pub struct BucketConfig {
    url: String,
    environment: BTreeMap<String, String>,
}

impl BucketConfig {
    /// Takes the variables from the environment of this process.
    pub fn from_env(url: &str) -> Self {
        let text = |value: std::ffi::OsString| value.into_string().ok();
        Self::new(url, std::env::vars_os().filter_map(|(k, v)| Some((text(k)?, text(v)?))))
    }

    /// Takes the variables from `environment`; those of other programs are ignored.
    pub fn new(url: &str, environment: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_ours =
            |(name, value): &(String, String)| name.starts_with("AWS_") && !value.is_empty();
        Self { url: url.to_owned(), environment: environment.into_iter().filter(is_ours).collect() }
    }

    /// Returns the address, which may have any form unless the bucket was opened.
    pub(crate) fn address(&self) -> &str {
        &self.url
    }

    fn value(&self, names: &[&str]) -> Option<&String> {
        names.iter().find_map(|name| self.environment.get(*name))
    }

    fn required(&self, name: &'static str) -> Result<&String, BucketError> {
        self.environment.get(name).ok_or(BucketError::NotSet(name))
    }
}

/// Shows neither the keys nor a password in the address.
impl fmt::Debug for BucketConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BucketConfig").finish_non_exhaustive()
    }
}

/// Bucket that cannot be used, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use `{address}`: {reason}")]
pub struct BucketFailure {
    address: String,
    pub(crate) reason: BucketError,
}

/// Reason why a bucket cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The address has another form, and may contain a password.
    #[error("this is not the address of a bucket")]
    Address,
    /// A variable of the environment is absent.
    #[error("the environment variable `{0}` is not set")]
    NotSet(&'static str),
    /// The endpoint is not an address.
    #[error("`AWS_ENDPOINT_URL` is not an address such as `https://s3.example.org`")]
    Endpoint,
    /// The endpoint is that of another host, without TLS.
    #[error("`AWS_ENDPOINT_URL` is plain HTTP to another host")]
    PlainHttp,
    /// The HTTP client cannot be made, such as without certificates.
    #[error("cannot prepare connections: {0}")]
    Client(String),
    /// The server has no such bucket.
    #[error("the bucket does not exist")]
    Missing,
    /// The server knows no such key, or the key lacks a permission.
    #[error("the server refused the key ({0})")]
    Denied(String),
    /// The bucket is in another region.
    #[error("the bucket is in another region")]
    Region,
    /// The server is full.
    #[error("the server has no space left")]
    Full,
    /// The server's certificate is not accepted.
    #[error("the certificate of the server is not accepted: {0}")]
    Certificate(String),
    /// There is no connection to the server.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server did not answer in time.
    #[error("the server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The server answered with another error.
    #[error("the server answered {0}")]
    Status(String),
}

impl BucketError {
    /// Returns a suggested action, if one is known.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Address => {
                "give an address such as `s3://BUCKET/PREFIX`, or leave it out for the folder"
            }
            Self::NotSet(_) => {
                "set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` to a key of the bucket"
            }
            Self::Endpoint => "give the address of the server, or leave it out for AWS",
            Self::PlainHttp => "use `https://`, or set `AWS_ALLOW_HTTP=true` in a trusted network",
            Self::Client(_) => {
                "install the certificates of the system, such as the package `ca-certificates`"
            }
            Self::Certificate(_) => {
                "add its authority to the certificates of the system, or set `SSL_CERT_FILE`"
            }
            Self::Missing => "create the bucket, or correct `--objects s3://BUCKET/PREFIX`",
            Self::Denied(_) => {
                "check `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`; the key must be allowed to \
                 list, read, write and delete"
            }
            Self::Region => "set `AWS_REGION` to the region of the bucket",
            Self::Unreachable(_) | Self::Timeout(_) => {
                "check that the server runs, and its address in `AWS_ENDPOINT_URL`"
            }
            Self::Full | Self::Status(_) => return None,
        })
    }

    /// Finds the reason in an error of the client.
    fn of(error: &object_store::Error) -> Self {
        let text = error.to_string();
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let code: Option<String> = code.map(|(code, _)| {
            code.chars().filter(char::is_ascii_alphanumeric).take(MAX_CODE_CHARS).collect()
        });
        let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3));
        let answer = [status, code.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
        match (status, code.as_deref()) {
            (_, Some("NoSuchBucket")) => Self::Missing,
            (_, Some("AuthorizationHeaderMalformed" | "PermanentRedirect")) => Self::Region,
            _ if text.contains("redirect without LOCATION") => Self::Region,
            (Some("507"), _) | (_, Some("XMinioStorageFull" | "QuotaExceeded")) => Self::Full,
            (Some("401" | "403"), _) => Self::Denied(answer),
            (Some(_), _) | (None, Some(_)) => Self::Status(answer),
            (None, None) => {
                let cause = root_cause(error);
                match cause.strip_prefix("invalid peer certificate: ") {
                    Some(reason) => Self::Certificate(reason.to_owned()),
                    None => Self::Unreachable(cause),
                }
            }
        }
    }
}

/// Returns the text of the innermost error, such as `Connection refused`.
fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Opened bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) client: AmazonS3,
    /// Place of all objects within the bucket.
    pub(crate) prefix: Path,
    address: String,
}

/// Leaves out the client, which knows the keys.
impl fmt::Debug for Bucket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Bucket").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Bucket {
    /// Prepares access to a bucket. Nothing is sent yet.
    pub(crate) fn open(config: &BucketConfig) -> Result<Self, BucketFailure> {
        let Some((name, prefix)) = parse_url(&config.url) else {
            let address = "--objects".to_owned();
            return Err(BucketFailure { address, reason: BucketError::Address });
        };
        let address = format!("s3://{name}/{prefix}").trim_end_matches('/').to_owned();
        let client = client(config, name);
        let failed = |reason| BucketFailure { address: address.clone(), reason };
        Ok(Self { client: client.map_err(failed)?, prefix: Path::from(prefix), address })
    }

    /// Fails unless the bucket exists and the key may list it.
    pub(crate) async fn verify(&self) -> Result<(), BucketFailure> {
        let options = PaginatedListOptions { max_keys: Some(1), ..Default::default() };
        let list = self.client.list_paginated(Some(self.prefix.as_ref()), options);
        let listed = self.within_timeout(list).await;
        match listed {
            Ok(_) => Ok(()),
            // Some servers send no code.
            Err(BucketError::Status(status)) if status.starts_with("404") => {
                Err(self.failed(BucketError::Missing))
            }
            Err(reason) => Err(self.failed(reason)),
        }
    }

    /// Waits for an operation, but not without end.
    pub(crate) async fn within_timeout<T>(
        &self,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, BucketError> {
        match tokio::time::timeout(OPERATION_TIMEOUT, operation).await {
            Ok(outcome) => outcome.map_err(|error| BucketError::of(&error)),
            Err(_) => Err(BucketError::Timeout(OPERATION_TIMEOUT)),
        }
    }

    pub(crate) fn failed(&self, reason: BucketError) -> BucketFailure {
        BucketFailure { address: self.address.clone(), reason }
    }
}

/// Reads `s3://BUCKET/PREFIX`; returns the name of the bucket and the prefix, which may be empty.
fn parse_url(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("s3://")?;
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_plain = |text: &str, others: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    };
    let is_name = (3..=63).contains(&name.len()) && is_plain(name, b".-_");
    let is_part =
        |part: &str| !part.is_empty() && part != "." && part != ".." && is_plain(part, b".-_=+!");
    (is_name && (prefix.is_empty() || prefix.split('/').all(is_part))).then_some((name, prefix))
}

fn client(config: &BucketConfig, name: &str) -> Result<AmazonS3, BucketError> {
    let (access_key, secret_key) = (config.required(ACCESS_KEY)?, config.required(SECRET_KEY)?);
    // The HTTP client takes the provider of the process. It fails if another library installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint = config.value(&ENDPOINTS);
    let is_http = endpoint.map(|url| verify_endpoint(url, config)).transpose()?.unwrap_or(false);
    let options = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(OPERATION_TIMEOUT)
        .with_allow_http(is_http)
        // A container without certificates can still use a server on its own host.
        .with_no_system_certificates(is_http);
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..Default::default() },
        max_retries: MAX_RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(name)
        .with_access_key_id(access_key)
        .with_secret_access_key(secret_key)
        .with_client_options(options)
        .with_retry(retry)
        // Not every server has the request that deletes several objects.
        .with_disable_bulk_delete(true);
    if let Some(token) = config.value(&[SESSION_TOKEN]) {
        builder = builder.with_token(token);
    }
    if let Some(region) = config.value(&REGIONS) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder.build().map_err(|error| BucketError::Client(root_cause(&error)))
}

/// Checks the address of the server; returns true if it is plain HTTP.
fn verify_endpoint(url: &str, config: &BucketConfig) -> Result<bool, BucketError> {
    let uri: Uri = url.parse().map_err(|_| BucketError::Endpoint)?;
    let host = uri.host().ok_or(BucketError::Endpoint)?;
    let has_password = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if has_password || uri.query().is_some() {
        return Err(BucketError::Endpoint);
    }
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_allowed =
        config.value(&[ALLOW_HTTP]).is_some_and(|value| value == "true" || value == "1");
    match uri.scheme_str() {
        Some("https") => Ok(false),
        Some("http") if is_loopback || is_allowed => Ok(true),
        Some("http") => Err(BucketError::PlainHttp),
        _ => Err(BucketError::Endpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(url: &str, variables: &[(&str, &str)]) -> Result<Bucket, BucketFailure> {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Bucket::open(&BucketConfig::new(url, variables))
    }

    #[test]
    fn an_address_is_a_bucket_with_an_optional_prefix() {
        assert_eq!(parse_url("s3://lab"), Some(("lab", "")));
        assert_eq!(parse_url("s3://lab/"), Some(("lab", "")));
        assert_eq!(parse_url("s3://lab.example/a/b-1/"), Some(("lab.example", "a/b-1")));
        for url in [
            "",
            "lab",
            "s3://",
            "s3://l",
            "s3:///a",
            "s3://lab//a",
            "s3://lab/../a",
            "s3://lab/a?b",
            "S3://lab",
            "https://lab/a",
            "s3://key:password@lab/a",
            "s3://lab/a b",
            "s3://lab/é",
        ] {
            assert_eq!(parse_url(url), None, "{url}");
        }
    }

    #[test]
    fn an_error_tells_the_way_out_and_no_secret() {
        const KEYS: [(&str, &str); 2] = [(ACCESS_KEY, "AKIDSECRET"), (SECRET_KEY, "hunter2")];
        let endpoint = |url| [KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", url)];
        for (url, variables, words) in [
            ("s3://AKIDSECRET:hunter2@lab", &KEYS[..], "s3://BUCKET/PREFIX"),
            ("/srv/hunter2", &KEYS, "s3://BUCKET/PREFIX"),
            ("s3://lab", &[], "`AWS_ACCESS_KEY_ID` is not set"),
            ("s3://lab", &KEYS[..1], "`AWS_SECRET_ACCESS_KEY` is not set"),
            ("s3://lab", &endpoint("http://s3.example.org"), "AWS_ALLOW_HTTP=true"),
            ("s3://lab", &endpoint("http://127.0.0.1.example.org"), "AWS_ALLOW_HTTP=true"),
            ("s3://lab", &endpoint("s3.example.org"), "not an address such as"),
            ("s3://lab", &endpoint("https://AKIDSECRET:hunter2@x"), "not an address such as"),
        ] {
            let error = open(url, variables).unwrap_err();
            let text = format!("{error} {error:?} {}", error.reason.hint().unwrap());
            assert!(text.contains(words), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("AKIDSECRET"), "{url}: {text}");
        }
        for url in ["http://127.0.0.1:9000", "http://[::1]:9000", "http://localhost/storage"] {
            let bucket = open("s3://lab/a", &endpoint(url)).unwrap();
            assert!(!format!("{bucket:?}").contains("hunter2"), "{bucket:?}");
        }
        let allowed = [&endpoint("http://s3.example.org")[..], &[(ALLOW_HTTP, "true")]].concat();
        assert!(open("s3://lab", &allowed).is_ok());
    }

    #[test]
    fn the_reply_of_a_server_becomes_a_reason() {
        let reason = |text: &str| {
            BucketError::of(&object_store::Error::Generic { store: "S3", source: text.into() })
        };
        let status = "Server returned non-2xx status code: ";
        for (text, expected) in [
            ("404 Not Found: <Error><Code>NoSuchBucket</Code>", BucketError::Missing),
            ("400 Bad Request: <Code>AuthorizationHeaderMalformed</Code>", BucketError::Region),
            ("507 Insufficient Storage: ", BucketError::Full),
            (
                "403 Forbidden: <Code>Signature<b>DoesNotMatch</Code><AWSAccessKeyId>AKID",
                BucketError::Denied("403 SignaturebDoesNotMatch".into()),
            ),
            ("500 x: <Code>", BucketError::Status("500".into())),
        ] {
            let found = reason(&format!("{status}{text}"));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(reason("refused"), BucketError::Unreachable("refused".into()));
        let certificate = BucketError::Certificate("UnknownIssuer".into());
        assert_eq!(reason("invalid peer certificate: UnknownIssuer"), certificate);
    }
}
