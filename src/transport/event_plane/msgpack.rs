//! The few msgpack writers that the event plane needs, appending to a reusable buffer.
//!
//! Integers take their shortest form, as the readers' golden bytes have it.

use rmp::encode;

const MEMORY: &str = "writing to memory does not fail";

pub(super) fn put_uint(out: &mut Vec<u8>, value: u64) {
    encode::write_uint(out, value).expect(MEMORY);
}

pub(super) fn put_int(out: &mut Vec<u8>, value: i64) {
    encode::write_sint(out, value).expect(MEMORY);
}

pub(super) fn put_optional_uint(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => put_uint(out, value),
        None => encode::write_nil(out).expect(MEMORY),
    }
}

pub(super) fn put_str(out: &mut Vec<u8>, text: &str) {
    encode::write_str(out, text).expect(MEMORY);
}

pub(super) fn put_bin(out: &mut Vec<u8>, bytes: &[u8]) {
    encode::write_bin(out, bytes).expect(MEMORY);
}

/// Array header for `len` elements; msgpack ends at `u32::MAX`, which no batch comes near.
pub(super) fn put_array_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("a batch holds fewer than 2^32 elements");
    encode::write_array_len(out, len).expect(MEMORY);
}

/// Map header for `len` entries; maps of this plane have a handful.
pub(super) fn put_map_len(out: &mut Vec<u8>, len: u32) {
    encode::write_map_len(out, len).expect(MEMORY);
}

pub(super) fn put_nil(out: &mut Vec<u8>) {
    encode::write_nil(out).expect(MEMORY);
}

pub(super) fn put_f64(out: &mut Vec<u8>, value: f64) {
    encode::write_f64(out, value).expect(MEMORY);
}

pub(super) fn put_optional_str(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_str(out, text),
        None => put_nil(out),
    }
}
