//! Rust source, seen line by line.

/// The lines of `text` without comments, with their numbers from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, without_comment(line)))
}

/// Up to `//`, unless that is part of an address such as `https://`.
fn without_comment(line: &str) -> &str {
    let comment = line.match_indices("//").map(|(at, _)| at).find(|&at| !ends_with_colon(line, at));
    comment.and_then(|at| line.get(..at)).unwrap_or(line)
}

fn ends_with_colon(line: &str, at: usize) -> bool {
    line.get(..at).is_some_and(|before| before.ends_with(':'))
}

/// Like [`lines`], but a `use` declaration of many lines is one, without line breaks, under its first number.
pub(super) fn statements(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in lines(text) {
        match found.last_mut() {
            Some((_, statement)) if open => statement.push_str(line.trim()),
            _ => {
                let start = line.trim_start();
                open = start.starts_with("use ") || start.starts_with("pub use ");
                found.push((number, line.to_owned()));
            }
        }
        open = open && !line.contains(';');
    }
    found
}

/// Everything before the module of unit tests that ends a file. (`mod tests;` only names one: code may follow.)
pub(super) fn without_tests(text: &str) -> &str {
    const START: &str = "\n#[cfg(test)]\nmod ";
    let starts = text.match_indices(START).map(|(at, _)| at);
    let mut modules = starts.filter(|at| {
        let after = text.get(at + START.len()..).unwrap_or_default();
        after.lines().next().is_some_and(|line| line.ends_with('{'))
    });
    modules.next().and_then(|at| text.get(..at)).unwrap_or(text)
}

/// Whether `word` stands in `line` by itself, not as a part of a longer name.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(in_name) && !after.is_some_and(in_name)
    })
}

/// Without the contents of string literals that begin and end on this line.
pub(super) fn without_strings(line: &str) -> String {
    let plain = line.replace("'\"'", "' '").replace("\\\\", "").replace("\\\"", "");
    let parts: Vec<&str> = plain.split('"').collect();
    // An odd number of quotes: the last one opens a string that goes on, or closes one that came from above.
    let paired = parts.len() - usize::from(parts.len().is_multiple_of(2));
    let outside = |(index, part): (usize, &&str)| {
        let keep = index.is_multiple_of(2) || index >= paired;
        keep.then(|| (*part).to_owned())
    };
    parts.iter().enumerate().filter_map(outside).collect::<Vec<_>>().join("\"\"")
}
