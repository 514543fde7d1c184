//! Names of items and of claims: 128 bits each.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::env;

macro_rules! id {
    ($(#[$doc:meta])* $id:ident) => {
        $(#[$doc])*
        ///
        /// It is shown as 32 hexadecimal digits. Any other text is read as the name of nothing: so a service can hand on what
        /// its callers send, and they are told the same as of any other name that is not known.
        ///
        /// # Examples
        ///
        /// ```
        #[doc = concat!("use coordination::", stringify!($id), ";")]
        ///
        #[doc = concat!("let name: ", stringify!($id), " = \"0123456789abcdef0123456789abcdef\".parse()?;")]
        /// assert_eq!(name.to_string(), "0123456789abcdef0123456789abcdef");
        /// # Ok::<_, std::convert::Infallible>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id(u128);

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $id {
            type Err = std::convert::Infallible;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
                Ok(Self(number.unwrap_or_default()))
            }
        }

        impl Serialize for $id {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|never| match never {})
            }
        }
    };
}

id! {
    /// The name of an item of a [`WorkQueue`](crate::WorkQueue): its rank, and 64 random bits.
    ItemId
}

id! {
    /// The name of a claim: 128 random bits, and a capability, since whoever has it can renew, release and acknowledge.
    ClaimId
}

impl ItemId {
    pub(super) fn new(rank: u64, mark: u64) -> Self {
        Self(u128::from(rank) << 64 | u128::from(mark))
    }

    pub(super) fn rank(self) -> u64 {
        (self.0 >> 64) as u64
    }

    pub(super) fn mark(self) -> u64 {
        self.0 as u64
    }
}

impl ClaimId {
    /// A new one, from the operating system's random numbers.
    pub fn random() -> Self {
        Self(env::rng().random_range(1..=u128::MAX))
    }

    /// Whether it was read from text that is no name: nobody can have a claim of it.
    pub(super) fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Claims are spread over buckets by this byte, and within a bucket by the [`rest`](Self::rest).
    pub(super) fn bucket(self) -> u8 {
        self.0 as u8
    }

    pub(super) fn rest(self) -> u128 {
        self.0 >> 8
    }
}
