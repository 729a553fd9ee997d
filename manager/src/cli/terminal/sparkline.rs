//! PURE: sparklines, which show a curve as a line of characters.

/// The maximum number of characters in a sparkline.
pub(in crate::cli) const MAX_SPARKLINE_CHARS: usize = 24;

/// Returns the last numbers as a sparkline. The scale ranges from the lowest to the highest of them.
pub(in crate::cli) fn sparkline(values: &[f64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let values = &values[values.len().saturating_sub(MAX_SPARKLINE_CHARS)..];
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Halved, because the difference of the highest and the lowest number may overflow.
    let span = high / 2.0 - low / 2.0;
    let step = |value: &f64| {
        let part = if span > 0.0 { (value / 2.0 - low / 2.0) / span } else { 0.5 };
        let at = (1..STEPS.len()).take_while(|at| part >= share_of(*at, STEPS.len())).count();
        STEPS[at]
    };
    values.iter().map(step).collect()
}

/// Returns a bar of `width` characters that shows a share from 0 to 1.
pub(in crate::cli) fn bar(part: f64, width: usize) -> String {
    let full = (1..=width).take_while(|at| part >= share_of(*at, width)).count();
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// Returns `count` divided by `whole`.
fn share_of(count: usize, whole: usize) -> f64 {
    let real = |count: usize| u32::try_from(count).map_or(f64::NAN, f64::from);
    real(count) / real(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_numbers_have_a_sparkline() {
        for (values, expected) in [
            (&[1e308, -1e308, 0.0][..], "█▁▅"),
            (&[f64::MAX, f64::MIN], "█▁"),
            (&[1.0, 1e38, 2.0], "▁█▁"),
            (&[f64::NAN, f64::INFINITY, 1.0, f64::NEG_INFINITY, 2.0], "▁█"),
            (&[5e-324, 0.0], "▅▅"),
            (&[7.0], "▅"),
            (&[], ""),
        ] {
            assert_eq!(sparkline(values), expected, "{values:?}");
        }
    }
}
