//! Counts tokens, in bounded time.
//!
//! Text is counted with the tokenizer of OpenAI's models: `o200k_base`, or `cl100k_base` for the models that use it
//! (by name, as tiktoken knows them). For those the count of texts and markup is exact ([`Fit::Exact`]); other models'
//! tokenizers differ by some ten per cent, which is learnt from what their usage reports (see `calibrate`). A chat
//! costs what OpenAI documents for it: three tokens a message, one for the role, one more for a name, three to prime
//! the reply. Tool definitions and other JSON cost a token for four bytes, for every model; images what the model's
//! published formula says (see `image`).
//!
//! Exact up to [`COUNTED_TEXT`] bytes of text; of more, as much is counted, in pieces spread over all of it (see
//! [`Text`](super::Text)), and the rest extrapolated. A text is cut into pieces of at most two kilobytes, in front of a
//! space where there is one near, so that a megabyte of one letter or of blanks costs the tokenizer's regular
//! expression and its merges no more than ordinary prose. A cut inside a word can add a token. Sound and files are
//! guessed, and say how below.
//!
//! Never fails, and never trusts a length the client states.

use tiktoken_rs::CoreBPE;
use tiktoken_rs::tokenizer::{Tokenizer, get_tokenizer};

use crate::units::{Bytes, Tokens};

use super::call::{Attachment, History, Prompt};
use super::image::Formula;
use super::text::cut;

/// How much text is counted exactly, per request.
pub const COUNTED_TEXT: usize = 256 * 1024;

/// OpenAI's documented overhead: markup of a message, its role, its name, the start of the reply.
const PER_MESSAGE: u64 = 3;
const PER_ROLE: u64 = 1;
const PER_NAME: u64 = 1;
const REPLY_PRIMING: u64 = 3;

/// Bytes of JSON to a token.
const JSON_BYTES_PER_TOKEN: u64 = 4;

/// Ten tokens a second of sound at 128 kbit/s, base64 being four thirds of that.
const AUDIO_BASE64_PER_TOKEN: u64 = 2_133;

/// Gemini's 32 tokens a second of sound, at the same rate.
const FINE_AUDIO_BASE64_PER_TOKEN: u64 = 667;

/// Gemini's 263 tokens a second of film, at 1 Mbit/s.
const VIDEO_BASE64_PER_TOKEN: u64 = 634;

/// A page of a document is some 1,500 tokens and some 100 kB of base64.
const FILE_BASE64_PER_TOKEN: u64 = 64;

/// A tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// That of GPT-4o and later; also used for models whose tokenizer is not known.
    O200k,
    /// That of GPT-4 and GPT-3.5.
    Cl100k,
}

impl Encoding {
    /// The encoding of a model, by its name after aliases.
    #[must_use]
    pub fn of(model: &str) -> Self {
        match get_tokenizer(model) {
            Some(Tokenizer::Cl100kBase) => Self::Cl100k,
            _ => Self::O200k,
        }
    }

    fn bpe(self) -> &'static CoreBPE {
        match self {
            Self::O200k => tiktoken_rs::o200k_base_singleton(),
            Self::Cl100k => tiktoken_rs::cl100k_base_singleton(),
        }
    }

    /// Loads the tokenizer's tables, so that the first request does not wait for them.
    pub fn warm(self) {
        let _tables = self.bpe();
    }
}

/// Counts all of a text. The time is proportional to its length, so the caller bounds that.
#[must_use]
pub fn count_text(encoding: Encoding, text: &str) -> Tokens {
    let bpe = encoding.bpe();
    let mut rest = text;
    let mut count = 0;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cut(rest));
        count += bpe.count_ordinary(piece) as u64;
        rest = after;
    }
    Tokens::new(count)
}

/// How near the truth a count of texts and markup is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// The tokenizer is the model's own.
    Exact,
    /// It is another model's.
    #[default]
    Near,
}

/// How a model's input is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputCounter {
    encoding: Encoding,
    fit: Fit,
    images: Option<Formula>,
}

/// What a prompt was counted as, by what it is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Tokens the client encoded itself, which need no counting.
    pub encoded: Tokens,
    /// Texts.
    pub text: Tokens,
    /// What holds messages together.
    pub markup: Tokens,
    /// Tools and other JSON.
    pub structured: Tokens,
    /// Images, sound and files.
    pub attachments: Tokens,
    /// How near the truth texts and markup are.
    pub fit: Fit,
    /// Digits in the texts. Not tokens of their own, but what tokenizers differ in.
    pub(super) digits: Tokens,
    /// Characters beyond ASCII in the texts, likewise.
    pub(super) wide: Tokens,
    pub(super) history: History,
}

impl Counted {
    /// A count of text and nothing else, for what is known to be exact.
    #[must_use]
    pub fn exactly(text: Tokens) -> Self {
        Self { text, fit: Fit::Exact, ..Self::default() }
    }

    /// Whether there is more to read than what could be counted.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.history == History::Upstream
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Tokens {
        self.encoded + self.text + self.markup + self.structured + self.attachments
    }
}

impl InputCounter {
    /// A model's, by its name after aliases.
    #[must_use]
    pub fn of(model: &str) -> Self {
        let fit = match get_tokenizer(model) {
            Some(Tokenizer::Cl100kBase | Tokenizer::O200kBase) => Fit::Exact,
            _ => Fit::Near,
        };
        Self { encoding: Encoding::of(model), fit, images: Formula::of(model) }
    }

    /// The tokenizer it counts with.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Counts what the model has to read.
    #[must_use]
    pub fn count(&self, prompt: &Prompt) -> Counted {
        let whole = |kept: Tokens| kept + extrapolate(kept, prompt.text.kept(), prompt.text.beyond());
        let over = |count: fn(Encoding, &str) -> Tokens| {
            whole(prompt.text.pieces().map(|piece| count(self.encoding, piece)).sum())
        };
        let messages = u64::from(prompt.messages);
        let markup = match messages {
            0 => 0,
            _ => messages * (PER_MESSAGE + PER_ROLE) + u64::from(prompt.names) * PER_NAME + REPLY_PRIMING,
        };
        Counted {
            encoded: prompt.tokens,
            text: over(count_text),
            markup: Tokens::new(markup),
            structured: Tokens::new(prompt.structured.get().div_ceil(JSON_BYTES_PER_TOKEN)),
            attachments: prompt.attachments.iter().map(|attachment| self.guess(attachment)).sum(),
            fit: self.fit,
            digits: over(|_, text| characters(text, |byte| byte.is_ascii_digit())),
            // A character beyond ASCII begins with such a byte.
            wide: over(|_, text| characters(text, |byte| byte >= 0xc0)),
            history: prompt.history,
        }
    }

    fn guess(&self, attachment: &Attachment) -> Tokens {
        Tokens::new(match attachment {
            Attachment::Image(image) => self.images.unwrap_or(Formula::usual(image.api)).cost(*image),
            Attachment::Audio(base64) => base64.get().div_ceil(AUDIO_BASE64_PER_TOKEN),
            Attachment::FineAudio(base64) => base64.get().div_ceil(FINE_AUDIO_BASE64_PER_TOKEN),
            Attachment::Video(base64) => base64.get().div_ceil(VIDEO_BASE64_PER_TOKEN),
            Attachment::File(base64) => base64.get().div_ceil(FILE_BASE64_PER_TOKEN),
        })
    }
}

fn characters(text: &str, is_one: fn(u8) -> bool) -> Tokens {
    Tokens::new(text.bytes().filter(|byte| is_one(*byte)).count() as u64)
}

/// What the uncounted part has if it is like the counted one.
fn extrapolate(counted: Tokens, kept: Bytes, beyond: Bytes) -> Tokens {
    let product = u128::from(counted.get()) * u128::from(beyond.get());
    let tokens = product.div_ceil(u128::from(kept.get().max(1)));
    Tokens::new(u64::try_from(tokens).unwrap_or(u64::MAX))
}

/// Counts output that arrives in fragments.
///
/// A fragment is neither a token nor a whole number of them, so fragments are joined and counted together, some
/// thirty-two bytes of whole words at a time. What is not yet counted stays below that, unless it has no spaces.
#[derive(Clone, Debug)]
pub struct OutputCounter {
    encoding: Encoding,
    pending: String,
    counted: Tokens,
}

impl OutputCounter {
    /// How much is joined before it is counted.
    const BATCH: usize = 32;
    /// How much is joined at most, where there is no space to cut at.
    const MOST: usize = 256;

    /// A counter that has seen nothing.
    #[must_use]
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, pending: String::new(), counted: Tokens::ZERO }
    }

    /// Adds a fragment.
    pub fn push(&mut self, fragment: &str) {
        self.pending.push_str(fragment);
        if self.pending.len() < Self::BATCH {
            return;
        }
        if let Some(whole) = self.pending.rfind(' ').filter(|at| *at > 0) {
            self.counted += count_text(self.encoding, &self.pending[..whole]);
            self.pending.drain(..whole);
        }
        if self.pending.len() >= Self::MOST {
            self.count_pending();
        }
    }

    /// The count so far, never more than the exact one: what is not counted yet is taken for a single token.
    #[must_use]
    pub fn so_far(&self) -> Tokens {
        self.counted + Tokens::new(u64::from(!self.pending.is_empty()))
    }

    /// The exact count of all fragments so far.
    pub fn exact(&mut self) -> Tokens {
        self.count_pending();
        self.counted
    }

    fn count_pending(&mut self) {
        self.counted += count_text(self.encoding, &self.pending);
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNTED_TEXT, Encoding, Fit, InputCounter, OutputCounter, count_text};
    use crate::costing::{Api, Attachment, Detail, Image, PixelSize, Prompt, Text};
    use crate::units::{Bytes, Tokens};

    const PROSE: &str = "The quick brown fox jumps over the lazy dog, and then it sleeps for 12 hours. ";

    fn prompt(text: &str) -> Prompt {
        let mut kept = Text::default();
        kept.push(text, COUNTED_TEXT);
        Prompt { messages: 1, text: kept, ..Prompt::default() }
    }

    fn count(prompt: &Prompt) -> u64 {
        InputCounter::of("gpt-4o").count(prompt).total().get()
    }

    #[test]
    fn models_are_counted_with_their_own_tokenizer() {
        assert_eq!(Encoding::of("gpt-4-0613"), Encoding::Cl100k);
        assert_eq!(Encoding::of("gpt-3.5-turbo"), Encoding::Cl100k);
        for model in ["gpt-4o-mini", "gpt-4.1", "gpt-5", "o3", "llama-70b", ""] {
            assert_eq!(Encoding::of(model), Encoding::O200k, "{model}");
        }
        // Published in OpenAI's cookbook for exactly this sentence.
        let sentence = "お誕生日おめでとう";
        assert_eq!(count_text(Encoding::Cl100k, sentence), Tokens::new(9));
        assert_eq!(count_text(Encoding::O200k, sentence), Tokens::new(8));
        assert_eq!(count_text(Encoding::O200k, ""), Tokens::ZERO);
    }

    #[test]
    fn cutting_long_prose_changes_nothing() {
        let text = PROSE.repeat(500);
        let whole = tiktoken_rs::o200k_base_singleton().count_ordinary(&text) as u64;
        assert_eq!(count_text(Encoding::O200k, &text), Tokens::new(whole));
    }

    #[test]
    fn a_chat_costs_its_markup() {
        let mut named = prompt("hello world");
        assert_eq!(count(&named), 2 + 4 + 3);
        named.names = 1;
        named.structured = Bytes::new(41);
        let image = |size, detail| Attachment::Image(Image { size, detail, api: Api::OpenAi });
        let square = PixelSize::new(1_024, 1_024);
        let images = [image(None, Detail::Low), image(None, Detail::Full), image(square, Detail::Full)];
        named.attachments = [images.as_slice(), &[Attachment::Audio(Bytes::new(2_134))]].concat();
        let counted = InputCounter::of("gpt-4o").count(&named);
        assert_eq!((counted.text, counted.markup), (Tokens::new(2), Tokens::new(8)));
        assert_eq!((counted.structured, counted.attachments), (Tokens::new(11), Tokens::new(85 + 1_445 + 765 + 2)));
        assert_eq!(counted.total().get(), 2 + 8 + 11 + 85 + 1_445 + 765 + 2);
        assert_eq!(count(&Prompt::default()), 0);
    }

    #[test]
    fn a_model_with_another_tokenizer_is_counted_nearly_and_its_images_by_the_api() {
        for (model, fit) in
            [("gpt-4o", Fit::Exact), ("gpt-4", Fit::Exact), ("gpt-oss-20b", Fit::Near), ("m", Fit::Near)]
        {
            assert_eq!(InputCounter::of(model).count(&prompt("x")).fit, fit, "{model}");
        }
        let image = |api| {
            let image = Attachment::Image(Image { size: PixelSize::new(1_000, 1_000), detail: Detail::Full, api });
            InputCounter::of("m").count(&Prompt { attachments: vec![image], ..Prompt::default() }).attachments.get()
        };
        assert_eq!((image(Api::OpenAi), image(Api::Anthropic)), (765, 1_296));
    }

    #[test]
    fn what_is_beyond_the_bound_is_taken_to_be_like_what_is_within() {
        let text = PROSE.repeat(4 * COUNTED_TEXT / PROSE.len());
        let exact = count_text(Encoding::O200k, &text).get();
        let quick = count(&prompt(&text));
        assert!(quick.abs_diff(exact) * 1_000 < exact, "{quick} for {exact}");
    }

    #[test]
    fn a_long_text_that_begins_with_blanks_is_counted_like_any_other() {
        let dense = "0123456789 ".repeat(6 * COUNTED_TEXT / 11);
        for text in [format!("{}{dense}", " ".repeat(COUNTED_TEXT)), format!("{dense}{}", " ".repeat(COUNTED_TEXT))] {
            let exact = count_text(Encoding::O200k, &text).get();
            let quick = count(&prompt(&text));
            assert!(quick.abs_diff(exact) * 10 < exact, "{quick} for {exact}");
        }
    }

    /// Linear time: what the tokenizer is given at once never exceeds a piece, whatever the text.
    #[test]
    fn pathological_text_is_cut_and_counted() {
        for unit in ["a", " ", "\n", "é", "0", "=", "a ", "\u{200b}", " \n"] {
            let text = unit.repeat(1_000_000 / unit.len());
            let count = count(&prompt(&text));
            assert!(count > 1_000 && count <= 1_100_000, "{unit:?}: {count}");
        }
    }

    #[test]
    fn fragments_count_like_the_text_they_make() {
        let text = PROSE.repeat(40);
        let exact = count_text(Encoding::O200k, &text);
        for size in [1, 3, 7, 400, text.len()] {
            let mut counter = OutputCounter::new(Encoding::O200k);
            let mut before = Tokens::ZERO;
            for fragment in text.as_bytes().chunks(size) {
                counter.push(std::str::from_utf8(fragment).expect("ascii"));
                assert!(
                    counter.so_far() + Tokens::new(64) >= before,
                    "an estimate may be corrected, but only a little"
                );
                before = counter.so_far();
            }
            assert_eq!(counter.exact(), exact, "in fragments of {size}");
        }
    }

    #[test]
    fn output_without_spaces_is_counted_as_it_comes() {
        let mut counter = OutputCounter::new(Encoding::O200k);
        for _ in 0..10_000 {
            counter.push("文字");
            assert!(counter.pending.len() < OutputCounter::MOST);
        }
        assert!(counter.exact() >= Tokens::new(10_000));
    }
}
