//! How a scenario fails.

/// A rule that was broken, and by what.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The rules of BEHAVIOUR.md, `driver` if the driver itself could not do something, `none` if the program lacks what the scenario needs.
    pub rules: String,
    pub text: String,
}

impl Broken {
    pub fn new(rules: &str, text: impl Into<String>) -> Broken {
        Broken { rules: rules.to_owned(), text: text.into() }
    }

    /// The library of this program cannot do it, which is no fault.
    pub fn lacking(text: impl Into<String>) -> Broken {
        Broken::new("none", text)
    }
}

/// Fails the scenario, naming the rules, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $rules:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::broken::Broken::new($rules, format!($($text)+)));
        }
    };
}
pub(crate) use ensure;
