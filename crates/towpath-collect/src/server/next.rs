//! Page to which a browser returns after its login.

use crate::filter::encode;

/// Maximum length of an address to return to.
const MAX_BYTES: usize = 4_000;

/// Path and query of a page of this site.
///
/// Addresses of other sites are refused, so a link to the login page cannot lead to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextPage(String);

impl NextPage {
    /// Reads an address; `None` unless it is a path of this site.
    ///
    /// Browsers take `//host` and `/\host` as another site, and remove tabs and line breaks first.
    pub(super) fn parse(address: &str) -> Option<Self> {
        let is_path = address.starts_with('/') && !address.starts_with("//");
        let is_plain = address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        (is_path && is_plain && address.len() <= MAX_BYTES).then(|| Self(address.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the address of the login page that leads to `next`. The first page needs no mention.
pub(super) fn login_address(next: Option<&NextPage>) -> String {
    let mut address = "/login".to_owned();
    if let Some(NextPage(next)) = next.filter(|next| next.as_str() != "/") {
        address.push_str("?next=");
        encode(&mut address, next);
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_of_this_site_is_a_next_page() {
        for path in ["/", "/tokens", "/?host=lab%203&page=2", "/runs/0123", "/x?next=//y"] {
            assert_eq!(NextPage::parse(path).unwrap().as_str(), path);
        }
        for address in [
            "",
            "tokens",
            "//example.org",
            "///example.org",
            "/\\example.org",
            "\\\\example.org",
            "/\t/example.org",
            "/\n/example.org",
            " //example.org",
            "https://example.org/",
            "https:example.org",
            "javascript:alert(1)",
            "/ü",
            "/x\r\nset-cookie: a=b",
            &format!("/{}", "x".repeat(MAX_BYTES)),
        ] {
            assert_eq!(NextPage::parse(address), None, "{address:?}");
        }
    }

    #[test]
    fn the_login_page_gets_the_whole_address_of_the_next_page() {
        let address = |path: &str| login_address(NextPage::parse(path).as_ref());
        assert_eq!(address("/?a=b&c=d%20e"), "/login?next=%2F%3Fa%3Db%26c%3Dd%2520e");
        assert_eq!([address("/"), address("//x")], ["/login", "/login"]);
    }
}
