//! Seeds that have found something once.

/// A seed, the kind of world, and what it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// The seed.
    pub seed: u64,
    /// The name of the change to what it draws.
    pub focus: String,
    /// What it found.
    pub what: String,
}

/// Reads lines like `12 small # what was found`. Lines that begin with `#` say something to the reader.
///
/// # Errors
/// The number of a line that is none of these.
pub fn parse(text: &str) -> Result<Vec<Seed>, usize> {
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    });
    lines.map(|(number, line)| seed(line).ok_or(number + 1)).collect()
}

fn seed(line: &str) -> Option<Seed> {
    let (left, what) = line.split_once('#')?;
    let (seed, focus) = left.trim().split_once(' ')?;
    let (focus, what) = (focus.trim().to_owned(), what.trim().to_owned());
    let complete = !focus.is_empty() && !what.is_empty();
    complete.then_some(Seed { seed: seed.parse().ok()?, focus, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_reason_is_refused() {
        let one = Seed { seed: 12, focus: "small".into(), what: "a hang".into() };
        assert_eq!(parse("# all\n\n12 small # a hang\n"), Ok(vec![one]));
        for bad in ["12 small", "12 small #", "12 # a hang", "x small # a hang"] {
            assert_eq!(parse(&format!("# all\n{bad}\n")), Err(2), "{bad}");
        }
    }
}
