//! A server whose host has too little of something, and clients whose server lies.
//!
//! What is missing is taken away from the one process that is looked at: by limits, namespaces and
//! pipes of its own. Nothing of the machine changes.

mod host;
mod liar;
mod peers;
