//! Durations on the command line: `30s`, `250ms`, `1m`, `2h`. A number alone is seconds, as for
//! sleep(1) and timeout(1).

use std::time::Duration;

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("unknown unit '{unit}'; expected ms, s, m, h or d, as in 30s")),
    };
    let number: f64 = number.parse().map_err(|_| format!("'{number}' is no number; expected one, as in 30s"))?;
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| "too long".to_owned())
}

/// Parses a duration for which the server keeps a lock closed.
pub(crate) fn parse_keep(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(365 * 86400);
    parse(text)
        .and_then(|span| if span <= LONGEST { Ok(span) } else { Err("too long; expected at most 365d".to_owned()) })
}

/// Parses how long a hold outlives its connection.
pub(crate) fn parse_session(text: &str) -> Result<Duration, String> {
    let span = parse(text)?;
    if span < Duration::from_millis(10) { Err("too short; expected at least 10ms".to_owned()) } else { Ok(span) }
}

/// A duration for a table, with the two largest units.
pub(crate) fn brief(span_ms: u64) -> String {
    let seconds = span_ms / 1000;
    match seconds {
        0 => format!("{span_ms}ms"),
        1..60 => format!("{seconds}.{}s", span_ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        let ms = |text| parse(text).map(|span| span.as_millis());
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("250ms"), Ok(250));
        assert_eq!(ms("1.5m"), Ok(90_000));
        assert_eq!(ms("2"), Ok(2_000));
        assert_eq!(ms("0"), Ok(0));
        assert!(ms("s").is_err() && ms("5 s").is_err() && ms("-1s").is_err() && ms("1e9s").is_err());
        assert!(ms("99999999999999999999999d").is_err());
        assert!(parse_session("10ms").is_ok() && parse_session("9ms").is_err());
    }

    #[test]
    fn durations_are_printed() {
        let written = [7, 12_345, 61_000, 3_600_000, 90_000_000].map(brief);
        assert_eq!(written, ["7ms", "12.3s", "1m01s", "1h00m", "1d01h"]);
    }
}
