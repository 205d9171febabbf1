//! All commands.

use super::super::getopt::Letters;
use super::{Command, Entry, Present, alloc, help, open, raise, set_break, sleep, transfer};
use super::{truncate, zone};

type Options = &'static [(char, &'static str)];

const READ_OPTIONS: Options = &[
    ('C', "tell the end as one line of values"),
    ('P', "complain of bytes that are not PATTERN"),
    ('q', "tell no end and print no bytes"),
    ('r', "accepted for scripts: buffers need no registration"),
    ('v', "print the bytes"),
];

/// What has neither options nor arguments and works on an image.
const PLAIN: Entry = Entry {
    name: "",
    alias: None,
    letters: None,
    count: (0, Some(0)),
    needs: Present::Image,
    arguments: "",
    summary: "",
    details: "",
    options: &[],
    make: |_, _| Ok(Command::Quit),
};

/// One that is for zoned devices.
const ZONE: Entry = Entry {
    count: (2, Some(2)),
    arguments: "offset len ",
    summary: "not there: images have no zones",
    make: zone,
    ..PLAIN
};

/// One that is for images opened with faults: `blkdebug::FILE`.
const BREAK: Entry = Entry { count: (1, Some(1)), arguments: "tag ", ..PLAIN };

/// All commands, in the order of their names.
pub const COMMANDS: &[Entry] = &[
    Entry {
        name: "abort",
        needs: Present::Nothing,
        summary: "end at once, as after a bug: what was not flushed may be lost",
        make: |_, _| Ok(Command::Abort),
        ..PLAIN
    },
    Entry {
        name: "aio_flush",
        summary: "wait for every request begun with aio_read or aio_write",
        make: |_, _| Ok(Command::AioFlush),
        ..PLAIN
    },
    Entry {
        name: "aio_read",
        letters: Some(Letters { plain: "Ciqrv", valued: "P" }),
        count: (2, None),
        arguments: "[-Ciqrv] [-P pattern] off len [len..] ",
        summary: "begin a read into buffers of these lengths",
        details: "Its end is told when it comes, and aio_flush waits for it. However it ends, the command has succeeded.",
        options: &[
            READ_OPTIONS[0],
            ('i', "begin nothing"),
            READ_OPTIONS[1],
            READ_OPTIONS[2],
            READ_OPTIONS[3],
            READ_OPTIONS[4],
        ],
        make: transfer::aio_read,
        ..PLAIN
    },
    Entry {
        name: "aio_write",
        letters: Some(Letters { plain: "Cfiqruz", valued: "P" }),
        count: (2, None),
        arguments: "[-Cfiqruz] [-P pattern] off len [len..] ",
        summary: "begin a write from buffers of these lengths",
        details: "Its end is told when it comes, and aio_flush waits for it. However it ends, the command has succeeded.",
        options: &[
            ('C', "tell the end as one line of values"),
            ('f', "durable when it ends"),
            ('i', "begin nothing"),
            ('P', "write this byte instead of 0xcd"),
            ('q', "tell no end"),
            ('r', "accepted for scripts: buffers need no registration"),
            ('u', "with -z: the space may be given back"),
            ('z', "make the range zero"),
        ],
        make: transfer::aio_write,
        ..PLAIN
    },
    Entry {
        name: "alloc",
        alias: Some("a"),
        count: (1, Some(2)),
        arguments: "offset [count] ",
        summary: "count the bytes of a range that the image has itself, not from a backing file",
        make: alloc,
        ..PLAIN
    },
    Entry {
        name: "break",
        count: (2, Some(2)),
        arguments: "event tag ",
        summary: "have the next request that passes the point `event` wait there, called tag",
        details: "The image has to be opened as blkdebug::FILE, or with the driver blkdebug.",
        make: set_break,
        ..BREAK
    },
    Entry {
        name: "close",
        alias: Some("c"),
        summary: "close the image",
        make: |_, _| Ok(Command::Close),
        ..PLAIN
    },
    Entry {
        name: "discard",
        alias: Some("d"),
        letters: Some(Letters { plain: "Cq", valued: "" }),
        count: (2, None),
        arguments: "[-Cq] off len ",
        summary: "give a range back",
        details: "What whole clusters of it read as afterwards is up to the image: zeros, or what lies below.",
        options: &[('C', "tell the end as one line of values"), ('q', "tell no end")],
        make: transfer::discard,
        ..PLAIN
    },
    Entry {
        name: "flush",
        alias: Some("f"),
        summary: "make what was written durable",
        make: |_, _| Ok(Command::Flush),
        ..PLAIN
    },
    Entry {
        name: "help",
        alias: Some("?"),
        count: (0, Some(1)),
        needs: Present::Nothing,
        arguments: "[command] ",
        summary: "list the commands, or say how one is called",
        make: help,
        ..PLAIN
    },
    Entry {
        name: "info",
        alias: Some("i"),
        summary: "print what is known of the image",
        make: |_, _| Ok(Command::Info),
        ..PLAIN
    },
    Entry {
        name: "length",
        alias: Some("l"),
        summary: "print the size",
        make: |_, _| Ok(Command::Length),
        ..PLAIN
    },
    Entry {
        name: "map",
        arguments: " ",
        summary: "print the ranges that the image has itself, and those that it has not",
        make: |_, _| Ok(Command::Map),
        ..PLAIN
    },
    Entry {
        name: "open",
        alias: Some("o"),
        letters: Some(Letters { plain: "rsCnkU", valued: "tdoi" }),
        count: (1, None),
        needs: Present::Nothing,
        arguments: "[-rsCnkU] [-t cache] [-d discard] [-o options] [path] ",
        summary: "open an image",
        details: "One image is open at a time. Without -r it is opened for writing.",
        options: &[
            ('r', "for reading only"),
            (
                's',
                "leave it as it is: what is written goes to a new file, which is removed in the end",
            ),
            ('C', "write what reads find in backing files to the image"),
            ('n', "the same as -t none"),
            ('U', "whatever locks others hold"),
            ('k', "the same as -i native"),
            ('i', "threads, or io_uring, or native, which is io_uring too"),
            ('t', "none, writeback, writethrough, directsync or unsafe"),
            ('d', "discards: unmap, or ignore"),
            ('o', "options of the image, such as driver=raw or file.filename=NAME"),
        ],
        make: open::open,
    },
    Entry {
        name: "quit",
        alias: Some("q"),
        count: (0, None),
        needs: Present::Nothing,
        summary: "end",
        make: |_, _| Ok(Command::Quit),
        ..PLAIN
    },
    Entry {
        name: "read",
        alias: Some("r"),
        letters: Some(Letters { plain: "bCpqrv", valued: "Psl" }),
        count: (2, None),
        arguments: "[-abCqrv] [-P pattern [-s off] [-l len]] off len ",
        summary: "read a range",
        details: "Offset and length are in bytes: 512, 4k, 0x200. Any alignment is good.",
        options: &[
            ('b', "not there: the state of a virtual machine"),
            READ_OPTIONS[0],
            ('l', "with -P: look at so many bytes only"),
            ('p', "accepted for scripts: nothing"),
            READ_OPTIONS[1],
            READ_OPTIONS[2],
            READ_OPTIONS[3],
            ('s', "with -P: begin to look so many bytes into the range"),
            READ_OPTIONS[4],
        ],
        make: transfer::read,
        ..PLAIN
    },
    Entry {
        name: "readv",
        letters: Some(Letters { plain: "Cqrv", valued: "P" }),
        count: (2, None),
        arguments: "[-Cqrv] [-P pattern] off len [len..] ",
        summary: "read a range into buffers of these lengths",
        details: "The buffers are filled one after the other, by one request.",
        options: READ_OPTIONS,
        make: transfer::readv,
        ..PLAIN
    },
    Entry {
        name: "remove_break",
        summary: "take the breakpoints of this tag away, and let go who waits there",
        make: |_, words| Ok(Command::RemoveBreak(words.argument(0).to_owned())),
        ..BREAK
    },
    Entry {
        name: "reopen",
        letters: Some(Letters { plain: "rw", valued: "co" }),
        count: (0, None),
        arguments: "[(-r|-w)] [-c cache] [-o options] ",
        summary: "close the image and open it in another way",
        details: "What is not said stays as it is.",
        options: &[
            ('r', "for reading only"),
            ('w', "for reading and writing"),
            ('c', "none, writeback, writethrough, directsync or unsafe"),
            ('o', "options of the image, such as cache.direct=on"),
        ],
        make: open::reopen,
        ..PLAIN
    },
    Entry {
        name: "resume",
        summary: "let the request go that waits under this tag",
        make: |_, words| Ok(Command::Resume(words.argument(0).to_owned())),
        ..BREAK
    },
    Entry {
        name: "sigraise",
        count: (1, Some(1)),
        needs: Present::Nothing,
        arguments: "signal ",
        summary: "send a signal to this program",
        details: "The signal is a number; 15 ends the program as kill does.",
        make: raise,
        ..PLAIN
    },
    Entry {
        name: "sleep",
        count: (1, Some(1)),
        needs: Present::Nothing,
        summary: "wait so many milliseconds",
        make: sleep,
        ..PLAIN
    },
    Entry {
        name: "truncate",
        alias: Some("t"),
        letters: Some(Letters { plain: "", valued: "m" }),
        count: (1, Some(3)),
        arguments: "[-m prealloc_mode] off ",
        summary: "make the image so many bytes long",
        options: &[('m', "how new space is made ready: off, metadata, falloc or full")],
        make: truncate,
        ..PLAIN
    },
    Entry {
        name: "wait_break",
        summary: "wait until a request waits under this tag",
        make: |_, words| Ok(Command::WaitBreak(words.argument(0).to_owned())),
        ..BREAK
    },
    Entry {
        name: "write",
        alias: Some("w"),
        letters: Some(Letters { plain: "bcCfnpqruz", valued: "Ps" }),
        count: (2, None),
        arguments: "[-bcCfnqruz] [-P pattern | -s source_file] off len ",
        summary: "write a range",
        details: "Offset and length are in bytes: 512, 4k, 0x200. Any alignment is good. Without -P, -s or -z every \
                  byte written is 0xcd.",
        options: &[
            ('b', "not there: the state of a virtual machine"),
            ('c', "compress whole clusters"),
            ('C', "tell the end as one line of values"),
            ('f', "durable when it ends"),
            ('n', "with -z: fail rather than write zeros"),
            ('p', "accepted for scripts: nothing"),
            ('P', "write this byte"),
            ('q', "tell no end"),
            ('r', "accepted for scripts: buffers need no registration"),
            ('s', "write the bytes of a file, over and over"),
            ('u', "with -z: the space may be given back"),
            ('z', "make the range zero"),
        ],
        make: transfer::write,
        ..PLAIN
    },
    Entry {
        name: "writev",
        letters: Some(Letters { plain: "Cfqr", valued: "P" }),
        count: (2, None),
        arguments: "[-Cfqr] [-P pattern] off len [len..] ",
        summary: "write a range from buffers of these lengths",
        details: "The buffers are written one after the other, by one request.",
        options: &[
            ('C', "tell the end as one line of values"),
            ('f', "durable when it ends"),
            ('q', "tell no end"),
            ('r', "accepted for scripts: buffers need no registration"),
            ('P', "write this byte instead of 0xcd"),
        ],
        make: transfer::writev,
        ..PLAIN
    },
    Entry { name: "zone_append", count: (3, Some(4)), arguments: "offset len [len..] ", ..ZONE },
    Entry { name: "zone_close", ..ZONE },
    Entry { name: "zone_finish", ..ZONE },
    Entry { name: "zone_open", ..ZONE },
    Entry { name: "zone_report", arguments: "offset number ", ..ZONE },
    Entry { name: "zone_reset", ..ZONE },
];

/// A command by its name or its short one.
pub fn find(name: &str) -> Option<&'static Entry> {
    COMMANDS.iter().find(|entry| entry.name == name || entry.alias == Some(name))
}
