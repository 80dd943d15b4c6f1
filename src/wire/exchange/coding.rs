//! Decodes compressed bodies, within the bound of plain ones.
//!
//! What is compressed cannot be read, and what is not read cannot be charged. A body is decoded here and sent on
//! plain. A few kilobytes can stand for gigabytes, so decoding stops at the bound whatever the body claims.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::units;

use super::super::answer::Refused;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Coding {
    /// Not at all.
    Identity,
    /// gzip.
    Gzip,
    /// deflate, which in HTTP means zlib.
    Deflate,
}

/// What became of decoding.
#[derive(Debug, PartialEq, Eq)]
enum Decoded {
    /// The plain body.
    Plain(Bytes),
    /// It is larger than the bound.
    TooLarge,
    /// It is not what its header says.
    Broken(String),
}

impl Coding {
    /// Reads the header.
    ///
    /// # Errors
    /// When it names a coding, or several, that are not decoded here.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refused> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return if headers.contains_key(CONTENT_ENCODING) { Err(unsupported()) } else { Ok(Self::Identity) };
        };
        match value.as_bytes().to_ascii_lowercase().trim_ascii() {
            b"" | b"identity" => Ok(Self::Identity),
            b"gzip" | b"x-gzip" => Ok(Self::Gzip),
            b"deflate" => Ok(Self::Deflate),
            _ => Err(unsupported()),
        }
    }

    /// Decodes a body. The time is proportional to the bound at most.
    fn decode(self, body: Bytes, bound: usize) -> Decoded {
        match self {
            Self::Identity => Decoded::Plain(body),
            Self::Gzip => read(MultiGzDecoder::new(&*body), bound),
            Self::Deflate => read(ZlibDecoder::new(&*body), bound),
        }
    }
}

/// The plain body, decoded where that does not keep others waiting.
///
/// # Errors
/// When it is not encoded as its header says, or larger than the most that is read.
pub(in crate::wire) async fn decode(bytes: Bytes, coding: Coding, most: units::Bytes) -> Result<Bytes, Refused> {
    if coding == Coding::Identity {
        return Ok(bytes);
    }
    let decoding = tokio::task::spawn_blocking(move || decode_here(bytes, coding, most));
    decoding.await.unwrap_or(Err(Refused::Internal))
}

/// The plain body. A large one takes a while.
///
/// # Errors
/// When it is not encoded as its header says, or larger than the most that is read.
pub(in crate::wire) fn decode_here(bytes: Bytes, coding: Coding, most: units::Bytes) -> Result<Bytes, Refused> {
    match coding.decode(bytes, usize::try_from(most.get()).unwrap_or(usize::MAX)) {
        Decoded::Plain(bytes) => Ok(bytes),
        Decoded::TooLarge => Err(Refused::BodyTooLarge { most }),
        Decoded::Broken(why) => Err(Refused::Malformed(format!("the body is not encoded as its header says: {why}"))),
    }
}

fn unsupported() -> Refused {
    Refused::Unsupported("a body may be encoded with gzip or deflate, once; send it without Content-Encoding".into())
}

fn read(decoder: impl Read, bound: usize) -> Decoded {
    let mut plain = Vec::new();
    match decoder.take(bound as u64 + 1).read_to_end(&mut plain) {
        Ok(_) if plain.len() > bound => Decoded::TooLarge,
        Ok(_) => Decoded::Plain(plain.into()),
        Err(error) => Decoded::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use http::{HeaderMap, HeaderValue};

    use super::{Coding, Decoded};

    fn gzip(text: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).expect("memory takes it");
        encoder.finish().expect("memory takes it").into()
    }

    fn coding(names: &[&'static str]) -> Option<Coding> {
        let headers: HeaderMap =
            names.iter().map(|name| (http::header::CONTENT_ENCODING, HeaderValue::from_static(name))).collect();
        Coding::of(&headers).ok()
    }

    #[test]
    fn codings_are_known_by_name() {
        assert_eq!(coding(&[]), Some(Coding::Identity));
        assert_eq!(coding(&["GZip"]), Some(Coding::Gzip));
        assert_eq!(coding(&["deflate"]), Some(Coding::Deflate));
        for unknown in [&["br"][..], &["gzip, gzip"], &["gzip", "gzip"]] {
            assert_eq!(coding(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn what_is_decoded_is_bounded() {
        let plain = Bytes::from_static(b"hello");
        assert_eq!(Coding::Gzip.decode(gzip(b"hello"), 5), Decoded::Plain(plain.clone()));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"hello").expect("memory takes it");
        let zlib = encoder.finish().expect("memory takes it").into();
        assert_eq!(Coding::Deflate.decode(zlib, 5), Decoded::Plain(plain.clone()));
        assert_eq!(Coding::Gzip.decode(gzip(b"hello!"), 5), Decoded::TooLarge);
        let bomb = gzip(&vec![0; 50_000_000]);
        assert_eq!(Coding::Gzip.decode(bomb, 1_000), Decoded::TooLarge);
    }

    #[test]
    fn what_is_not_compressed_is_broken() {
        assert!(matches!(Coding::Gzip.decode(Bytes::from_static(b"{}"), 100), Decoded::Broken(_)));
        let cut = gzip(b"hello").slice(..12);
        assert!(matches!(Coding::Gzip.decode(cut, 100), Decoded::Broken(_)));
    }
}
