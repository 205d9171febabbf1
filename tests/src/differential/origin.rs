//! Where the image of a script comes from, and what lies below it.

use super::generate::{KIB, Maker, words};
use super::script::{IMAGE, Step};

/// The names of the backing files, from the deepest on.
const BELOW: [&str; 2] = ["deep", "base"];

impl Maker {
    /// What is done before by the installed programs, and the first step.
    pub(super) fn origin(&mut self) -> (Vec<Step>, Step) {
        let mut before = self.below();
        let kind = self.rng.below(9);
        let made = match kind {
            0 if self.loose() => self.compressed(&mut before),
            1 if self.loose() => self.with_snapshot(&mut before),
            2 => self.preallocated(&mut before),
            _ => false,
        };
        let first = if made { format!("info {IMAGE}") } else { self.create("") };
        (before, Step::Img(words(&first)))
    }

    /// The backing files, with something in each.
    fn below(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut lower: Option<(&str, &str)> = None;
        let files = self.depth.min(BELOW.len());
        for &name in &BELOW[BELOW.len() - files..] {
            let format = if lower.is_some() { "qcow2" } else { self.pick(&["raw", "qcow2"]) };
            let size = match self.rng.below(3) {
                0 => self.size,
                1 => (self.size / 2 / 512 * 512).max(512),
                _ => self.size + 512,
            };
            let backing =
                lower.map_or_else(String::new, |(name, format)| format!("-b {name} -F {format} "));
            steps.push(Step::Img(words(&format!("create -q -f {format} {backing}{name} {size}"))));
            steps.push(self.fill(name, format, size));
            lower = Some((name, format));
        }
        self.lower = lower;
        steps
    }

    /// Writes to a new file.
    fn fill(&mut self, file: &str, format: &str, size: u64) -> Step {
        let commands = (0..4).map(|number| {
            let from = self.rng.below(size);
            let len = 1 + self.rng.below((size - from).min(4 * self.cluster));
            format!("write -q -P {} {from} {len}", 0xb0 + number)
        });
        let (commands, options) = (commands.collect(), words(&format!("-f {format}")));
        Step::Io { commands, options, file: file.to_owned() }
    }

    /// The words that create the image, with more options.
    fn create(&mut self, more: &str) -> String {
        let options = self.options() + more;
        let backing =
            self.lower.map_or_else(String::new, |(name, format)| format!("-b {name} -F {format} "));
        format!("create -f qcow2 -o {options} {backing}{IMAGE} {}", self.size)
    }

    fn options(&mut self) -> String {
        let mut options = format!("cluster_size={}", self.cluster);
        if self.version_2 {
            options += ",compat=0.10";
            return options;
        }
        if self.rng.one_in(4) {
            options += ",lazy_refcounts=on";
        }
        if self.rng.one_in(4) {
            options += ",compat=1.1";
        }
        if self.rng.one_in(4) {
            options += &format!(",refcount_bits={}", 1 << self.rng.below(7));
        }
        if self.rng.one_in(4) {
            options += &format!(",compression_type={}", self.pick(&["zlib", "zstd"]));
        }
        options
    }

    /// A copy whose clusters are compressed.
    fn compressed(&mut self, before: &mut Vec<Step>) -> bool {
        if self.lower.is_some() {
            return false;
        }
        let source = "source";
        before.push(Step::Img(words(&format!("create -q -f raw {source} {}", self.size))));
        before.push(self.fill(source, "raw", self.size));
        let options = self.options();
        let line = format!("convert -c -f raw -O qcow2 -o {options} {source} {IMAGE}");
        before.push(Step::Img(words(&line)));
        true
    }

    /// An image with a snapshot, from which it differs.
    fn with_snapshot(&mut self, before: &mut Vec<Step>) -> bool {
        let more = if self.version_2 { "" } else { ",refcount_bits=16" };
        let create = self.create(more);
        before.push(Step::Img(words(&create)));
        before.push(self.fill(IMAGE, "qcow2", self.size));
        before.push(Step::Img(words(&format!("snapshot -c one {IMAGE}"))));
        if self.rng.one_in(2) {
            before.push(self.fill(IMAGE, "qcow2", self.size));
        }
        true
    }

    /// An image whose clusters have their places from the beginning.
    fn preallocated(&mut self, before: &mut Vec<Step>) -> bool {
        if self.lower.is_some() || self.cluster < 4 * KIB {
            return false;
        }
        let mode = self.pick(&["metadata", "falloc", "full"]);
        let create = self.create(&format!(",preallocation={mode}"));
        before.push(Step::Img(words(&create)));
        true
    }
}
