//! PURE: lengths of time in a readable form.

/// Formats a length of time in its two largest units, such as `17 min 48 s`.
pub fn format_duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, left) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds < 10 => format!("{left}.{} s", ms % 1000 / 100),
        (0, 0, 0) => format!("{left} s"),
        (0, 0, _) if left == 0 => format!("{minutes} min"),
        (0, 0, _) => format!("{minutes} min {left} s"),
        (0, _, 0) => format!("{hours} h"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, 0, _) => format!("{days} d"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_at_most_two_units() {
        let spans =
            [0, 9_940, 12_345, 754_000, 7_800_000, 10_800_000, 200_000_000].map(format_duration);
        assert_eq!(
            spans,
            ["0.0 s", "9.9 s", "12 s", "12 min 34 s", "2 h 10 min", "3 h", "2 d 7 h"]
        );
    }
}
