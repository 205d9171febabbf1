//! A value for people: a line for each field, blanks before what is inside of another, and numbers for the items of
//! a list.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

/// The lines of what `value` has, each with four blanks before it and four more for each level below.
pub fn outline(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("strings and numbers can be kept in memory");
    let mut text = String::new();
    inside(&mut text, &value, 1);
    text
}

fn inside(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                field(text, &name.replace('-', " "), value, depth);
            }
        }
        Value::Array(items) => {
            for (number, value) in items.iter().enumerate() {
                field(text, &format!("[{number}]"), value, depth);
            }
        }
        _ => (),
    }
}

fn field(text: &mut String, name: &str, value: &Value, depth: usize) {
    let blanks = "    ".repeat(depth);
    let line = match value {
        Value::Object(_) | Value::Array(_) => writeln!(text, "{blanks}{name}:"),
        Value::String(value) => writeln!(text, "{blanks}{name}: {value}"),
        other => writeln!(text, "{blanks}{name}: {other}"),
    };
    line.expect("a string takes everything");
    inside(text, value, depth + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_their_order() {
        #[derive(Serialize)]
        #[serde(rename_all = "kebab-case")]
        struct Inner {
            b_c: Vec<&'static str>,
            a: bool,
        }
        let value = [Inner { b_c: vec!["x", "y"], a: true }];
        let lines =
            "    [0]:\n        b c:\n            [0]: x\n            [1]: y\n        a: true\n";
        assert_eq!(outline(&value), lines);
    }
}
