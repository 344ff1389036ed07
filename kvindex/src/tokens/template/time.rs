//! Dates for templates that tell them: `strftime` in the C locale, UTC.

use std::fmt::Write as _;

const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    year: i64,
    /// From 1 on.
    month: i64,
    day: i64,
    /// From 1 on.
    day_of_year: i64,
    /// Days since the epoch.
    days: i64,
    /// Seconds since midnight.
    seconds: i64,
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(month: i64, year: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn moment(unix: i64) -> Moment {
    // Years 1970 to 9999 are enough for a clock.
    let unix = unix.clamp(0, 253_402_300_799);
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    let (mut year, mut rest) = (1970, days);
    while rest >= 365 + i64::from(is_leap(year)) {
        rest -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let day_of_year = rest + 1;
    let mut month = 1;
    while rest >= days_of(month, year) {
        rest -= days_of(month, year);
        month += 1;
    }
    Moment {
        year,
        month,
        day: rest + 1,
        day_of_year,
        days,
        seconds,
    }
}

/// Formats Unix time. What is no known directive stays as it is.
pub(super) fn format(format: &str, unix: i64) -> String {
    let at = moment(unix);
    let (hour, minute, second) = (at.seconds / 3600, at.seconds / 60 % 60, at.seconds % 60);
    let day = name(&DAYS, at.days % 7);
    let month = name(&MONTHS, at.month - 1);
    let noon = if hour < 12 { "AM" } else { "PM" };
    let clock = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (bare, directive) = match after.strip_prefix('-') {
            Some(directive) => (true, directive),
            None => (false, after),
        };
        let mut letters = directive.chars();
        let letter = letters.next();
        rest = letters.as_str();
        let mut number = |value: i64, width: usize| {
            let width = if bare { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match letter {
            Some('Y') => number(at.year, 4),
            Some('y') => number(at.year % 100, 2),
            Some('m') => number(at.month, 2),
            Some('d') => number(at.day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(clock, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(at.day_of_year, 3),
            Some('B') => out.push_str(month),
            Some('b') => out.push_str(month.get(..3).unwrap_or(month)),
            Some('A') => out.push_str(day),
            Some('a') => out.push_str(day.get(..3).unwrap_or(day)),
            Some('p') => out.push_str(noon),
            Some('F') => {
                let _ = write!(out, "{:04}-{:02}-{:02}", at.year, at.month, at.day);
            }
            Some('T') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
            }
            Some('Z') => {}
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(bare.then_some('-').into_iter().chain(other));
            }
        }
    }
    out.push_str(rest);
    out
}

fn name(names: &[&'static str], at: i64) -> &'static str {
    let at = usize::try_from(at).ok();
    at.and_then(|at| names.get(at)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_right_at_the_edges() {
        for (unix, expected) in [
            (0, "1970-01-01 Thu 001 00:00:00 12AM"),
            (951_782_399, "2000-02-28 Mon 059 23:59:59 11PM"),
            (951_868_800, "2000-03-01 Wed 061 00:00:00 12AM"),
            (4_107_542_400, "2100-03-01 Mon 060 00:00:00 12AM"),
            (1_735_646_400, "2024-12-31 Tue 366 12:00:00 12PM"),
        ] {
            assert_eq!(format("%F %a %j %T %I%p", unix), expected);
        }
        assert_eq!(format("%-m/%-d/%y %% %Q %", 0), "1/1/70 % %Q %");
    }
}
