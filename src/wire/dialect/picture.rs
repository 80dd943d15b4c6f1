//! How large an image is, from the first bytes of its own data.
//!
//! An image inside a body is base64 of a PNG, JPEG, GIF or WebP file, each of which tells its size in front. Only as
//! much is decoded as it takes to get there, at most [`LOOKED_AT`] bytes, and nothing is kept. Data that makes no
//! sense is the upstream's to judge: the size is then unknown, which costs the most an image can.

use crate::costing::PixelSize;

/// How far into a file its size is looked for. In a JPEG it stands behind colour profiles and thumbnails.
const LOOKED_AT: usize = 256 * 1024;

/// How long the words in front of a data URL's data may be.
const MOST_PREFIX: usize = 256;

/// The size of an image written as a JSON string with a data URL; nothing for any other address.
pub(super) fn size_of_url(json: &str) -> Option<PixelSize> {
    const MARK: &str = "base64,";
    let inside = json.strip_prefix('"')?;
    if !inside.get(..5)?.eq_ignore_ascii_case("data:") {
        return None;
    }
    let prefix = &inside[..inside.floor_char_boundary(MOST_PREFIX)];
    size_of_base64(&inside[prefix.find(MARK)? + MARK.len()..])
}

/// The size of an image written as base64 in a JSON string; the opening quote may be left out.
pub(super) fn size_of_base64(json: &str) -> Option<PixelSize> {
    let text = json.strip_prefix('"').unwrap_or(json);
    size(&mut Decoded { text: text.bytes(), bits: 0, held: 0 }.take(LOOKED_AT))
}

/// The bytes that a base64 text inside a JSON string stands for. Ends where it makes no sense.
struct Decoded<'a> {
    text: std::str::Bytes<'a>,
    bits: u32,
    held: u32,
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        while self.held < 8 {
            let digit = match self.text.next()? {
                upper @ b'A'..=b'Z' => upper - b'A',
                lower @ b'a'..=b'z' => lower - b'a' + 26,
                digit @ b'0'..=b'9' => digit - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                // Escapes: of a slash, which follows, or of white space, which base64 may be wrapped with.
                b'\\' => match self.text.next()? {
                    b'/' => 63,
                    b'n' | b'r' | b't' => continue,
                    _ => return None,
                },
                b' ' => continue,
                _ => return None,
            };
            self.bits = (self.bits << 6 | u32::from(digit)) & 0xffff;
            self.held += 6;
        }
        self.held -= 8;
        Some((self.bits >> self.held & 0xff) as u8)
    }
}

fn size(file: &mut impl Iterator<Item = u8>) -> Option<PixelSize> {
    match take::<4>(file)? {
        [0x89, b'P', b'N', b'G'] => png(file),
        [b'G', b'I', b'F', b'8'] => {
            let [_, _, w0, w1, h0, h1] = take(file)?;
            PixelSize::new(u16::from_le_bytes([w0, w1]).into(), u16::from_le_bytes([h0, h1]).into())
        }
        [b'R', b'I', b'F', b'F'] => webp(file),
        [0xff, 0xd8, 0xff, marker] => jpeg(marker, file),
        _ => None,
    }
}

fn take<const N: usize>(file: &mut impl Iterator<Item = u8>) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = file.next()?;
    }
    Some(bytes)
}

/// Behind the signature: the first chunk's length and name, then width and height.
fn png(file: &mut impl Iterator<Item = u8>) -> Option<PixelSize> {
    let [.., b'I', b'H', b'D', b'R'] = take::<12>(file)? else { return None };
    PixelSize::new(u32::from_be_bytes(take(file)?), u32::from_be_bytes(take(file)?))
}

/// Behind the container's name: a chunk with the frame's own header, or one with the canvas.
fn webp(file: &mut impl Iterator<Item = u8>) -> Option<PixelSize> {
    let [_, _, _, _, b'W', b'E', b'B', b'P'] = take::<8>(file)? else { return None };
    let chunk = take::<4>(file)?;
    let _length = take::<4>(file)?;
    match &chunk {
        b"VP8 " => {
            let [_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1] = take(file)? else { return None };
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
            PixelSize::new(side(w0, w1), side(h0, h1))
        }
        b"VP8L" => {
            let [0x2f, b0, b1, b2, b3] = take(file)? else { return None };
            let bits = u32::from_le_bytes([b0, b1, b2, b3]);
            PixelSize::new((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
        }
        b"VP8X" => {
            let [_, _, _, _, w0, w1, w2, h0, h1, h2] = take(file)?;
            PixelSize::new(u32::from_le_bytes([w0, w1, w2, 0]) + 1, u32::from_le_bytes([h0, h1, h2, 0]) + 1)
        }
        _ => None,
    }
}

/// From segment to segment, to the one that begins a frame.
fn jpeg(mut marker: u8, file: &mut impl Iterator<Item = u8>) -> Option<PixelSize> {
    loop {
        let length = u16::from_be_bytes(take(file)?);
        match marker {
            // Frames; the gaps between are tables and arithmetic coding.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                let [_precision, h0, h1, w0, w1] = take(file)?;
                return PixelSize::new(u16::from_be_bytes([w0, w1]).into(), u16::from_be_bytes([h0, h1]).into());
            }
            // The picture itself: its size should have come before.
            0xda | 0xd9 => return None,
            _ => {}
        }
        let rest = usize::from(length).checked_sub(2)?;
        if rest > 0 {
            file.nth(rest - 1)?;
        }
        let 0xff = file.next()? else { return None };
        marker = file.find(|byte| *byte != 0xff)?;
    }
}

#[cfg(test)]
mod tests;
