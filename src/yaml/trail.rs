//! The way from the root of a text to the part being looked at, shown as people write it: `pools[0].window`.

use std::fmt::{self, Write};

use super::mistake::excerpt;

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// The steps so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail(Vec<Step>);

impl Trail {
    pub(super) fn push_key(&mut self, key: &str) {
        self.0.push(Step::Key(key.to_owned()));
    }

    pub(super) fn push_index(&mut self, index: usize) {
        self.0.push(Step::Index(index));
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    pub(super) fn pop(&mut self) {
        self.0.pop();
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'?');
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if !key.is_empty() && key.bytes().all(plain) => {
                    if depth > 0 {
                        f.write_char('.')?;
                    }
                    f.write_str(key)?;
                }
                Step::Key(key) => write!(f, "[{}]", excerpt(key))?,
            }
        }
        Ok(())
    }
}
