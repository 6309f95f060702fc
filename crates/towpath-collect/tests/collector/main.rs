//! The collector over HTTP: uploads, access, lists and pages.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics at the first surprise"
)]

mod access;
mod api;
mod browser;
mod devices;
mod folder;
mod lists;
mod live;
mod maintenance;
mod pages;
mod postgres;
mod s3;
mod site;
mod tables;
mod uploads;
mod webdriver;
