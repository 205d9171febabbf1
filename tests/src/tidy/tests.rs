//! Each rule finds what it is for, and leaves its neighbours alone.

use super::*;

/// The names of the rules that complain about a file.
fn complaining(path: &str, text: &str) -> Vec<&'static str> {
    let source = Source { path, text };
    RULES.iter().filter(|(_, rule)| !rule(source).is_empty()).map(|(name, _)| *name).collect()
}

fn bad(rule: &str, path: &str, text: &str) {
    assert_eq!(complaining(path, text), [rule], "{path}: {text}");
    let all = check(Source { path, text });
    assert!(all.iter().all(|line| line.starts_with(&format!("{path}: {rule}: "))), "{all:?}");
}

fn good(path: &str, text: &str) {
    assert_eq!(complaining(path, text), Vec::<&str>::new(), "{path}: {text}");
}

#[test]
fn unwinding_in_core_crates() {
    let text = concat!("let it = catch_", "unwind(|| work());\n");
    bad("unwinding", "engine/src/a.rs", text);
    good("cli/src/a.rs", text);
    good("engine/src/a/tests.rs", text);
}

#[test]
fn long_files_are_found() {
    bad("file length", "engine/src/x.rs", &"\n".repeat(601));
    good("engine/src/x.rs", &"\n".repeat(600));
    good("README.md", &"\n".repeat(601));
}

#[test]
fn unfinished_code_is_found() {
    for word in
        [concat!("todo", "!()"), concat!("unimplemented", "!(\"x\")"), concat!("dbg", "!(x)")]
    {
        bad("unfinished code", "engine/src/x.rs", &format!("fn f() {{ {word} }}"));
        good("engine/src/x.rs", &format!("// not {word}"));
    }
}

#[test]
fn clocks_are_found() {
    let text = concat!("let a = Instant", "::now();");
    bad("clock", "tests/tests/x.rs", text);
    bad("clock", "qcow2/src/x.rs", concat!("let a = SystemTime", "::now();"));
    bad("clock", "qcow2/src/x.rs", &format!("\n#[cfg(test)]\nmod tests;\n{text}"));
    good("bench/src/x.rs", text);
    good("tracker/tests/x.rs", text);
    good("engine/src/clock.rs", text);
    good("qcow2/src/x/tests.rs", text);
    good("qcow2/src/x.rs", &format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{text}\n}}\n"));
    good("qcow2/src/x.rs", "fn f(now: Instant) {}");
}

#[test]
fn other_locks_are_found() {
    let texts = [
        concat!("use std::", "sync::Mutex;"),
        concat!("use std::", "sync::{Arc, Mutex};"),
        concat!("use std::", "sync::{\n    Arc,\n    RwLock,\n};"),
        concat!("use std::", "sync::atomic::AtomicU64;"),
        concat!("static A: std::", "sync::OnceLock<u8> = x();"),
        concat!("use parking", "_lot::Mutex;"),
        concat!("let a = std::", "thread::spawn(f);"),
        concat!("use std::", "thread;"),
        concat!("thread", "_local! { static A: u8 = 0; }"),
    ];
    for text in texts {
        bad("sync module", "qcow2/src/x.rs", text);
        good("tracker/src/sync.rs", text);
        good("bench/src/x.rs", text);
        good("qcow2/src/x.rs", &format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{text}\n}}\n"));
    }
    good("qcow2/src/x.rs", concat!("use std::", "sync::Arc;\nuse blkring_tracker::sync::Mutex;"));
    good("qcow2/src/x.rs", concat!("use std::", "sync::Arc;\nuse a::{\n    Mutex,\n};"));
}

#[test]
fn misplaced_unsafe_is_found() {
    let text = concat!("let a = un", "safe { f() };");
    bad("unsafety", "engine/src/x.rs", text);
    bad("unsafety", "qcow2/src/x.rs", text);
    good("engine/src/sys.rs", text);
    good("qcow2/src/x.rs", concat!("#![forbid(un", "safe_code)]"));
    good("qcow2/src/x.rs", concat!("// an un", "safe thing"));
    good("cli/src/x.rs", concat!("match word { \"un", "safe\" => 1, _ => 2 }"));
    for text in [
        concat!("call(\"a\", un", "safe { f() }, \"b\")"),
        concat!("call('\"', un", "safe { f() }, '\"')"),
        concat!("end\"; un", "safe { f() }"),
        concat!("call(\"\\\"\", un", "safe { f() })"),
    ] {
        bad("unsafety", "cli/src/x.rs", text);
    }
}

#[test]
fn marks_without_a_reason_are_found() {
    let mark = concat!("TO", "DO");
    bad("marks without a reason", "README.md", mark);
    bad("marks without a reason", "engine/src/x.rs", &format!("// {mark}: later"));
    bad("marks without a reason", "engine/src/x.rs", concat!("// FIX", "ME"));
    bad("marks without a reason", "engine/src/x.rs", concat!("#[", "ignore]"));
    good("engine/src/x.rs", &format!("// {mark}: needs Linux 6.12 or newer"));
    good("engine/src/x.rs", "#[ignore = \"takes an hour\"]");
}

#[test]
fn paths_of_one_machine_are_found() {
    bad("paths of one machine", "README.md", concat!("see /wo", "rk/notes"));
    bad("paths of one machine", ".ci/run", concat!("cd /ro", "ot/x"));
    good("README.md", "a framework/library");
}

#[test]
fn silent_skips_are_found() {
    let text = concat!("eprintln!(\"skip", "ped: no root\");");
    bad("silent skip", "qcow2/tests/x.rs", text);
    good("tests/src/report.rs", text);
}

#[test]
fn paths_are_read_from_markdown() {
    let text = "In `qcow2/src/cut.rs` and `tracker/`, `README.md`; not `a::b/c`, `/sys/x`, `Queue`, `cargo xtask test`.";
    assert_eq!(named_paths(text), ["qcow2/src/cut.rs", "tracker/", "README.md"]);
}

#[test]
fn tests_of_unsafe_code_are_read() {
    let safety = concat!("SAFE", "TY");
    let text = format!(
        "// {safety}: `by_contract` holds. Test: `one_test`, and\n\
        // `another_test` of `Lane`.\n\
        let a = f();\n\
        // Test: `unrelated_name`.\n\
        // {safety}: as above, `no_test`.\n"
    );
    assert_eq!(safety_tests(&text), ["one_test", "another_test"]);
}
