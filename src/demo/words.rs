//! What a simulated answer says: filler, one token a word.
//!
//! Common short English words, each a single token with its leading space in OpenAI's vocabularies (a test counts
//! them), so that text length and usage agree and a reader sees something that reads like words. Which word stands
//! where follows from the answer's number and the position alone.

const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "they", "at", "be",
    "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we", "there",
    "can", "an", "your", "which", "their", "said", "if", "do", "will", "each", "about", "how", "up", "out", "them",
    "then", "she", "many", "some", "so", "these", "would", "other", "into", "has", "more", "her", "two", "like", "him",
    "see", "time",
];

/// The token at a position, from 0, of an answer: a word, with a space in front of it but for the first.
pub(super) fn token(answer: u64, position: u64) -> String {
    // A mixing step of splitmix64: neighbours look unrelated, and nothing needs to be remembered.
    let mut mixed = answer.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(position);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 27;
    let index = usize::try_from(mixed % 64).expect("below 64");
    if position == 0 { WORDS[index].to_owned() } else { format!(" {}", WORDS[index]) }
}

/// The whole text of an answer.
pub(super) fn text(answer: u64, tokens: u64) -> String {
    (0..tokens).map(|position| token(answer, position)).collect()
}

#[cfg(test)]
mod tests {
    use super::{WORDS, text};

    #[test]
    fn every_word_is_one_token() {
        let bpe = tiktoken_rs::o200k_base_singleton();
        for word in WORDS {
            assert_eq!(bpe.encode_ordinary(word).len(), 1, "{word}");
            assert_eq!(bpe.encode_ordinary(&format!(" {word}")).len(), 1, "{word}");
        }
    }

    #[test]
    fn an_answer_has_as_many_tokens_as_it_says_and_is_always_the_same() {
        let answer = text(3, 500);
        assert_eq!(tiktoken_rs::o200k_base_singleton().encode_ordinary(&answer).len(), 500);
        assert_eq!(answer, text(3, 500));
        assert_ne!(answer, text(4, 500));
    }
}
