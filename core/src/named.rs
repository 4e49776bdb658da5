//! Enums with a word on the wire for each value.

/// An enum with a word for each value. Also generates `ALL`, `name` and `of_name`.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$value_attribute:meta])* $value:ident => $word:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$value_attribute])* $value,)*
        }

        impl $name {
            /// The number of values.
            pub const COUNT: usize = [$($word),*].len();

            /// All values.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$value),*];

            /// The word on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }

            /// The value with this word.
            pub(crate) fn of_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}

pub(crate) use named;
