//! Texts of the system.

/// The text of an error number, without the number.
pub fn describe(errno: i32) -> String {
    reason(&std::io::Error::from_raw_os_error(errno))
}

/// The text of an error, without the number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map(|(text, _)| text.to_owned()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_has_no_number() {
        assert_eq!(describe(5), "Input/output error");
        assert_eq!(reason(&std::io::Error::other("plain")), "plain");
    }
}
