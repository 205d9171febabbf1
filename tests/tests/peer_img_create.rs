//! `create` through a link named qemu-img beside the installed one: what is said, and the bytes of the image.

use std::fs;

use blkring_tests::links::{Links, Whose};

const SETUP: &[&str] = &[
    "qemu-img create -q -f qcow2 t 1M; qemu-img create -q r 1M; mkdir d",
    "qemu-img create -q -f qcow2 -u -b nosuch -F raw o1 1M",
    "qemu-img create -q -f qcow2 -u -b o1 -F qcow2 o2 1M",
];

/// What follows `qemu-img create -f qcow2`; the image is called `x`.
const QCOW2: &[&str] = &[
    "x 1000",
    "x 1M",
    "-q x 1M",
    "-o size=2M x",
    "-o size=2M x 3M",
    "-o size=x x",
    "-o size=-1 x",
    "-o foo=1 x 1M",
    "-o foo x 1M",
    "-o cluster_size=3 x 1M",
    "-o cluster_size=4M x 1M",
    "-o cluster_size=x x 1M",
    "-o cluster_size=-1 x 1M",
    "-o cluster_size=1k x 1M",
    "-o cluster_size=64k,cluster_size=1k x 1M",
    "-o cluster_size=1k -o lazy_refcounts=on x 1M",
    "-o lazy_refcounts=x x 1M",
    "-o lazy_refcounts x 1M",
    "-o nolazy_refcounts x 1M",
    "-o compat=0.10 x 1M",
    "-o compat=v2 x 1M",
    "-o compat=v3 x 1M",
    "-o compat=1.1 x 1M",
    "-o compat=foo x 1M",
    "-o compat=0.10,lazy_refcounts=on x 1M",
    "-o compat=0.10,refcount_bits=8 x 1M",
    "-o compat=0.10,compression_type=zstd x 1M",
    "-o refcount_bits=8 x 1M",
    "-o refcount_bits=1 x 1M",
    "-o refcount_bits=64 x 1M",
    "-o refcount_bits=3 x 1M",
    "-o refcount_bits=128 x 1M",
    "-o refcount_bits=x x 1M",
    "-o preallocation=off x 1M",
    "-o preallocation=foo x 1M",
    "-o extended_l2=x x 1M",
    "-o compression_type=zstd x 1M",
    "-o compression_type=foo x 1M",
    "-o encryption=off x 1M",
    "-o nocow=on x 1M",
    "-o ,cluster_size=1k x 1M",
    "-o cluster_size=1k, x 1M",
    "-o '' x 1M",
    "x",
    "x foo",
    "x 9E",
    "x 7E",
    "-o cluster_size=512 x 1T",
    "nosuch/x 1M",
    "d 1M",
    "a:b 1M",
    "file:x 1M",
    "json:x 1M",
];

/// The same, with backing files.
const BACKING: &[&str] = &[
    "-b r x 1M",
    "-b r x",
    "-b t x",
    "-b nosuch x 1M",
    "-b nosuch -F raw x 1M",
    "-b nosuch -F raw x",
    "-u -b nosuch -F raw x 1M",
    "-u -b nosuch x 1M",
    "-u -b nosuch -F raw x",
    "-u -b r -F raw x",
    "-u -b t -F foo x 1M",
    "-b r -F raw x",
    "-b r -F qcow2 x",
    "-b t -F qcow2 x",
    "-b t -F raw x",
    "-b o1 -F qcow2 x",
    "-b o2 -F qcow2 x",
    "-b t -F foo x",
    "-F qcow2 x 1M",
    "-b x -F qcow2 x 1M",
    "-b t -F qcow2 t 1M",
    "-b t -F qcow2 d/x",
    "-b d -F raw x 1M",
    "-b '' -F raw x 1M",
    "-o backing_file=t,backing_fmt=qcow2 x",
    "-o backing_file=t x",
    "-b r -F raw -o backing_file=t,backing_fmt=qcow2 x",
];

const RAW: &[&str] = &[
    "x",
    "x 1000",
    "x 1.5",
    "-o preallocation=full x 1M",
    "-o preallocation=falloc x 1M",
    "-o preallocation=off x 1M",
    "-o preallocation=metadata x 1M",
    "-o preallocation=foo x 1M",
    "-o nocow=off x 1M",
    "-o nocow=on x 1M",
    "-o nocow=x x 1M",
    "-o cluster_size=1M x 1M",
    "-b r x 1M",
    "-b r -F raw x 1M",
    "-o backing_file=r x 1M",
    "nosuch/x 1M",
    "d 1M",
];

#[track_caller]
fn compare(format: &str, lines: &[&str]) {
    let Some(links) = Links::new(SETUP) else { return };
    let same_words = links.same_words();
    for line in lines {
        let line = format!("qemu-img create -f {format} {line}");
        if same_words {
            links.compare(&line);
        }
        let codes = [Whose::Ours, Whose::Theirs].map(|whose| links.run(whose, &line).code);
        assert_eq!(codes[0], codes[1], "{line}");
        if codes[0] != Some(0) {
            continue;
        }
        let image = |whose| fs::read(links.place(whose).join("x")).ok();
        let (ours, theirs) = (image(Whose::Ours), image(Whose::Theirs));
        assert!(ours.is_some() && ours == theirs, "{line}: the images differ");
    }
}

#[test]
fn qcow2() {
    compare("qcow2", QCOW2);
}

#[test]
fn qcow2_over_other_images() {
    compare("qcow2", BACKING);
}

#[test]
fn raw() {
    compare("raw", RAW);
}

#[test]
fn unknown_formats() {
    compare("foo", &["x 1M", "-o help"]);
}

/// Which options there are is told in words of one's own, in the same form.
#[test]
fn options_are_listed() {
    let Some(links) = Links::new(SETUP) else { return };
    for line in ["qemu-img create -f qcow2 -o help", "qemu-img create -f raw -o 'size=1M,?' x"] {
        let names = |whose| -> Vec<String> {
            let said = links.run(whose, line);
            assert_eq!(said.code, Some(0), "{said:?}");
            let options = said.stdout.lines().filter(|line| line.starts_with("  "));
            options.map(|line| line.split(" - ").next().unwrap_or_default().to_owned()).collect()
        };
        let (ours, theirs) = (names(Whose::Ours), names(Whose::Theirs));
        assert!(
            !ours.is_empty() && ours.iter().all(|name| theirs.contains(name)),
            "{ours:?} {theirs:?}"
        );
    }
}
