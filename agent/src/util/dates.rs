//! PURE: dates of the calendar.

/// Returns year, month and day of a day since 1970-01-01 (the proleptic Gregorian calendar). Years are counted
/// from March: the leap day is then the last day of its year, so months have fixed lengths.
pub fn civil_date(day: i64) -> (i64, i64, i64) {
    const DAYS_IN_400_YEARS: i64 = 146_097;
    let since_march_0000 = day + 719_468;
    let era = since_march_0000.div_euclid(DAYS_IN_400_YEARS);
    let day = since_march_0000.rem_euclid(DAYS_IN_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, date)
}
