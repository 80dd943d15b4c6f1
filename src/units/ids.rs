//! Names of things: tenants, sessions, models, pools, classes, requests, tickets.
//!
//! Names that come from outside are shared strings, cheap to clone. Pools and classes are positions in the
//! policy, which fixes their order. Requests and tickets are numbers that are never used twice.

use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// Who is charged: the verified owner of a request.
    TenantId
}
name! {
    /// A conversation or agent run below a tenant. Client-asserted: it only ever divides its own tenant's share.
    SessionId
}
name! {
    /// A person or program below a tenant. Client-asserted unless the policy reads it from what Envoy vouches for.
    UserId
}
name! {
    /// A piece of work that may span sessions, such as one run of an agent, below a tenant. Client-asserted.
    TaskId
}
name! {
    /// A model's name, after aliases.
    Model
}

/// Who within a session speaks: the agent that leads it, or one that it started.
///
/// Client-asserted like the session itself: it only ever orders the requests of one session among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// The one that leads the session, and whoever says nothing of agents.
    #[default]
    Lead,
    /// One that another agent of the session started.
    Sub,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($int);

        impl $name {
            /// Wraps the number.
            #[must_use]
            pub const fn new(number: $int) -> Self {
                Self(number)
            }

            /// The number itself.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

number! {
    /// A pool's position in the policy's list.
    PoolIndex(u16), "pool"
}
number! {
    /// A class's position in the policy's list.
    ClassIndex(u16), "class"
}
number! {
    /// One request's life at one gateway. Never reused within a process.
    RequestId(u64), "r"
}
number! {
    /// One dispatch. Settled exactly once, by this id.
    TicketId(u64), "t"
}

/// The public name of a decision, as answered in `x-tallygate-decision`: unguessable enough to be unique
/// across restarts, since it carries the process's start beside the request's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// Distinguishes process starts.
    pub epoch: u32,
    /// The request decided on.
    pub request: RequestId,
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:x}", self.epoch, self.request.get())
    }
}

impl std::str::FromStr for DecisionId {
    type Err = super::ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |part: &str, most: usize| {
            let plain = part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            (plain && (1..=most).contains(&part.len())).then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        let parts = text.split_once('-').and_then(|(epoch, request)| {
            let epoch = u32::try_from(digits(epoch, 8).filter(|_| epoch.len() == 8)?).ok()?;
            Some(Self { epoch, request: RequestId::new(digits(request, 16)?) })
        });
        parts.ok_or_else(|| {
            super::ParseUnitError("a decision id is eight hex digits, a dash and up to sixteen more".into())
        })
    }
}

impl fmt::Debug for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PoolIndex {
    /// As an index into the policy's list of pools.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ClassIndex {
    /// As an index into the policy's list of classes.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{DecisionId, RequestId};

    #[test]
    fn a_decision_id_is_read_as_it_is_written() {
        for (epoch, number) in [(0, 0), (0xabcd, 7), (u32::MAX, u64::MAX)] {
            let id = DecisionId { epoch, request: RequestId::new(number) };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in
            ["", "-", "abcd-7", "0000abcd", "0000abcd-", "0000ABCD-7", "0000abcd-+7", "0000abcd-g", "00000abcd-7"]
        {
            assert!(bad.parse::<DecisionId>().is_err(), "{bad}");
        }
        assert!("0000abcd-11111111111111111".parse::<DecisionId>().is_err());
    }
}
