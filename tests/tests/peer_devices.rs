//! Block devices through links named qemu-img and qemu-io: what is said and what is left on the device are those of the
//! installed programs.

use blkring_tests::links::Links;
use blkring_tests::loop_device::{LoopDevice, ReadOnly};
use blkring_tests::mounts::SectorSize;
use blkring_tests::report::or_skip;

/// Compares lines of shell in which `dev` is a device of 8 MiB, of which `$fill` makes one of sevens, and `$sum` tells
/// what it holds.
struct Ground {
    links: Links,
    device: LoopDevice,
}

impl Ground {
    #[track_caller]
    fn new(sector: SectorSize) -> Option<Self> {
        let device = or_skip(LoopDevice::new(sector, 8))?;
        let link = format!("ln -s {} dev", device.path().display());
        let links = Links::new(&[
            &link,
            "head -c 8M /dev/zero | tr '\\0' '\\7' > sevens",
            "(head -c 1M sevens; head -c 2M /dev/zero; head -c 1M sevens) > small",
            "truncate -s 32M large; mkdir dir; mkfifo pipe",
            "qemu-img convert -f raw -O qcow2 small packed; qemu-img convert -c -f raw -O qcow2 small smaller",
        ])?;
        links.same_words().then_some(Ground { links, device })
    }

    #[track_caller]
    fn compare(&self, lines: &[&str]) {
        for line in lines {
            let fill =
                "fill='dd if=sevens of=dev bs=1M conv=notrunc,fsync status=none'; sum='md5sum dev'";
            self.links.compare(&format!("{fill}; {line}"));
        }
    }
}

#[test]
fn info_and_its_neighbours_tell_the_same() {
    let Some(ground) = Ground::new(SectorSize::S512) else { return };
    ground.compare(&[
        "$fill; qemu-img info dev; qemu-img info -f raw dev",
        "$fill; qemu-img info --output=json dev",
        "$fill; qemu-img map -f raw dev; qemu-img map -f raw --output=json dev",
        "$fill; qemu-img check -f raw dev",
        "$fill; qemu-img measure -f raw -O qcow2 dev; qemu-img measure -O raw dev",
        "$fill; qemu-io -r -f raw -c info -c length -c map -c 'alloc 0 1M' dev",
        "$fill; qemu-img compare -f raw -F raw dev sevens; qemu-img compare -f raw -F raw small dev",
        "$fill; qemu-img bench -f raw -c 10 dev; qemu-img bench -f raw -t none -w -c 10 --pattern=3 dev; $sum",
        "$fill; qemu-img create -q -f qcow2 -b dev -F raw top; qemu-img info --backing-chain top; qemu-img map top",
        "$fill; qemu-img create -q -f qcow2 -b dev -F raw top; qemu-io -c 'write -P 3 4k 4k' -c 'read -P 7 8k 64k' top; $sum",
        "qemu-img info dir; qemu-img info -f raw dir; qemu-io -f raw -c 'read 0 1' dir",
    ]);
}

/// Copies that differ in what is done to the device.
const COPIES: &[&str] = &[
    "$fill; qemu-img convert -f raw -O raw small dev; $sum",
    "$fill; qemu-img convert -n -f raw -O raw -t none -W small dev; $sum",
    "$fill; qemu-img dd -f raw -O raw bs=1000 skip=3 count=9 if=small of=dev; $sum",
    "$fill; qemu-img convert -f raw -T none -O raw dev new; cmp dev new",
];

#[test]
fn copies_to_and_from_a_device_are_the_same() {
    let Some(ground) = Ground::new(SectorSize::S4096) else { return };
    ground.compare(COPIES);
    let Some(ground) = Ground::new(SectorSize::S512) else { return };
    ground.compare(COPIES);
    ground.compare(&[
        "$fill; qemu-img convert -n -f raw -O raw small dev; $sum",
        "$fill; qemu-img convert -O raw packed dev; $sum; qemu-img convert -O raw smaller dev; $sum",
        "$fill; qemu-img convert -S 0 -f raw -O raw small dev; $sum",
        "$fill; qemu-img convert -f raw -O raw large dev; $sum",
        "$fill; qemu-img convert -n -f raw -O raw large dev; $sum",
        "$fill; qemu-img convert -f raw -O raw -o preallocation=full small dev; $sum",
        "$fill; qemu-img convert -f raw -O raw -o preallocation=falloc small dev; $sum",
        "$fill; qemu-img convert -f raw -O qcow2 dev new; qemu-img compare -f raw -F qcow2 dev new",
        "$fill; qemu-img dd -f raw -O raw if=small of=dev; $sum",
        "$fill; qemu-img dd -f raw -O raw if=large of=dev; $sum",
        "$fill; qemu-img dd -f raw -O raw bs=1M skip=1 if=dev of=new; cmp -i 1048576:0 dev new",
    ]);
}

#[test]
fn sizes_of_a_device_stay() {
    let Some(ground) = Ground::new(SectorSize::S512) else { return };
    ground.compare(&[
        "$fill; qemu-img create -f raw dev 4M; $sum",
        "$fill; qemu-img create -f raw dev 8M; $sum",
        "$fill; qemu-img create -f raw dev 32M; $sum",
        "$fill; qemu-img create -f raw -o preallocation=full dev 4M; $sum",
        "$fill; qemu-img resize -f raw dev 32M; qemu-img resize -f raw dev 8M; $sum",
        "$fill; qemu-img resize -f raw --shrink dev 4M; qemu-img resize -f raw dev +1M; $sum",
        "$fill; qemu-io -f raw -c 'truncate 32M' -c length dev; $sum",
        "$fill; qemu-io -f raw -c 'truncate 4M' -c length dev; $sum",
    ]);
}

#[test]
fn commands_of_io_do_the_same() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(ground) = Ground::new(sector) else { return };
        let all = ["", "-t none", "-d unmap"];
        let options = if sector == SectorSize::S512 { &all[..] } else { &all[1..2] };
        for options in options {
            for commands in [
                "-c 'write -P 3 0 64k' -c 'write -P 4 100 1000' -c 'read -v 96 64'",
                "-c 'write -z 64k 64k' -c 'write -z 1000 5000' -c 'read -P 0 1000 5000' -c 'read -P 7 6000 100'",
                "-c 'write -zu 64k 64k' -c 'read -P 0 64k 64k' -c 'write -zu 3 5' -c flush",
                "-c 'write -f -P 9 1M 4k' -c 'write -zf 2M 4k' -c 'read -P 9 1M 4k'",
                "-c 'write 8M 512' -c 'read 8M 512' -c 'write 8388096 1024' -c 'discard 8M 4k'",
            ] {
                ground.compare(&[&format!("$fill; qemu-io -f raw {options} {commands} dev; $sum")]);
            }
        }
    }
}

#[test]
fn what_may_not_be_written_is_refused_in_the_same_words() {
    let Some(ground) = Ground::new(SectorSize::S512) else { return };
    let Some(()) = or_skip(ground.device.set_read_only(ReadOnly::Yes)) else { return };
    ground.compare(&[
        "qemu-img info dev; $sum",
        "qemu-io -f raw -c 'write 0 512' dev",
        "qemu-io -r -f raw -c 'write 0 512' -c 'read 0 512' dev",
        "qemu-img convert -n -f raw -O raw small dev",
        "qemu-img convert -f raw -O raw small dev",
        "qemu-img dd -f raw -O raw if=small of=dev",
        "qemu-img create -f raw dev 1M",
        "qemu-img resize -f raw dev 8M",
        "qemu-img bench -f raw -w -c 1 dev",
        "qemu-img compare -f raw -F raw dev dev",
    ]);
}

/// An image in a device is looked at and read. Writing it is refused by name.
#[test]
fn a_qcow2_image_on_a_device_is_read_only() {
    let Some(ground) = Ground::new(SectorSize::S512) else { return };
    let make = "qemu-img() { /usr/bin/env -i PATH=/usr/bin:/bin qemu-img \"$@\"; }; qemu-img create -q -f qcow2 dev 8M";
    let fill =
        format!("({make}; qemu-img convert -n -f raw -O qcow2 --target-is-zero small dev 2>&1)");
    for line in [
        "qemu-img info dev; qemu-img info --output=json dev",
        "qemu-img check dev; qemu-img map dev",
        "qemu-img convert -f qcow2 -O raw dev new; md5sum new",
        "qemu-img compare -f qcow2 dev packed; qemu-io -r -f qcow2 -c 'read -P 7 0 64k' dev",
    ] {
        ground.compare(&[&format!("{fill}; {line}")]);
    }
    let refused = ground.links.run(
        blkring_tests::links::Whose::Ours,
        &format!(
            "{fill}; qemu-io -f qcow2 -c 'read 0 512' dev; qemu-img create -q -f qcow2 dev 8M"
        ),
    );
    for text in [
        "writing qcow2 images on block devices is not supported yet",
        "qcow2 images on block devices are not supported yet",
    ] {
        assert!(refused.stderr.contains(text), "{refused:?}");
    }
}
