//! Numbers on the command line and in `io` commands.

use std::ops::RangeInclusive;

/// Why a word is no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// It is no number with a suffix that is known.
    #[error("non-numeric argument, or extraneous/unrecognized suffix")]
    Invalid,
    /// It is negative or beyond the largest offset, 2^63 - 1.
    #[error("argument too large")]
    TooLarge,
}

/// A number of bytes: decimal, perhaps with a fraction, and a suffix `b`, `k`, `M`, `G`, `T`, `P` or `E` (powers of
/// 1024, in either case), or hexadecimal after `0x`.
pub fn size(word: &str) -> Result<u64, NumberError> {
    let (digits, negative) = match word.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (word.strip_prefix('+').unwrap_or(word), false),
    };
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.starts_with(|c: char| c.is_ascii_hexdigit()) => {
            u128::from_str_radix(hex, 16).map_err(|_| NumberError::Invalid)?
        }
        Some(_) => return Err(NumberError::Invalid),
        None => decimal(digits)?,
    };
    match u64::try_from(value) {
        Ok(value) if value <= i64::MAX as u64 && (!negative || value == 0) => Ok(value),
        _ => Err(NumberError::TooLarge),
    }
}

fn decimal(digits: &str) -> Result<u128, NumberError> {
    let (number, shift) = match digits.char_indices().next_back() {
        Some((at, last)) if !last.is_ascii_digit() => {
            (digits.get(..at).unwrap_or_default(), suffix(last).ok_or(NumberError::Invalid)?)
        }
        _ => (digits, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty())
        || !all_digits(whole)
        || !all_digits(fraction)
        || fraction.len() > 18
    {
        return Err(NumberError::Invalid);
    }
    // A fraction of a byte is no size.
    if shift == 0 && number.contains('.') {
        return Err(NumberError::Invalid);
    }
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| NumberError::TooLarge)?,
    };
    let unit = 10u128.pow(u32::try_from(fraction.len()).expect("at most 18"));
    let fraction: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| NumberError::Invalid)? };
    // Below 2^64 * 2^60.
    Ok((u128::from(whole) << shift) + (fraction << shift) / unit)
}

fn suffix(letter: char) -> Option<u32> {
    let power = "bkmgtpe".find(letter.to_ascii_lowercase())?;
    Some(10 * u32::try_from(power).expect("one of seven"))
}

/// A parser of sizes within `range`, which calls them `what` in its errors.
pub fn sizes(
    what: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |word| within(what, &range, word, size(word))
}

/// The same for numbers without suffix.
pub fn counts(
    what: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |word| {
        let plain = !word.contains('.')
            && (word.starts_with("0x") || word.ends_with(|c: char| c.is_ascii_digit()));
        let value = if plain { size(word) } else { Err(NumberError::Invalid) };
        within(what, &range, word, value)
    }
}

fn within(
    what: &str,
    range: &RangeInclusive<u64>,
    word: &str,
    value: Result<u64, NumberError>,
) -> Result<u64, String> {
    match value {
        Ok(value) if range.contains(&value) => Ok(value),
        Err(NumberError::Invalid) => Err(format!("Invalid {what} specified: '{word}'.")),
        Ok(_) | Err(NumberError::TooLarge) => Err(format!(
            "Invalid {what} specified. Must be between {} and {}.",
            range.start(),
            range.end()
        )),
    }
}

/// A number of bytes for people, with three digits, as qemu-img prints it.
pub fn short(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // From 1000 on the next unit is used.
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let number = format!("{value:.decimals$}");
    let number = match number.as_str() {
        "1000" => "1e+03",
        number if number.contains('.') => number.trim_end_matches('0').trim_end_matches('.'),
        number => number,
    };
    format!("{number} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        let good = [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("1.5k", 1536),
            (".5k", 512),
            ("010", 10),
            ("+5", 5),
            ("0x200", 512),
            ("7b", 7),
            ("0.5M", 512 << 10),
            ("3G", 3 << 30),
            ("1T", 1 << 40),
            ("7E", 7 << 60),
            ("9223372036854775807", i64::MAX as u64),
        ];
        for (word, value) in good {
            assert_eq!(size(word), Ok(value), "{word}");
        }
        for word in ["", "x", "k", "1.5", "1kk", "0x", "0xg", "1k5", ".k", "1e3", "4 k", "--1", "é"]
        {
            assert_eq!(size(word), Err(NumberError::Invalid), "{word}");
        }
        for word in
            ["-1", "8E", "9223372036854775808", "99999999999999999999999", "0x8000000000000000"]
        {
            assert_eq!(size(word), Err(NumberError::TooLarge), "{word}");
        }
    }

    #[test]
    fn errors_say_the_range() {
        let count = counts("request count", 1..=9);
        assert_eq!(count("9"), Ok(9));
        assert_eq!(count("0x9"), Ok(9));
        assert_eq!(count("1k").unwrap_err(), "Invalid request count specified: '1k'.");
        let range = "Invalid request count specified. Must be between 1 and 9.";
        assert_eq!(count("0").unwrap_err(), range);
        assert_eq!(count("-1").unwrap_err(), range);
        assert_eq!(count("10").unwrap_err(), range);
    }

    /// Each of these was printed by qemu-img.
    #[test]
    fn sizes_are_printed_with_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1_023_488, "1e+03 KiB"),
            (1_024_000, "0.977 MiB"),
            (1_022_976, "999 KiB"),
            (10_752, "10.5 KiB"),
            (1_051_136, "1 MiB"),
            (123_456_512, "118 MiB"),
            (1_099_511_627_776, "1 TiB"),
            (5_368_709_120, "5 GiB"),
            (9_991_168, "9.53 MiB"),
            (197_120, "192 KiB"),
        ] {
            assert_eq!(short(bytes), text);
        }
    }
}
