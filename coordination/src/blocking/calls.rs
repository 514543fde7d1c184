//! How blocking types are written: each call waits for the async call of its name.

/// The calls of a blocking type, in a file that imports `wait` and `Result`. `self.0` is the async one.
macro_rules! calls {
    ($type:ident $(<$of:ident: $one:ident + $other:ident>)?: $(
        $call:ident($($name:ident: $argument:ty),*) -> $output:ty;
    )*) => {
        impl $(<$of: $one + $other>)? $type $(<$of>)? {
            $(
                #[doc = concat!(
                    "Like [`crate::", stringify!($type), "::", stringify!($call),
                    "`], but blocks the thread until the call is done."
                )]
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`crate::", stringify!($type), "::", stringify!($call), "`].")]
                pub fn $call(&self, $($name: $argument),*) -> Result<$output> {
                    wait(self.0.$call($($name),*))
                }
            )*
        }
    };
}

/// The name of what a blocking type stands for, and how the type is made of the async one.
macro_rules! wraps {
    ($type:ident $(<$of:ident: $one:ident + $other:ident>)?) => {
        impl $(<$of: $one + $other>)? $type $(<$of>)? {
            #[doc = concat!("Does the same as [`crate::", stringify!($type), "::name`].")]
            pub fn name(&self) -> &str {
                self.0.name()
            }
        }

        impl $(<$of>)? From<crate::$type $(<$of>)?> for $type $(<$of>)? {
            fn from(wrapped: crate::$type $(<$of>)?) -> Self {
                Self(wrapped)
            }
        }
    };
}

/// What the blocking coordinator makes without I/O, in a file that imports it and `Result`.
macro_rules! made {
    ($($type:ident by $call:ident($($name:ident: $argument:ty),*);)*) => {
        impl Coordinator {
            $(
                #[doc = concat!("Does the same as [`crate::Coordinator::", stringify!($call), "`].")]
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`crate::Coordinator::", stringify!($call), "`].")]
                pub fn $call(&self, $($name: $argument),*) -> Result<$type> {
                    self.0.$call($($name),*).map($type)
                }
            )*
        }
    };
}

/// How blocking types are given a label, in a file that imports `Result`.
macro_rules! labelled {
    ($($type:ident)*) => {
        $(
            impl $type {
                #[doc = concat!("Does the same as [`crate::", stringify!($type), "::label`].")]
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`crate::", stringify!($type), "::label`].")]
                pub fn label(self, label: impl AsRef<str>) -> Result<Self> {
                    self.0.label(label).map(Self)
                }
            }
        )*
    };
}

pub(super) use {calls, labelled, made, wraps};
