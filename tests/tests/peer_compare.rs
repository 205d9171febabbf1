//! `compare` and `measure` beside the installed qemu-img.

use blkring_tests::twins::Twins;

const MIB: u64 = 1 << 20;

fn samples(twins: &Twins) {
    twins.raw("a.raw", 100 * MIB, &[(5_000_801, 1)]);
    twins.raw("b.raw", 100 * MIB, &[(5_000_001, 1)]);
    twins.raw("zeros.raw", 100 * MIB, &[]);
    twins.raw("longer.raw", 101 * MIB, &[]);
    twins.raw("tail.raw", 101 * MIB, &[(105_000_000, 1)]);
    twins.raw("odd.raw", 1000, &[(0, 1000)]);
    twins.raw("full.raw", 9 * MIB, &[(0, 9 << 20)]);
    twins.theirs("convert -f raw -O qcow2 full.raw full.q");
    twins.theirs("create -q -f qcow2 empty.q 1M");
    for name in ["zero.q", "data.q"] {
        twins.theirs(&format!("create -q -f qcow2 {name} 1M"));
    }
    twins.io("", "zero.q", &["write -z 0 64k"]);
    twins.io("", "data.q", &["write -P 0 128k 64k"]);
    twins.theirs("create -q -f qcow2 -b full.q -F qcow2 over.q");
    twins.io("", "over.q", &["write -P 5 3M 1k"]);
}

#[test]
fn verdicts_are_those_of_qemu_img() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for line in [
        "-f raw -F raw a.raw b.raw",
        "-f raw -F raw a.raw a.raw",
        "-f raw -F raw zeros.raw longer.raw",
        "-f raw -F raw longer.raw zeros.raw",
        "-s -f raw -F raw zeros.raw longer.raw",
        "-f raw -F raw zeros.raw tail.raw",
        "-f raw -F raw tail.raw zeros.raw",
        "-q -f raw -F raw tail.raw zeros.raw",
        "-p -f raw -F raw a.raw a.raw",
        "-p -f raw -F raw a.raw b.raw",
        "-p -f raw -F raw zeros.raw tail.raw",
        "-p full.raw full.q",
        "-p -q full.raw full.q",
        "full.raw full.q",
        "-s full.raw full.q",
        "over.q full.q",
        "empty.q zero.q",
        "-s empty.q zero.q",
        "-T none full.q full.q",
        "-T foo full.q full.q",
        "--image-opts driver=qcow2,file.filename=full.q driver=qcow2,file.filename=full.q",
        "-U full.q full.q",
        "full.q no-such-file",
        "no-such-file full.q",
        "full.q",
        "full.q full.q full.q",
        "-f foo full.q full.q",
        "-F foo full.q full.q",
        "-F qcow2 full.q full.raw",
        "odd.raw odd.raw",
    ] {
        twins.same(&format!("compare {line}"));
    }
}

/// In strict mode the other one also minds that a run of one image ends at its end where that of the other does not,
/// so that it names an offset before the first difference.
#[test]
fn strict_mode_names_the_first_difference_in_allocation() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    let ended = twins.ours_ends("compare -s empty.q data.q");
    let text = "Strict mode: Offset 131072 block status mismatch!\n";
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), text));
    let ended = twins.ours_ends("compare -s over.q full.raw");
    assert_eq!(ended.stdout, "Content mismatch at offset 3145728!\n");
}

#[test]
fn sizes_are_those_of_qemu_img() {
    let Some(twins) = Twins::new() else { return };
    samples(&twins);
    for line in [
        "--size 1G -O qcow2",
        "--size 1G",
        "--size 1000",
        "--size 1G -O qcow2 --output=json",
        "-O qcow2 full.raw",
        "-O raw full.q",
        "-O qcow2 full.q",
        "-O qcow2 --output=json over.q",
        "-O qcow2 -o cluster_size=2M over.q",
        "-O qcow2 -o cluster_size=512 a.raw",
        "-O qcow2 zero.q",
        "-O qcow2 data.q",
        "-O qcow2 odd.raw",
        "-O qcow2 -o size=1G full.raw",
        "--size 1G -O foo",
        "--size x",
        "--size 1G full.raw",
        "-O qcow2",
        "-O qcow2 -o cluster_size=3 --size 1G",
        "-O qcow2 -o foo=3 --size 1G",
        "-O raw -o foo=3 --size 1G",
        "-O qcow2 --size 7E",
        "-O qcow2 --size 8E",
        "-O qcow2 --size -1",
        "-O qcow2 -f raw --size 1G",
        "--image-opts --size 1G",
        "-O qcow2 a b",
        "-O qcow2 no-such-file",
        "-O qcow2 -o cluster_size=512 --size 1T",
        "-O qcow2 -o compat=0.10 full.raw",
        "-O qcow2 -o compat=0.10 over.q",
        "-O qcow2 -o compat=7,refcount_bits=3 --size 1G",
        "-O qcow2 -o compat=0.10,refcount_bits=3 --size 1G",
        "-O qcow2 -o compat=0.10,refcount_bits=1 --size 1G",
        "-O qcow2 -o cluster_size=3,compat=7 --size 1G",
        "-O qcow2 -o compat=0.10,lazy_refcounts=on --size 1G",
        "-O qcow2 -o compression_type=foo --size 1G",
        "-O qcow2 -o preallocation=foo,refcount_bits=3 --size 1G",
        "-O qcow2 -o preallocation=foo --size 1G",
        "-O qcow2 -o preallocation=metadata over.q",
        "-O qcow2 -o preallocation=falloc over.q",
        "-O qcow2 -o preallocation=full --size 3G",
        "-O qcow2 -o backing_file=full.raw,backing_fmt=raw over.q",
        "-O qcow2 -o backing_file=full.raw,backing_fmt=raw --size 3G",
    ] {
        twins.same(&format!("measure {line}"));
    }
    for cluster in ["512", "1k", "4k", "64k", "1M", "2M"] {
        for size in
            ["0", "1", "511", "513", "64k", "100M", "1000M", "7G", "31G", "255G", "3T", "60T"]
        {
            for bits in [1, 16, 64] {
                let options = format!("cluster_size={cluster},refcount_bits={bits}");
                twins.same(&format!("measure -O qcow2 -o {options} --size {size}"));
            }
        }
    }
}
