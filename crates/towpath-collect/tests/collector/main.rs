//! The collector over HTTP: uploads, access, lists and pages.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics at the first surprise"
)]

mod access;
mod browser;
mod maintenance;
mod pages;
mod postgres;
mod site;
mod uploads;
mod webdriver;
