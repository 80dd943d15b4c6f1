//! What an image costs, by the formulas the providers publish.
//!
//! *Decides* the input tokens of one image from its size in pixels, the detail asked for and the model's name after
//! aliases. The formulas, in pixels and tokens:
//!
//! ```text
//! patches of 32 px  p = ⌈w/32⌉·⌈h/32⌉, at most 1,536 after scaling down so that whole patches fit; times a factor
//!                   (OpenAI: gpt-5-mini and gpt-4.1-mini 1.62, their nano models 2.46, o4-mini 1.72)
//! tiles of 512 px   scaled down into 2,048², then to a short side of 768; base + tile·⌈w/512⌉·⌈h/512⌉
//!                   (OpenAI: gpt-4o, gpt-4.1 and gpt-4.5 85 + 170; gpt-5 70 + 140; o1 and o3 75 + 150;
//!                   gpt-4o-mini 2,833 + 5,667; computer-use 65 + 129); low detail is the base alone
//! patches of 28 px  ⌈w/28⌉·⌈h/28⌉, scaled down to a long edge of 1,568 and at most 1,568 tokens; 2,576 and 4,784
//!                   for the models that see more (Claude)
//! tiles of 768 px   258 where neither side is longer than 384, else 258·⌈w/768⌉·⌈h/768⌉ (Gemini)
//! ```
//!
//! An image whose size is not known, because it is only referred to or its data makes no sense, costs the most the
//! formula can give. A model whose name says nothing is reckoned by the formula most used in the API it is called
//! through: gpt-4o's tiles in OpenAI's, Claude's standard tier in Anthropic's, Gemini's tiles in Google's. Open models each have a formula of
//! their own, from a fixed 256 tokens to tens of thousands; these two lie among them, and the settlement makes good
//! what they are off by. Low detail of a patch model is the image scaled down into 512², as the detail is described;
//! no formula is published for it.
//!
//! Never fails, whatever the size: a side of four thousand million pixels costs what the largest image costs.

/// A size in pixels. Neither side is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelSize {
    width: u64,
    height: u64,
}

impl PixelSize {
    /// Nothing where a side is zero: there is no such image.
    #[must_use]
    pub fn new(width: u32, height: u32) -> Option<Self> {
        (width > 0 && height > 0).then_some(Self { width: width.into(), height: height.into() })
    }

    /// Scaled down, in proportion, so that neither side is longer than so many pixels.
    fn within(self, edge: u64) -> Self {
        self.scaled(edge, self.width.max(self.height))
    }

    /// Scaled down so that a length of `from` pixels becomes one of `to`.
    fn scaled(self, to: u64, from: u64) -> Self {
        if from <= to {
            return self;
        }
        let side = |side: u64| (side * to / from).max(1);
        Self { width: side(self.width), height: side(self.height) }
    }

    /// How many squares of so many pixels cover it.
    fn squares(self, side: u64) -> u64 {
        self.width.div_ceil(side) * self.height.div_ceil(side)
    }
}

/// The detail a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As little as there is.
    Low,
    /// Anything else: `auto` may mean as much, and most often does.
    #[default]
    Full,
}

/// Whose API an image is stated in. Decides where the model's name says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's, or one like it.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Google's.
    Gemini,
}

/// An image in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its size, where it is known.
    pub size: Option<PixelSize>,
    /// The detail asked for.
    pub detail: Detail,
    /// Whose API it is stated in.
    pub api: Api,
}

/// How a model's images are reckoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    /// OpenAI's patches, and the hundredths of a token that each costs.
    Patches { hundredths: u64 },
    /// OpenAI's tiles: what any image costs, and what each tile costs.
    Tiles { base: u64, tile: u64 },
    /// Claude's patches: the longest edge in pixels, and the most tokens.
    Claude { edge: u64, most: u64 },
    /// Gemini's: a small image, or each tile of a larger one.
    Gemini,
}

const PATCH: u64 = 32;
const MOST_PATCHES: u64 = 1_536;
/// The same, for roots.
const PATCH_SIDE: f64 = 32.0;
const MOST_PATCHES_AREA: f64 = 1_536.0;
const LOW_EDGE: u64 = 512;
const TILE: u64 = 512;
const TILED_EDGE: u64 = 2_048;
const TILED_SHORT: u64 = 768;
const MOST_TILES: u64 = 8;
const CLAUDE_PATCH: u64 = 28;
const GEMINI_TILE: u64 = 258;
const GEMINI_SMALL: u64 = 384;
const GEMINI_SIDE: u64 = 768;
/// Of an image whose size is not known: one of 1,536 by 1,536. The formula itself knows no largest.
const GEMINI_UNKNOWN: u64 = 4;

const GPT_4O: Formula = Formula::Tiles { base: 85, tile: 170 };
const CLAUDE: Formula = Formula::Claude { edge: 1_568, most: 1_568 };
const CLAUDE_FINE: Formula = Formula::Claude { edge: 2_576, most: 4_784 };

/// Which formula is whose. The first part of a name that a model's name has decides, so longer ones stand first.
const FORMULAS: [(&str, Formula); 22] = [
    ("gpt-5-mini", Formula::Patches { hundredths: 162 }),
    ("gpt-5-nano", Formula::Patches { hundredths: 246 }),
    ("gpt-4.1-mini", Formula::Patches { hundredths: 162 }),
    ("gpt-4.1-nano", Formula::Patches { hundredths: 246 }),
    ("o4-mini", Formula::Patches { hundredths: 172 }),
    ("gpt-4o-mini", Formula::Tiles { base: 2_833, tile: 5_667 }),
    ("gpt-4o", GPT_4O),
    ("gpt-4.1", GPT_4O),
    ("gpt-4.5", GPT_4O),
    ("gpt-5", Formula::Tiles { base: 70, tile: 140 }),
    ("computer-use", Formula::Tiles { base: 65, tile: 129 }),
    ("opus-4-7", CLAUDE_FINE),
    ("opus-4.7", CLAUDE_FINE),
    ("opus-4-8", CLAUDE_FINE),
    ("opus-4.8", CLAUDE_FINE),
    ("sonnet-5", CLAUDE_FINE),
    ("fable-5", CLAUDE_FINE),
    ("mythos-5", CLAUDE_FINE),
    ("claude", CLAUDE),
    ("gemini", Formula::Gemini),
    ("o1", Formula::Tiles { base: 75, tile: 150 }),
    ("o3", Formula::Tiles { base: 75, tile: 150 }),
];

impl Formula {
    /// A model's, by its name after aliases; nothing where the name says nothing.
    pub(super) fn of(model: &str) -> Option<Self> {
        let begins = |part: &str| {
            model.match_indices(part).any(|(at, _)| at == 0 || !model.as_bytes()[at - 1].is_ascii_alphanumeric())
        };
        FORMULAS.iter().find(|(part, _)| begins(part)).map(|(_, formula)| *formula)
    }

    /// The one for models whose name says nothing.
    pub(super) fn usual(api: Api) -> Self {
        match api {
            Api::OpenAi => GPT_4O,
            Api::Anthropic => CLAUDE,
            Api::Gemini => Self::Gemini,
        }
    }

    /// What an image costs, in tokens.
    pub(super) fn cost(self, image: Image) -> u64 {
        match self {
            Self::Patches { hundredths } => {
                let patches = match (image.size, image.detail) {
                    (Some(size), Detail::Full) => patches(size),
                    (Some(size), Detail::Low) => patches(size.within(LOW_EDGE)),
                    (None, Detail::Full) => MOST_PATCHES,
                    (None, Detail::Low) => (LOW_EDGE / PATCH).pow(2),
                };
                (patches * hundredths).div_ceil(100)
            }
            Self::Tiles { base, .. } if image.detail == Detail::Low => base,
            Self::Tiles { base, tile } => base + tile * image.size.map_or(MOST_TILES, tiles),
            Self::Gemini => GEMINI_TILE * image.size.map_or(GEMINI_UNKNOWN, gemini_tiles),
            Self::Claude { edge, most } => {
                image.size.map_or(most, |size| size.within(edge).squares(CLAUDE_PATCH).min(most))
            }
        }
    }
}

/// One where neither side is long, else squares of 768.
fn gemini_tiles(size: PixelSize) -> u64 {
    if size.width.max(size.height) <= GEMINI_SMALL { 1 } else { size.squares(GEMINI_SIDE) }
}

fn tiles(size: PixelSize) -> u64 {
    let size = size.within(TILED_EDGE);
    size.scaled(TILED_SHORT, size.width.min(size.height)).squares(TILE)
}

/// OpenAI's patches: scaled down where there are too many, and then so that one side is a whole number of them.
fn patches(size: PixelSize) -> u64 {
    if size.squares(PATCH) <= MOST_PATCHES {
        return size.squares(PATCH);
    }
    #[expect(clippy::cast_precision_loss, reason = "a side of an image has 32 bits")]
    let [width, height] = [size.width, size.height].map(|side| side as f64 / PATCH_SIDE);
    let shrink = (MOST_PATCHES_AREA / (width * height)).sqrt();
    let (wide, high) = (width * shrink, height * shrink);
    let snap = (wide.floor() / wide).min(high.floor() / high);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; `as` saturates")]
    let whole = |side: f64| ((side * snap - 1e-9).ceil() as u64).max(1);
    (whole(wide) * whole(high)).min(MOST_PATCHES)
}

#[cfg(test)]
mod tests {
    use super::{Api, Detail, Formula, Image, PixelSize};

    fn cost(model: &str, size: Option<(u32, u32)>, detail: Detail) -> u64 {
        let size = size.map(|(width, height)| PixelSize::new(width, height).expect("not empty"));
        let formula = Formula::of(model).unwrap_or(Formula::usual(Api::OpenAi));
        formula.cost(Image { size, detail, api: Api::OpenAi })
    }

    #[test]
    fn published_examples_come_out_as_published() {
        for (model, size, tokens) in [
            ("gpt-4o", (1_024, 1_024), 765),
            ("gemini-2.5-flash", (384, 384), 258),
            ("gemini-2.5-flash", (960, 540), 2 * 258),
            ("gpt-4o", (2_048, 4_096), 1_105),
            ("gpt-4o", (512, 512), 255),
            ("gpt-5", (1_024, 1_024), 70 + 4 * 140),
            ("gpt-4o-mini", (1_024, 1_024), 2_833 + 4 * 5_667),
            ("o3", (1_024, 1_024), 75 + 4 * 150),
            ("computer-use-preview", (1_024, 1_024), 65 + 4 * 129),
            // 1,024 patches, and 33 × 44 of an image that has to be scaled down.
            ("gpt-4.1-mini", (1_024, 1_024), 1_659),
            ("gpt-5-nano", (1_800, 2_400), 3_572),
            ("o4-mini", (1_800, 2_400), 2_498),
            ("claude-sonnet-4-5", (200, 200), 64),
            ("claude-sonnet-4-5", (1_000, 1_000), 1_296),
            ("claude-sonnet-4-5", (1_092, 1_092), 1_521),
            ("claude-sonnet-4-5", (3_000, 2_000), 1_568),
            ("claude-opus-4-7", (3_000, 2_000), 4_784),
            ("claude-opus-4-8", (1_092, 1_092), 1_521),
        ] {
            assert_eq!(cost(model, Some(size), Detail::Full), tokens, "{model} {size:?}");
        }
        assert_eq!(cost("gpt-4o", Some((4_096, 8_192)), Detail::Low), 85);
        assert_eq!(cost("gpt-5-mini", Some((4_096, 4_096)), Detail::Low), 415, "256 patches");
    }

    #[test]
    fn an_unknown_size_costs_the_most_and_no_size_costs_more() {
        let models =
            ["gpt-4o", "gpt-4o-mini", "gpt-5", "gpt-5-mini", "o1", "o4-mini", "claude-3-opus", "sonnet-5", "llama"];
        for model in models {
            for detail in [Detail::Full, Detail::Low] {
                let most = cost(model, None, detail);
                for width in [1, 27, 28, 29, 511, 513, 768, 2_049, 9_999, u32::MAX] {
                    for height in [1, 32, 33, 512, 1_569, 5_000, u32::MAX] {
                        let tokens = cost(model, Some((width, height)), detail);
                        assert!((1..=most).contains(&tokens), "{model} {width}×{height}: {tokens} of {most}");
                    }
                }
            }
        }
        assert_eq!((PixelSize::new(0, 5), PixelSize::new(5, 0)), (None, None));
    }

    #[test]
    fn the_name_decides_wherever_in_it_the_model_stands() {
        let fine = Formula::of("claude-opus-4-7");
        for name in ["anthropic/claude-opus-4-7", "us.anthropic.claude-opus-4-7-v1:0", "claude-opus-4.7"] {
            assert_eq!(Formula::of(name), fine, "{name}");
        }
        assert_eq!(Formula::of("openai/gpt-4o-2024-08-06"), Formula::of("gpt-4o"));
        assert_ne!(Formula::of("gpt-4o-mini"), Formula::of("gpt-4o"));
        for name in ["llama-70b", "pro1", "foo3-large", "qwen2.5-vl", ""] {
            assert_eq!(Formula::of(name), None, "{name}");
        }
    }
}
