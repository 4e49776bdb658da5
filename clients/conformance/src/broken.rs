//! How a scenario fails.

/// Broken rules, and the observation that shows it.
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

    /// The library of this program lacks an ability, which is not a failure.
    pub fn lacking(text: impl Into<String>) -> Broken {
        Broken::new("none", text)
    }
}

/// Adds rules and context to the failure of a step.
pub trait Under<T> {
    fn under(self, rules: &str) -> Result<T, Broken>;
    fn during(self, what: &str) -> Result<T, Broken>;
}

impl<T> Under<T> for Result<T, Broken> {
    fn under(self, rules: &str) -> Result<T, Broken> {
        self.map_err(|broken| Broken::new(rules, broken.text))
    }

    fn during(self, what: &str) -> Result<T, Broken> {
        self.map_err(|broken| Broken { text: format!("{what}: {}", broken.text), ..broken })
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
