#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| towpath_live::protocol::fuzzing::host_report(data));
