//! Options of one command: letters, some with a value, before, between or after its arguments.

/// The letters that a command knows.
#[derive(Debug, Clone, Copy)]
pub struct Letters {
    /// Those that stand alone.
    pub plain: &'static str,
    /// Those with a value, in the same or in the next word.
    pub valued: &'static str,
}

/// A command line taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words<'a> {
    /// Options in order, with the value of those that have one.
    options: Vec<(char, &'a str)>,
    /// Whether the word `--` was there.
    ended: bool,
    /// Everything else.
    pub arguments: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// Words of a command that has no options: all of them are arguments.
    pub fn plain(arguments: Vec<&'a str>) -> Self {
        Words { arguments, ..Words::default() }
    }

    /// An argument, or nothing.
    pub fn argument(&self, place: usize) -> &'a str {
        self.arguments.get(place).copied().unwrap_or_default()
    }

    /// The first word as getopt orders them: an option if there is any.
    pub fn first(&self) -> String {
        match self.options.first() {
            Some((letter, _)) => format!("-{letter}"),
            None if self.ended => "--".to_owned(),
            None => self.argument(0).to_owned(),
        }
    }

    /// Whether `letter` was given.
    pub fn has(&self, letter: char) -> bool {
        self.value(letter).is_some()
    }

    /// The value that was last given to `letter`.
    pub fn value(&self, letter: char) -> Option<&'a str> {
        self.options.iter().rev().find(|(given, _)| *given == letter).map(|(_, value)| *value)
    }
}

/// Why a command line cannot be taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// A letter that the command does not know.
    #[error("invalid option -- '{0}'")]
    Unknown(char),
    /// A letter that lacks its value.
    #[error("option requires an argument -- '{0}'")]
    NoValue(char),
}

/// Takes `words` apart. A word `--` ends the options.
pub fn parse<'a>(words: &[&'a str], letters: Letters) -> Result<Words<'a>, OptionError> {
    let mut parsed = Words::default();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let mut rest = match word.strip_prefix('-') {
            Some("-") => {
                parsed.ended = true;
                parsed.arguments.extend(words);
                break;
            }
            Some(rest) if !rest.is_empty() => rest,
            _ => {
                parsed.arguments.push(word);
                continue;
            }
        };
        while let Some(letter) = rest.chars().next() {
            rest = rest.get(letter.len_utf8()..).unwrap_or_default();
            if letters.plain.contains(letter) {
                parsed.options.push((letter, ""));
            } else if letters.valued.contains(letter) {
                let value = if rest.is_empty() { words.next() } else { Some(rest) };
                parsed.options.push((letter, value.ok_or(OptionError::NoValue(letter))?));
                break;
            } else {
                return Err(OptionError::Unknown(letter));
            }
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTERS: Letters = Letters { plain: "qv", valued: "P" };

    #[test]
    fn options_stand_anywhere_and_together() {
        let words = parse(&["-vP7", "0", "-q", "4k"], LETTERS).unwrap();
        assert!(words.has('v') && words.has('q') && !words.has('s'));
        assert_eq!((words.value('P'), &words.arguments[..]), (Some("7"), &["0", "4k"][..]));
        assert_eq!(parse(&["-P", "1", "-P2"], LETTERS).unwrap().value('P'), Some("2"));
    }

    #[test]
    fn two_dashes_end_the_options_and_one_is_an_argument() {
        let words = parse(&["-", "--", "-q", "-x"], LETTERS).unwrap();
        assert_eq!(words.arguments, ["-", "-q", "-x"]);
    }

    #[test]
    fn unknown_letters_and_missing_values_are_errors() {
        assert_eq!(parse(&["-5"], LETTERS), Err(OptionError::Unknown('5')));
        assert_eq!(parse(&["-qé"], LETTERS), Err(OptionError::Unknown('é')));
        assert_eq!(parse(&["0", "-P"], LETTERS), Err(OptionError::NoValue('P')));
    }
}
