//! The file systems that tests run on, and the table of what each of them lacks.

use std::fmt;

use crate::report;

/// A file system that a test can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fs {
    /// XFS on a loop device.
    Xfs,
    /// ext4 on a loop device.
    Ext4,
    /// btrfs on a loop device.
    Btrfs,
    /// tmpfs: no device below it.
    Tmpfs,
}

impl Fs {
    /// Every file system of the suite.
    pub const ALL: [Self; 4] = [Self::Xfs, Self::Ext4, Self::Btrfs, Self::Tmpfs];

    /// The name the kernel knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
        }
    }

    /// The smallest size in MiB that its mkfs accepts with the options used here. Backing files are sparse, so a
    /// larger file system costs nothing.
    pub(crate) fn min_mib(self) -> u64 {
        match self {
            Self::Xfs => 320,
            Self::Ext4 => 16,
            Self::Btrfs => 128,
            Self::Tmpfs => 1,
        }
    }
}

impl fmt::Display for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a test may need of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// `fallocate` with `FALLOC_FL_ZERO_RANGE`.
    ZeroRange,
    /// `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    PunchHole,
    /// O_DIRECT that reaches a device.
    DirectIo,
    /// A block device below it, whose sector size can be chosen.
    SectorSize,
}

impl Feature {
    /// Every feature of the table.
    pub const ALL: [Self; 4] = [Self::ZeroRange, Self::PunchHole, Self::DirectIo, Self::SectorSize];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroRange => "FALLOC_FL_ZERO_RANGE",
            Self::PunchHole => "FALLOC_FL_PUNCH_HOLE",
            Self::DirectIo => "direct I/O to a device",
            Self::SectorSize => "a sector size of its own",
        })
    }
}

/// What a file system lacks by its nature, and why. A test of it is not skipped but not applicable.
pub const LACKS: &[(Fs, Feature, &str)] = &[
    (
        Fs::Btrfs,
        Feature::DirectIo,
        "a direct write of checksummed data may go through the page cache",
    ),
    (Fs::Tmpfs, Feature::ZeroRange, "its fallocate knows plain allocation and hole punching only"),
    (Fs::Tmpfs, Feature::DirectIo, "its data lives in the page cache"),
    (Fs::Tmpfs, Feature::SectorSize, "there is no block device below it"),
];

/// Why `fs` lacks `feature`, if it does.
pub fn lacks(fs: Fs, feature: Feature) -> Option<&'static str> {
    LACKS.iter().find(|(f, x, _)| (*f, *x) == (fs, feature)).map(|(_, _, why)| *why)
}

/// Whether a test of `feature` means something on `fs`; if not, reports `not applicable: FS lacks FEATURE (WHY)`.
/// The test returns when the answer is `false`.
pub fn applicable(fs: Fs, feature: Feature) -> bool {
    match lacks(fs, feature) {
        None => true,
        Some(why) => {
            report::not_applicable(&format!("{fs} lacks {feature} ({why})"));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_once_and_says_why() {
        for (fs, feature, why) in LACKS {
            let rows = LACKS.iter().filter(|(f, x, _)| (f, x) == (fs, feature)).count();
            assert_eq!(rows, 1, "{fs} {feature}");
            assert_eq!(lacks(*fs, *feature), Some(*why));
            assert!(why.len() > 10, "{fs} {feature}: no reason");
        }
        assert_eq!(lacks(Fs::Xfs, Feature::ZeroRange), None);
    }
}
