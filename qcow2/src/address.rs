//! Addresses that cannot be mixed up: guest or host, bytes or clusters.
//!
//! The field of each type is private and there is no `Deref`: a guest offset is never added to a
//! host offset by accident. Going from bytes to clusters and back takes a shift, and every shift
//! lives in [`Geometry`](crate::Geometry).
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $unit:literal, $shown:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// The first one.
            pub const ZERO: Self = Self(0);

            #[doc = concat!("The address `value`, in ", $unit, ".")]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            #[doc = concat!("The plain number, in ", $unit, ".")]
            pub const fn get(self) -> u64 {
                self.0
            }

            #[doc = concat!("The address `count` ", $unit, " further on; `None` past 2^64.")]
            pub const fn checked_add(self, count: u64) -> Option<Self> {
                match self.0.checked_add(count) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            #[doc = concat!("How many ", $unit, " lie between `start` and this address; `None` if it lies below `start`.")]
            pub const fn checked_since(self, start: Self) -> Option<u64> {
                self.0.checked_sub(start.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $shown, self.0)
            }
        }
    };
}

address!(
    /// A byte offset in the virtual disk.
    GuestOffset, "bytes", "{:#x}"
);
address!(
    /// A byte offset in the image file.
    HostOffset, "bytes", "{:#x}"
);
address!(
    /// The index of a cluster of the virtual disk.
    GuestCluster, "clusters", "{}"
);
address!(
    /// The index of a cluster of the image file.
    HostCluster, "clusters", "{}"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addition_stops_at_the_end_of_the_numbers() {
        assert_eq!(HostOffset::new(5).checked_add(7), Some(HostOffset::new(12)));
        assert_eq!(HostOffset::new(u64::MAX).checked_add(1), None);
        assert_eq!(GuestCluster::new(9).checked_since(GuestCluster::new(4)), Some(5));
        assert_eq!(GuestCluster::new(4).checked_since(GuestCluster::new(9)), None);
    }

    #[test]
    fn offsets_print_in_hex_and_clusters_in_decimal() {
        assert_eq!(HostOffset::new(0x30000).to_string(), "0x30000");
        assert_eq!(format!("{:?}", GuestCluster::new(12)), "GuestCluster(12)");
    }
}
