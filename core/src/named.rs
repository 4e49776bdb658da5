//! Enums whose values have words, as on the wire.

/// An enum with a word for each value. A value that is added is in `ALL`, has its name, and is found by it.
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
            /// How many there are.
            pub const COUNT: usize = [$($word),*].len();

            /// All of them.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$value),*];

            /// The name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }

            /// The one with a name.
            pub(crate) fn of_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}

pub(crate) use named;
