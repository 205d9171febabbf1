//! `convert` beside the installed qemu-img: messages, exit codes, and copies that hold the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::MetadataExt;

use blkring_tests::twins::Twins;

const MIB: u64 = 1 << 20;

fn samples(twins: &Twins) {
    twins.raw("full.raw", 9 * MIB, &[(0, 9 << 20)]);
    twins.raw("sparse.raw", 64 * MIB, &[(10 << 20, 5), (20 << 20, 3 << 20), (67_108_863, 1)]);
    twins.raw("odd.raw", 1000, &[(0, 1000)]);
    twins.raw("empty.raw", 0, &[]);
    twins.theirs("create -q -f qcow2 base.q 8M");
    twins.io("", "base.q", &["write -P 1 0 1M", "write -P 2 4M 64k", "write -z 2M 128k"]);
    twins.theirs("create -q -f qcow2 -b base.q -F qcow2 middle.q 8M");
    twins.io("", "middle.q", &["write -P 3 100k 300k", "write -z 512k 64k", "write -P 4 6M 1k"]);
    twins.theirs("create -q -f qcow2 -b middle.q -F qcow2 top.q 16M");
    let writes = ["write -P 1 512k 1M", "write -P 9 12M 64k", "write -z 5M 128k"];
    twins.io("", "top.q", &writes);
    twins.theirs("create -q -f qcow2 -o preallocation=metadata pre.q 8M");
    twins.io("", "pre.q", &["write -P 3 0 512k"]);
    twins.theirs("create -q -f qcow2 nothing.q 0");
}

/// Options and sources; the target follows.
const COPIES: &[&str] = &[
    "-f raw -O raw full.raw",
    "-f raw -O qcow2 full.raw",
    "-f raw -O raw sparse.raw",
    "-f raw -O qcow2 sparse.raw",
    "-S 0 -f raw -O raw sparse.raw",
    "-S 0 -f raw -O qcow2 sparse.raw",
    "-S 64k -f raw -O raw sparse.raw",
    "-S 16M -f raw -O raw sparse.raw",
    "-S 512 -f raw -O qcow2 sparse.raw",
    "-O raw top.q",
    "-O qcow2 top.q",
    "top.q",
    "-O qcow2 -o cluster_size=512 top.q",
    "-O qcow2 -o cluster_size=2M top.q",
    "-O qcow2 -o lazy_refcounts=on,cluster_size=4k top.q",
    "-O raw pre.q",
    "-O qcow2 pre.q",
    "-f raw -O raw odd.raw",
    "-f raw -O qcow2 odd.raw",
    "-f raw -O raw odd.raw full.raw odd.raw",
    "-f raw -O qcow2 odd.raw full.raw odd.raw",
    "-O qcow2 base.q sparse.raw nothing.q empty.raw top.q",
    "-O raw empty.raw",
    "-O qcow2 nothing.q",
    "-O qcow2 -B middle.q -F qcow2 top.q",
    "-O qcow2 -o backing_file=middle.q,backing_fmt=qcow2 top.q",
    "-W -m 16 -O raw top.q",
    "-m 1 -O raw top.q",
    "-m 3 -O qcow2 sparse.raw",
    "-C -O raw top.q",
    "-p -f raw -O raw full.raw",
    "-p -O raw nothing.q",
    "-p -q -O raw top.q",
    "-U -O raw top.q",
    "-t none -T none -O raw top.q",
    "-t writethrough -O qcow2 top.q",
    "-t directsync -O raw sparse.raw",
    "-t writeback -r 200M -O raw sparse.raw",
    "--salvage -O raw top.q",
    "--image-opts -O raw driver=qcow2,file.filename=top.q",
    "-O qcow2 -o compat=0.10 top.q",
    "-O qcow2 -o refcount_bits=1 top.q",
    "-O qcow2 -o refcount_bits=64,cluster_size=4k top.q",
    "-O qcow2 -o preallocation=metadata top.q",
    "-O qcow2 -o preallocation=falloc top.q",
    "-O qcow2 -o preallocation=full top.q",
    "-O raw -o preallocation=falloc top.q",
    "-O qcow2 -o preallocation=off sparse.raw",
];

/// The same with compressed clusters.
const COMPRESSED: &[&str] = &[
    "mixed.raw",
    "-S 0 mixed.raw",
    "-S 64k mixed.raw",
    "-W -m 16 mixed.raw",
    "-m 1 mixed.raw",
    "top.q",
    "-o compat=0.10 top.q",
    "-o refcount_bits=1 mixed.raw",
    "-o refcount_bits=64 mixed.raw",
    "-f raw odd.raw",
    "-f raw odd.raw mixed.raw odd.raw",
    "full.raw",
    "sparse.raw",
    "empty.raw",
    "-B middle.q -F qcow2 top.q",
    "-t none -T none mixed.raw",
    "-t writethrough top.q",
];

#[test]
fn copies_hold_the_same() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for options in COPIES {
        let line = format!("convert {options} OUT");
        let ended = twins.same(&line);
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
        twins.copies_agree(&line);
        // A few blocks of tables more, but no holes filled, and nothing stays that was made ready.
        let blocks =
            ["theirs", "ours"].map(|name| fs::metadata(twins.path(name)).unwrap().blocks());
        assert!(blocks[1] <= blocks[0] + 256, "{line}: {blocks:?}");
        if options.contains("-S 0") {
            assert!(blocks[1] * 512 >= 64 * MIB, "{line}: {blocks:?}");
        }
    }
}

/// Half of it can be compressed, in runs that do not end with clusters.
fn mixed(twins: &Twins) {
    let mut bytes = vec![0; 9 << 20];
    let mut seed = 7_u64;
    for (number, part) in bytes.chunks_mut(37 << 10).enumerate() {
        for byte in part {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = match number % 5 {
                0 => 0,
                1 | 2 => (seed >> 56) as u8,
                _ => (seed >> 56) as u8 & 3,
            };
        }
    }
    bytes[4 << 20..7 << 20].fill(0);
    bytes.truncate((9 << 20) - 1536);
    fs::write(twins.path("mixed.raw"), bytes).unwrap();
}

#[test]
fn compressed_copies_hold_the_same() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    mixed(&twins);
    let formats = ["", "-o compression_type=zstd"];
    let sizes = ["512", "1k", "4k", "32k", "64k", "128k", "1M", "2M"]
        .map(|size| format!("-o cluster_size={size} mixed.raw"));
    for options in sizes.iter().map(String::as_str).chain(COMPRESSED.iter().copied()) {
        for format in formats {
            if COMPRESSED.contains(&options) && !format.is_empty() {
                continue;
            }
            let line = format!("convert -c -O qcow2 {format} {options} OUT");
            let ended = twins.same(&line);
            assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
            twins.copies_agree(&line);
            let [theirs, ours] = ["theirs", "ours"].map(|name| clusters(&twins, name));
            assert_eq!(ours.allocated, theirs.allocated, "{line}");
            // Where the codecs of both make clusters of another length, a few may just fit or just not.
            let close = ours.compressed.abs_diff(theirs.compressed) <= theirs.compressed / 50;
            assert!(close, "{line}: {ours:?} {theirs:?}");
            // Of small clusters, those in which refcount blocks of the reservation were; of large ones, the rest of the
            // last one.
            let more = if options.contains("M ") { 2 << 20 } else { 128 << 10 };
            let lengths =
                ["theirs", "ours"].map(|name| fs::metadata(twins.path(name)).unwrap().len());
            assert!(lengths[1] <= lengths[0] + lengths[0] / 50 + more, "{line}: {lengths:?}");
            twins.ours("convert -O raw ours back.raw");
            twins.theirs("compare -f raw -F qcow2 back.raw theirs");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Clusters {
    allocated: u64,
    compressed: u64,
}

fn clusters(twins: &Twins, name: &str) -> Clusters {
    let told = twins.theirs(&format!("check --output=json {name}"));
    let json: serde_json::Value = serde_json::from_str(&told).unwrap();
    let number = |key: &str| json.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
    Clusters { allocated: number("allocated-clusters"), compressed: number("compressed-clusters") }
}

/// A compressed cluster takes the place of nothing.
#[test]
fn a_target_with_data_is_not_compressed_over() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    let create = |path: &std::path::Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        twins.theirs(&format!("create -q -f qcow2 {name} 68M"));
        twins.io("", name, &["write -P 7 3M 64k"]);
    };
    fs::write(twins.path("ones.raw"), vec![1; 9 << 20]).unwrap();
    let ended = twins.same_after("convert -n -c -f raw -O qcow2 ones.raw OUT", create);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("error while writing at byte"), "{ended:?}");
}

#[test]
fn what_cannot_be_done_is_told_in_the_same_words() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for options in [
        "-f raw -O qcow2 no-such-file OUT",
        "-f raw -O raw full.raw no/such/place",
        "-f raw -O qcow2 full.raw no/such/place",
        "-f raw -O foo full.raw OUT",
        "-f foo full.raw OUT",
        "-m 0 full.raw OUT",
        "-m 17 full.raw OUT",
        "-m x full.raw OUT",
        "-S 1000 -f raw full.raw OUT",
        "-S 17M -f raw full.raw OUT",
        "-S x -f raw full.raw OUT",
        "-r x -f raw full.raw OUT",
        "-n -f raw full.raw OUT",
        "-n -f raw -O qcow2 full.raw base.q",
        "-n -o size=3 -f raw full.raw OUT",
        "--target-is-zero -f raw full.raw OUT",
        "--target-image-opts -f raw full.raw driver=raw,file.filename=OUT",
        "-c -f raw -O raw full.raw OUT",
        "-c -n -f raw -O raw full.raw sparse.raw",
        "-c -O qcow2 -o preallocation=metadata top.q OUT",
        "-c -O qcow2 -o preallocation=full top.q OUT",
        "-c -O qcow2 -o compression_type=foo top.q OUT",
        "-c -O qcow2 -o compat=0.10,compression_type=zstd top.q OUT",
        "-O qcow2 -o preallocation=foo top.q OUT",
        "-O qcow2 -o preallocation=metadata -B base.q -F qcow2 top.q OUT",
        "-O qcow2 -o compat=0.10,refcount_bits=1 top.q OUT",
        "-C -S 4k -f raw full.raw OUT",
        "-C -c -f raw -O qcow2 full.raw OUT",
        "-t foo -f raw full.raw OUT",
        "-T foo -f raw full.raw OUT",
        "-o foo=1 -f raw -O qcow2 full.raw OUT",
        "--skip-broken-bitmaps -O qcow2 top.q OUT",
        "-f raw -F raw -O qcow2 full.raw OUT",
        "-B base.q top.q OUT",
        "-O qcow2 -B base.q top.q OUT",
        "-B base.q -F qcow2 -O qcow2 top.q middle.q OUT",
        "--foo full.raw OUT",
        "full.raw",
        "",
    ] {
        let ended = twins.same(&format!("convert {options}"));
        assert_eq!(ended.code, Some(1), "{options}: {ended:?}");
    }
}

/// A target that is there, with whatever it holds.
#[test]
fn a_target_that_is_there_is_written_over() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for (format, source) in [("raw", "sparse.raw"), ("qcow2", "top.q")] {
        // Larger than the source: what lies beyond stays.
        let fill = |path: &std::path::Path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            twins.theirs(&format!("create -q -f {format} {name} 68M"));
            twins.io(&format!("-f {format}"), name, &["write -P 7 0 68M"]);
        };
        for options in ["", "-W -m 16 -S 64k", "-S 0"] {
            let line = format!("convert -n {options} -O {format} {source} OUT");
            assert_eq!(twins.same_after(&line, fill).code, Some(0), "{line}");
            twins.copies_agree(&line);
        }
        let line = format!("convert -n --target-is-zero -O {format} {source} OUT");
        twins.same_after(&line, |path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            twins.theirs(&format!("create -q -f {format} {name} 68M"));
        });
        twins.copies_agree(&line);
    }
}

/// The other one takes a target for backed where -B says so, and leaves what it holds.
#[test]
fn a_target_that_is_there_without_its_backing_file_is_written_over() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    twins.theirs("create -q -f qcow2 copy 16M");
    twins.io("", "copy", &["write -P 7 0 16M"]);
    twins.ours("convert -n -O qcow2 -B middle.q -F qcow2 top.q copy");
    twins.theirs("compare top.q copy");
}

/// Over a backing file that is not the one right below the source: the other one copies only what the topmost file
/// has, and loses the rest. Here the copy holds what the source holds, over any backing file, and no more than that
/// needs.
#[test]
fn a_copy_over_any_backing_file_holds_the_same() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    twins.theirs("convert -O qcow2 middle.q same.q");
    twins.raw("noise.raw", 16 * MIB, &[(0, 16 << 20)]);
    let length = |name: &str| fs::metadata(twins.path(name)).unwrap().len();
    for (backing, format, most) in [
        ("middle.q", "qcow2", 3 * MIB),
        ("base.q", "qcow2", 3 * MIB),
        ("same.q", "qcow2", 3 * MIB),
        ("top.q", "qcow2", MIB),
        ("noise.raw", "raw", 16 * MIB),
        ("odd.raw", "raw", 4 * MIB),
    ] {
        for options in ["", "-W -m 16", "-o cluster_size=512"] {
            let line = format!("convert -O qcow2 {options} -B {backing} -F {format} top.q copy");
            twins.ours(&line);
            twins.theirs("check -q copy");
            twins.theirs("compare top.q copy");
            assert!(length("copy") <= most, "{line}: {}", length("copy"));
        }
    }
}

#[test]
fn no_image_is_copied_over_itself() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    std::os::unix::fs::symlink("base.q", twins.path("link")).unwrap();
    let before = ["full.raw", "base.q"].map(|name| fs::read(twins.path(name)).unwrap());
    for line in [
        "-f raw full.raw full.raw",
        "-f raw full.raw ./full.raw",
        "-n -f raw full.raw full.raw",
        "-f raw odd.raw full.raw full.raw",
        "-O qcow2 base.q base.q",
        "-O qcow2 top.q base.q",
        "-U -O qcow2 top.q link",
        "-n -U -O qcow2 top.q link",
    ] {
        let ended = twins.ours_ends(&format!("convert {line}"));
        assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
        let after = ["full.raw", "base.q"].map(|name| fs::read(twins.path(name)).unwrap());
        assert!(after == before, "{line}");
    }
}

/// What has been written is left: the one who called decides.
#[test]
fn a_copy_that_fails_leaves_its_target() {
    use std::os::unix::fs::FileExt;
    let Some(twins) = Twins::new() else { return };
    twins.theirs("create -q -f qcow2 bad.q 64M");
    twins.io("", "bad.q", &["write -P 1 0 1M", "write -P 2 4M 64k"]);
    let file = fs::File::options().read(true).write(true).open(twins.path("bad.q")).unwrap();
    let number = |offset| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_be_bytes(bytes)
    };
    let table = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    let entry = number(table + 8 * 3);
    file.write_all_at(&(entry + 512).to_be_bytes(), table + 8 * 3).unwrap();
    let ended = twins.same("convert -O raw bad.q OUT");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("error while reading block status at offset 196608: "));
    assert_eq!(fs::metadata(twins.path("ours")).unwrap().len(), 64 * MIB);
    // Salvaged, the bad cluster is zeros, and everything else is there.
    let ended = twins.ours_ends("convert --salvage -O raw bad.q ours");
    assert_eq!(ended.code, Some(0));
    let told = "warning: error while reading offset 196608, 65536 bytes: Input/output error";
    assert!(ended.stderr.contains(told), "{ended:?}");
    file.write_all_at(&entry.to_be_bytes(), table + 8 * 3).unwrap();
    twins.io("", "bad.q", &["write -z 192k 64k"]);
    twins.theirs("compare bad.q ours");
}
