use serde_json::Value;

use super::{LOOKED_AT, size_of_base64, size_of_url};
use crate::costing::PixelSize;

/// Files of a few pixels as the usual encoders write them, in base64, and their sizes.
const FILES: [(&str, (u32, u32), &str); 7] = [
    ("png", (3, 5), "iVBORw0KGgoAAAANSUhEUgAAAAMAAAAFCAIAAAAPE8H1AAAADElEQVR4nGNgIBUAAAAyAAFBPJwWAAAAAElFTkSuQmCC"),
    ("gif", (7, 2), "R0lGODdhBwACAIAAAAAAAAAAACwAAAAABwACAAAICAABCBxIkGBAADs="),
    (
        "jpeg",
        (9, 17),
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19i\
         Z2hnPk1xeXBkeFxlZ2P/wAALCAARAAkBAREA",
    ),
    (
        "progressive jpeg",
        (9, 17),
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19i\
         Z2hnPk1xeXBkeFxlZ2P/wgALCAARAAkBAREA",
    ),
    ("webp", (11, 4), "UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoLAAQADMDOJaQAA3AA/uxnAAA="),
    ("lossless webp", (11, 4), "UklGRhoAAABXRUJQVlA4TA4AAAAvCsAAAAcQEf0PRET/Aw=="),
    ("transparent webp", (300, 20), "UklGRm4AAABXRUJQVlA4WAoAAAAQAAAAKwEAEwAAQUxQSBAAAAABBw=="),
];

fn pixels(size: (u32, u32)) -> Option<PixelSize> {
    PixelSize::new(size.0, size.1)
}

#[test]
fn every_format_tells_its_size() {
    for (name, size, base64) in FILES {
        assert!(pixels(size).is_some());
        assert_eq!(size_of_base64(&format!("\"{base64}\"")), pixels(size), "{name}");
        let url = format!("data:image/{name};base64,{base64}");
        assert_eq!(size_of_url(&Value::from(url.as_str()).to_string()), pixels(size), "{name}");
        // Escaped and wrapped as some encoders do, and with the alphabet for addresses.
        let escaped = Value::from(url.replace("base64,iV", "base64,\niV")).to_string().replace('/', "\\/");
        assert_eq!(size_of_url(&escaped), pixels(size), "{name}");
        let alphabet = base64.replace('/', "_").replace('+', "-");
        assert_eq!(size_of_base64(&alphabet), pixels(size), "{name}");
    }
}

#[test]
fn what_is_cut_or_makes_no_sense_has_no_size() {
    for (name, size, base64) in FILES {
        for end in 0..base64.len() {
            let found = size_of_base64(&base64[..end]);
            assert!(found.is_none() || found == pixels(size), "{name} cut at {end}: {found:?}");
        }
        for at in 0..base64.len() {
            // Any byte may be wrong; whatever is found, nothing panics or hangs.
            for wrong in ["A", "/", "!", "\\", "é"] {
                let _found = size_of_base64(&format!("{}{wrong}{}", &base64[..at], &base64[at + 1..]));
            }
        }
    }
    for url in [
        "",
        "\"",
        "7",
        "\"u\"",
        "\"https://example.com/a.png\"",
        "\"data:\"",
        "\"data:image/png;base64,\"",
        "\"dat\u{e9}:\"",
    ] {
        assert_eq!(size_of_url(url), None, "{url}");
    }
    let far = format!("\"data:{};base64,{}\"", "x".repeat(500), FILES[0].2);
    assert_eq!(size_of_url(&far), None, "a prefix that never ends");
}

/// Segment after segment without a frame: looked at as far as the bound, and no further.
#[test]
fn a_jpeg_that_never_comes_to_its_frame_is_given_up() {
    // FF D8, then segments FF E0 00 04 00 00 without end, as base64.
    let segments = "/+AABAAA".repeat(LOOKED_AT / 3);
    assert_eq!(size_of_base64(&format!("/9j/4AAE{}", &segments[6..])), None);
    assert_eq!(size_of_base64(&"/".repeat(4 * LOOKED_AT)), None);
}
