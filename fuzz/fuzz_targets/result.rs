#![no_main]

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;
use ruzstd::decoding::StreamingDecoder;
use towpath_report::fuzzing::result;

fuzz_target!(|data: &[u8]| match StreamingDecoder::new(data) {
    Ok(decoder) => result(BufReader::new(decoder)),
    Err(_) => result(data),
});
