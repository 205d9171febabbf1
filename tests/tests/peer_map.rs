//! `map` beside the installed qemu-img: every line, in both forms.

use std::os::unix::fs::FileExt;

use blkring_tests::twins::Twins;

/// Chains, zeros of all kinds, holes, odd sizes, preallocation.
fn samples(twins: &Twins) {
    twins.raw("hole.raw", 5_242_883, &[(102_400, 3), (5_242_880, 3)]);
    twins.raw("empty.raw", 0, &[]);
    twins.theirs("create -q -f qcow2 base.q 8M");
    twins.io("", "base.q", &["write -P 1 0 1M", "write -P 2 4M 64k", "write -z 2M 128k"]);
    twins.theirs("create -q -f qcow2 -b base.q -F qcow2 top.q 16M");
    let writes = ["write -P 1 512k 1M", "write -P 9 12M 64k", "write -z 5M 128k"];
    twins.io("", "top.q", &writes);
    twins.theirs("create -q -f qcow2 -b hole.raw -F raw over.q 16M");
    twins.theirs("create -q -f qcow2 zeros.q 1M");
    let writes = ["write -P 1 0 256k", "write -z 64k 64k", "write -zu 128k 64k"];
    twins.io("", "zeros.q", &writes);
    twins.theirs("create -q -f qcow2 -o preallocation=metadata pre.q 1M");
    twins.io("", "pre.q", &["write -P 3 0 512k"]);
    twins.theirs("create -q -f qcow2 -o preallocation=falloc falloc.q 1M");
    twins.theirs("create -q -f qcow2 nothing.q 0");
    twins.theirs("create -q -f qcow2 -o cluster_size=512 small.q 1M");
    twins.io("", "small.q", &["write -P 3 1000 5000", "write -P 3 900k 1k"]);
}

#[test]
fn every_line_is_that_of_qemu_img() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for line in [
        "top.q",
        "over.q",
        "-f raw hole.raw",
        "hole.raw",
        "empty.raw",
        "zeros.q",
        "pre.q",
        "falloc.q",
        "nothing.q",
        "small.q",
        "-s 1M -l 3M top.q",
        "-s 1000 -l 100 top.q",
        "-s 17M top.q",
        "--start-off=5k --max=1000000 top.q",
        "-s 5M -l 0 top.q",
        "-f raw -s 5242884 hole.raw",
        "-f raw top.q",
        "-U top.q",
        "--image-opts driver=qcow2,file.filename=top.q",
        "no-such-file",
        "-X top.q",
        "top.q base.q",
        "-l x top.q",
        "-s -1 top.q",
        "-f foo top.q",
        "-f qcow2 hole.raw",
        "",
    ] {
        twins.same(&format!("map {line}"));
        twins.same(&format!("map --output=json {line}"));
    }
}

/// Holes inside allocated clusters are looked for where there are many of them, and only there.
#[test]
fn holes_inside_clusters_are_found_as_qemu_img_finds_them() {
    let Some(twins) = Twins::new() else { return };
    for clusters in [20, 100] {
        for punched in 0..clusters / 5 {
            let image = "holes.q";
            let size = clusters * 64;
            twins.theirs(&format!("create -q -f qcow2 {image} {size}k"));
            twins.io("", image, &[&format!("write -P 7 0 {size}k")]);
            let length = std::fs::metadata(twins.path(image)).unwrap().len();
            let (from, bytes) = (length - punched * 65536, punched * 65536);
            if punched > 0 {
                let place = ["-p", "-o", &from.to_string(), "-l", &bytes.to_string()];
                let mut punch = std::process::Command::new("fallocate");
                blkring_tests::tools::run_ok(punch.args(place).arg(twins.path(image)));
            }
            twins.same(&format!("map --output=json {image}"));
        }
    }
}

#[test]
fn an_entry_that_cannot_be_followed_ends_it() {
    let Some(twins) = Twins::new() else { return };
    twins.theirs("create -q -f qcow2 bad.q 64M");
    twins.io("", "bad.q", &["write -P 1 0 1M"]);
    let file = std::fs::File::options().read(true).write(true).open(twins.path("bad.q")).unwrap();
    let number = |offset| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_be_bytes(bytes)
    };
    let table = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    let entry = number(table + 8 * 3) + 512;
    file.write_all_at(&entry.to_be_bytes(), table + 8 * 3).unwrap();
    twins.same("map bad.q");
    twins.same("map -s 0 -l 100k bad.q");
    twins.same("map --output=json -s 256k bad.q");
}
