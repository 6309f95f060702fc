//! The collector over HTTP: uploads, access, lists and pages.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics at the first surprise"
)]

mod access;
mod analysis;
mod anonymous;
mod api;
mod audit;
mod browser;
mod campaigns;
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
mod test_servers;
mod uploads;
mod webdriver;
