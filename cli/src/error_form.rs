//! Errors for programs: one JSON object, in one line.

use std::ffi::OsString;

use blkring_engine::IoError;
use serde::Serialize;

use crate::failure::Failure;
use crate::name::Name;
use crate::options::Output;

/// An error as programs read it. What is not known of it is left out.
#[derive(Debug, Serialize)]
struct Line {
    /// The text that people read.
    message: String,
    /// What kind of error it is: usage, open, io or other.
    kind: &'static str,
    /// The file.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// What was being done with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    /// Where in it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// The error number of Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    /// Of a copy: where in the source it was, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_offset: Option<u64>,
}

/// The error as one line.
pub fn json(failure: &Failure) -> String {
    let line = Line::of(failure);
    let text = serde_json::to_string(&Object { error: line });
    text.expect("strings and numbers can be written to memory")
}

#[derive(Serialize)]
struct Object {
    error: Line,
}

/// What `--error-format` asks for, read before the command line is understood: that it is not is an error too.
pub fn asked(words: &[OsString]) -> Output {
    const OPTION: &str = "--error-format";
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let joined = words.iter().any(|word| *word == format!("{OPTION}=json"));
    let apart = words.windows(2).any(|two| two[0] == OPTION && two[1] == "json");
    if joined || apart { Output::Json } else { Output::Human }
}

impl Line {
    fn of(failure: &Failure) -> Self {
        let plain = Line {
            message: failure.text(Name::Blkring),
            kind: "other",
            path: None,
            operation: None,
            offset: None,
            errno: None,
            source_offset: None,
        };
        match failure {
            Failure::Coded { failure, .. } => Line::of(failure),
            Failure::Usage(_) | Failure::Misuse(_) | Failure::Option(_) => {
                Line { kind: "usage", ..plain }
            }
            Failure::Open { given, .. } => {
                let operation = Some("open".to_owned());
                Line { kind: "open", path: Some(given.clone()), operation, ..plain }
            }
            Failure::Request(error) | Failure::Status(error) | Failure::Close(error) => {
                plain.io(error)
            }
            Failure::Copy(error) => {
                Line { source_offset: Some(error.offset), ..plain.io(&error.source) }
            }
            _ => plain,
        }
    }

    fn io(self, error: &IoError) -> Self {
        Line {
            kind: "io",
            path: Some(error.path.to_string()),
            operation: Some(error.operation.to_string()),
            offset: Some(error.offset),
            errno: Some(error.errno),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use blkring_engine::Operation;

    use super::*;

    #[test]
    fn an_error_of_a_file_has_all_its_parts() {
        let error = IoError::new(&"disk".into(), Operation::Write, 512, 28);
        let text = json(&Failure::Status(error));
        assert_eq!(
            text,
            "{\"error\":{\"message\":\"Could not read file metadata: No space left on device\",\
             \"kind\":\"io\",\"path\":\"disk\",\"operation\":\"write\",\"offset\":512,\"errno\":28}}"
        );
        let text = json(&Failure::Usage("no".to_owned()));
        assert_eq!(text, "{\"error\":{\"message\":\"no\",\"kind\":\"usage\"}}");
    }

    #[test]
    fn the_form_is_found_wherever_it_stands() {
        let asked = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            super::asked(&words)
        };
        assert_eq!(asked("blkring info --error-format=json x"), Output::Json);
        assert_eq!(asked("blkring --error-format json info"), Output::Json);
        assert_eq!(asked("blkring info json"), Output::Human);
    }
}
