//! How `io` prints numbers, times and bytes.

use std::fmt::Write;
use std::time::Duration;

/// A number of bytes for people: up to three decimals and a binary unit.
pub fn human(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024.0 {
        return format!("{} bytes", trimmed(format!("{bytes:.6}")));
    }
    let mut value = bytes / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", trimmed(format!("{value:.3}")), UNITS[unit])
}

/// Without decimals if they are all zero.
fn trimmed(number: String) -> String {
    match number.split_once('.') {
        Some((whole, decimals)) if decimals.bytes().all(|digit| digit == b'0') => whole.to_owned(),
        _ => number,
    }
}

/// How the end of a request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Two lines for people.
    Lines,
    /// One line of comma-separated values.
    Values,
    /// Not at all.
    Quiet,
}

/// What is told of the end of a request.
pub fn report(style: Style, verb: &str, offset: u64, bytes: u64, taken: Duration) -> String {
    let seconds = taken.as_secs_f64().max(1e-9);
    let (rate, operations) = (bytes as f64 / seconds, 1.0 / seconds);
    match style {
        Style::Quiet => String::new(),
        Style::Values => {
            format!("{bytes},1,{},{rate:.3},{operations:.3}\n", clock(taken))
        }
        Style::Lines => {
            let time = if taken.as_secs() < 60 {
                format!("{:02}.{:02} sec", taken.as_secs(), hundredths(taken))
            } else {
                clock(taken)
            };
            format!(
                "{verb} {bytes}/{bytes} bytes at offset {offset}\n\
                 {}, 1 ops; {time} ({}/sec and {operations:.4} ops/sec)\n",
                human(bytes as f64),
                human(rate)
            )
        }
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours}:{minutes:02}:{seconds:02}.{:02}", hundredths(time))
}

fn hundredths(time: Duration) -> u32 {
    time.subsec_millis() / 10
}

/// Bytes as lines of sixteen: offset, hexadecimal, text.
pub fn dump(offset: u64, bytes: &[u8]) -> String {
    let mut lines = String::with_capacity(bytes.len() * 5);
    for (at, line) in (offset..).step_by(16).zip(bytes.chunks(16)) {
        let hex = line.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x} ").expect("a string takes everything");
            hex
        });
        let text: String = line.iter().map(|byte| shown(*byte)).collect();
        writeln!(lines, "{at:08x}:  {hex} {text}").expect("a string takes everything");
    }
    lines
}

fn shown(byte: u8) -> char {
    if byte.is_ascii_alphanumeric() { char::from(byte) } else { '.' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_for_people() {
        let cases = [
            (0.0, "0 bytes"),
            (40.0, "40 bytes"),
            (1.961851, "1.961851 bytes"),
            (1023.0, "1023 bytes"),
            (1024.0, "1 KiB"),
            (1536.0, "1.500 KiB"),
            (2097152.0, "2 MiB"),
            (3.5 * 1024.0 * 1024.0 * 1024.0, "3.500 GiB"),
            (f64::from(1 << 30) * f64::from(1 << 30) * 2048.0, "2048 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn reports_have_their_styles() {
        let report = |style| report(style, "read", 512, 1536, Duration::from_millis(61_250));
        assert_eq!(report(Style::Quiet), "");
        assert_eq!(report(Style::Values), "1536,1,0:01:01.25,25.078,0.016\n");
        assert_eq!(
            report(Style::Lines),
            "read 1536/1536 bytes at offset 512\n\
             1.500 KiB, 1 ops; 0:01:01.25 (25.077551 bytes/sec and 0.0163 ops/sec)\n"
        );
    }
}
