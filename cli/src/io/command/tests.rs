use super::*;

fn read(line: &str) -> Result<Option<Command>, Complaint> {
    parse(line, Present::Image)
}

fn complaint(line: &str) -> String {
    read(line).expect_err("no command").to_string()
}

#[test]
fn every_command_is_found_by_name_and_alias_and_names_are_sorted() {
    assert!(COMMANDS.is_sorted_by_key(|entry| entry.name));
    for entry in COMMANDS {
        assert_eq!(find(entry.name), Some(entry));
        assert!(entry.alias.is_none_or(|alias| find(alias) == Some(entry)));
    }
    assert!(matches!(read("  "), Ok(None)));
}

#[test]
fn every_letter_of_a_command_is_explained() {
    for entry in COMMANDS {
        let letters = entry.letters.unwrap_or(Letters { plain: "", valued: "" });
        let mut known: Vec<char> = letters.plain.chars().chain(letters.valued.chars()).collect();
        let mut told: Vec<char> = entry.options.iter().map(|option| option.0).collect();
        known.sort_unstable();
        told.sort_unstable();
        assert_eq!(known, told, "{}", entry.name);
    }
}

#[test]
fn a_write_is_read() {
    let Ok(Some(Command::Transfer(write))) = read(" w -zfq  4k 0x200 -u") else {
        panic!("a command");
    };
    assert_eq!((write.offset, &write.lengths[..]), (4096, &[512][..]));
    assert_eq!(write.flags, Flags::FUA | Flags::MAY_UNMAP);
    assert!(matches!(write.kind, Kind::Zero) && write.style == Style::Quiet);
}

#[test]
fn complaints_say_what_is_wrong() {
    for (line, text) in [
        ("foo 1", "command \"foo\" not found"),
        ("write 0", "bad argument count 1 to write, expected at least 2 arguments"),
        ("length 1", "bad argument count 1 to length, expected 0 arguments"),
        ("help a b", "bad argument count 2 to help, expected between 0 and 1 arguments"),
        ("read 0 x", "Parsing error: non-numeric argument, or extraneous/unrecognized suffix -- x"),
        ("read -P 256 0 1", "256 is not a valid pattern byte"),
        ("read 0 3G", "length cannot exceed 2147483136, given 3G"),
        ("write -z 0 3G", "length cannot exceed 2147483136 without -n, given 3G"),
        ("readv 0 3G", "Argument '3G' exceeds maximum size 2147483136"),
        ("readv 0 2147483136 1", "The total number of bytes exceed the maximum size 2147483136"),
        ("write -n 0 1", "-n requires -z to be specified"),
        ("aio_write -z 0 1 1", "-z supports only a single length parameter"),
        ("read -P 1 -s 2 0 1", "pattern verification range exceeds end of read data"),
        ("write -c 100 512", "100 is not a sector-aligned value for 'offset'"),
        ("read -b 0 100", "100 is not a sector-aligned value for 'count'"),
        ("write -cf 0 512", "-f and -b or -c cannot be specified at the same time"),
        ("sleep -1", "-1 is not a valid number"),
        ("sigraise 99", "signal argument '99' is too large to be a valid signal"),
        (
            "truncate -m off",
            "Parsing error: non-numeric argument, or extraneous/unrecognized suffix -- -m",
        ),
    ] {
        assert_eq!(complaint(line), text, "{line}");
    }
    assert!(complaint("read -l 1 0 1").starts_with("read [-abCqrv] "));
    assert!(complaint("read -x 0 1").starts_with("read: invalid option -- 'x'\nread [-abCqrv] "));
    assert!(complaint("discard 0 1 1").starts_with("discard [-Cq] off len -- "));
}

#[test]
fn without_an_image_only_some_commands_are_there() {
    let nothing = |line| parse(line, Present::Nothing);
    assert!(matches!(nothing("read"), Err(Complaint::NoImage)));
    assert!(matches!(nothing("foo"), Err(Complaint::NotFound(_))));
    for line in ["open a", "help", "quit", "sleep 1", "sigraise 0", "abort"] {
        assert!(nothing(line).is_ok(), "{line}");
    }
}
