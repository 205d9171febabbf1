//! What is left out of a comparison.

use super::script::{Mode, Script, Step};
use crate::beside::without_times;

/// Keys whose numbers tell of places in the file, in what is printed as JSON.
const PLACES: &[&str] = &["\"offset\": ", "\"image-end-offset\": "];

/// Keys of what the host has spent, and of the time of a snapshot: it is made on each side.
const OTHER: &[&str] = &["\"actual-size\": ", "\"date-sec\": ", "\"date-nsec\": "];

/// The output of a step as it is compared.
pub fn output(script: &Script, step: &Step, text: &str) -> String {
    let mut text = without_times(text);
    for key in OTHER {
        text = without_numbers(&text, key);
    }
    text = lines(&text, |line| !line.trim_start().starts_with("disk size: "));
    text = without_dates(&text);
    if step_is_check(step) {
        // Lines are left out below, and the last one that stays may have a comma or none.
        text =
            text.lines().fold(String::new(), |text, line| text + line.trim_end_matches(',') + "\n");
    }
    match step {
        Step::Img(words) if words.iter().any(|word| word == "info") => {
            // Of the children, the file: its length tells of what lies in it.
            let loose = script.mode == Mode::Loose;
            if loose { without_file_length(&text) } else { text }
        }
        Step::Io { commands, .. } if commands.iter().any(|command| command.starts_with("aio_")) => {
            // They end in any order.
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        }
        Step::Img(words) if words.iter().any(|word| word == "map") => map(&text, script.mode),
        _ if script.mode == Mode::Loose || step_is_of_copy(step) => {
            let text = PLACES.iter().fold(text, |text, key| without_numbers(&text, key));
            lines(&text, |line| {
                !line.starts_with("Image end offset: ")
                    && !line.contains("% fragmented, ")
                    && !line.contains("\"fragmented-clusters\": ")
            })
        }
        _ => text,
    }
}

fn step_is_check(step: &Step) -> bool {
    matches!(step, Step::Img(words) if words.iter().any(|word| word == "check"))
}

/// Whether it tells of a copy: `convert` makes space ready ahead, whatever the policy of the script.
fn step_is_of_copy(step: &Step) -> bool {
    matches!(step, Step::Img(words) if words.last().is_some_and(|word| word == "copy"))
}

/// The lines that are to stay.
fn lines(text: &str, stays: impl Fn(&str) -> bool) -> String {
    let staying = text.lines().filter(|line| stays(line));
    staying.fold(String::new(), |text, line| text + line + "\n")
}

/// A line of `map --output=json`.
#[derive(PartialEq, Eq)]
struct Entry {
    start: u64,
    length: u64,
    offset: Option<u64>,
    /// Everything else.
    rest: String,
}

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let number = |key: &str| -> Option<u64> {
            let (_, rest) = line.split_once(key)?;
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest.get(..end)?.parse().ok()
        };
        let (start, length) = (number("\"start\": ")?, number("\"length\": ")?);
        let offset = number("\"offset\": ");
        let (_, rest) = line.split_once("\"depth\": ")?;
        let rest =
            rest.split(", \"offset\"").next()?.trim_end_matches([',', '}', ']', ' ']).to_owned();
        // Zeros within a cluster of data are holes of the file: an affair of the host.
        let data = rest.contains("\"data\": true");
        let rest = if data { rest.replace("\"zero\": true", "\"zero\": false") } else { rest };
        Some(Entry { start, length, offset, rest })
    }
}

/// The entries of a map, those of one kind as one, without offsets unless everything is compared.
fn map(text: &str, mode: Mode) -> String {
    let mut entries: Vec<Entry> = Vec::new();
    for mut entry in text.lines().filter_map(Entry::read) {
        if mode == Mode::Loose {
            entry.offset = entry.offset.map(|_| 0);
        }
        match entries.last_mut() {
            Some(last)
                if last.rest == entry.rest
                    && last.offset.is_some() == entry.offset.is_some()
                    && (mode == Mode::Loose
                        || last.offset.map(|offset| offset + last.length) == entry.offset) =>
            {
                last.length += entry.length;
            }
            _ => entries.push(entry),
        }
    }
    entries.iter().fold(String::new(), |text, entry| {
        let Entry { start, length, offset, rest } = entry;
        text + &format!("{start} {length} {rest} {offset:?}\n")
    })
}

/// Every number after `key` becomes N.
fn without_numbers(text: &str, key: &str) -> String {
    let mut parts = text.split(key);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push_str(key);
        result.push('N');
        result.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

/// In a list of snapshots, all that follows the date.
fn without_dates(text: &str) -> String {
    let is_date = |word: &str| word.len() == 10 && word.chars().filter(|&c| c == '-').count() == 2;
    let until_date = |line: &str| match line.split(' ').find(|word| is_date(word)) {
        Some(date) => line.split(date).next().unwrap_or_default().to_owned(),
        None => line.to_owned(),
    };
    text.lines().fold(String::new(), |text, line| text + &until_date(line) + "\n")
}

/// The first virtual size in the JSON of `info` is that of the file, and so is what is told of it in text.
fn without_file_length(text: &str) -> String {
    let mut in_child = false;
    let mut result = String::new();
    for line in text.lines() {
        in_child |= line.contains("\"children\": [") || line.starts_with("Child node '/file'");
        in_child &= !line.starts_with("    ],");
        let length = line.trim_start().starts_with("\"virtual-size\"")
            || line.trim_start().starts_with("file length: ");
        if !(in_child && length) {
            result.push_str(line);
            result.push('\n');
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_left_out_after_their_key_alone() {
        let text = "{ \"start\": 5, \"offset\": 123}, { \"offset\": 7 }";
        let expected = "{ \"start\": 5, \"offset\": N}, { \"offset\": N }";
        assert_eq!(without_numbers(text, "\"offset\": "), expected);
    }

    #[test]
    fn entries_of_one_kind_are_one_and_holes_in_data_are_data() {
        let entry = |start, zero, offset: &str| {
            format!(
                "{{ \"start\": {start}, \"length\": 10, \"depth\": 0, \"present\": true, \"zero\": {zero}, \"data\": \
                 true, \"compressed\": false, \"offset\": {offset}}},\n"
            )
        };
        let text = entry(0, true, "50") + &entry(10, false, "60") + &entry(20, false, "90");
        let kind = "0, \"present\": true, \"zero\": false, \"data\": true, \"compressed\": false";
        let exact = format!("0 20 {kind} Some(50)\n20 10 {kind} Some(90)\n");
        assert_eq!(map(&text, Mode::Exact), exact);
        assert_eq!(map(&text, Mode::Loose), format!("0 30 {kind} Some(0)\n"));
    }

    #[test]
    fn lines_end_before_a_date() {
        let text = "1  one  0 B 2026-01-30 10:11:12  00:00:00.000\nID  TAG\n";
        assert_eq!(without_dates(text), "1  one  0 B \nID  TAG\n");
    }

    #[test]
    fn only_the_length_of_the_file_is_left_out() {
        let text =
            "    \"children\": [\n  \"virtual-size\": 7,\n    ],\n    \"virtual-size\": 8,\n";
        assert_eq!(
            without_file_length(text),
            "    \"children\": [\n    ],\n    \"virtual-size\": 8,\n"
        );
    }
}
