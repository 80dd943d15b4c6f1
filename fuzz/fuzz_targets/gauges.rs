//! Hostile pages of metrics and load headers: an error or numbers that can be, and what a page says does not depend on
//! lines that say nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tallygate::engines::{Unread, read_header, read_page};

fuzz_target!(|text: &str| {
    let page = read_page(text);
    if let Ok(page) = &page {
        assert!(!page.gauges.is_empty(), "a page that says nothing is an error");
        assert!(page.gauges.kv_usage.is_none_or(|usage| usage.millionths() <= 1_000_000));
    }
    let framed = read_page(&format!("# a comment\n\n{text}\n# EOF\n"));
    match (page, framed) {
        // The lines moved by two.
        (Err(Unread::Malformed(alone)), Err(Unread::Malformed(framed))) => assert_eq!(alone.line + 2, framed.line),
        (alone, framed) => assert_eq!(alone, framed),
    }
    // Whatever is in a header, it is read or refused.
    let _header = read_header(text);
});
