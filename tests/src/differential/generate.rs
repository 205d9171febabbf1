//! Random scripts.

use blkring_engine::sim::Rng;

use super::script::{IMAGE, Mode, Script, Step};

pub(super) const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What the steps of a script are made from.
pub(super) struct Maker {
    pub(super) rng: Rng,
    mode: Mode,
    pub(super) cluster: u64,
    pub(super) size: u64,
    /// How many files lie below the image.
    pub(super) depth: usize,
    /// The name and format of the file below the image, once it is made.
    pub(super) lower: Option<(&'static str, &'static str)>,
    /// Whether the image is of version 2, which has no zero clusters. QEMU writes zeros there; the program only where
    /// something else would be read.
    pub(super) version_2: bool,
    policy: &'static str,
    /// Whether a cluster was compressed in this session. QEMU remembers where the next compressed data goes even if
    /// that place was freed, and writes over what others have put there since: one for each session.
    packed: bool,
    /// Whether the disk has grown over a backing file. QEMU makes everything new zero clusters then; the program only
    /// what the backing file would show through.
    grown: bool,
}

/// The script of a seed: always the same one.
pub fn script(seed: u64) -> Script {
    let mut rng = Rng::new(seed);
    let mode = if rng.one_in(2) { Mode::Exact } else { Mode::Loose };
    let exact = mode == Mode::Exact;
    let cluster = if exact { 64 * KIB } else { 512 << rng.below(13) };
    let clusters = [1, 3, 16, 100, 513][rng.index(5)];
    let mut size = (cluster * clusters).min(64 * MIB);
    if rng.one_in(3) {
        size -= 512 * rng.below(cluster / 512);
    }
    let policy = if exact || rng.one_in(2) { "per-allocation" } else { "ahead" };
    let depth = [0, 0, 0, 0, 1, 2][rng.index(6)];
    let version_2 = rng.one_in(6);
    let mut maker = Maker {
        rng,
        mode,
        cluster,
        size,
        depth,
        lower: None,
        version_2,
        policy,
        packed: false,
        grown: false,
    };
    let (before, first) = maker.origin();
    let mut steps = vec![first];
    for _ in 0..=maker.rng.below(5) {
        let step = maker.step();
        steps.push(step);
    }
    steps.push(Step::Img(words(&format!("check {IMAGE}"))));
    if maker.maps() {
        steps.push(Step::Img(words(&format!("map --output=json {IMAGE}"))));
    }
    Script { mode, policy, before, steps }
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Maker {
    /// Whether both sides have the same map. The policy `ahead` does not keep zeros that are written where nothing is.
    fn maps(&self) -> bool {
        !self.grown && self.policy != "ahead" && !(self.version_2 && self.loose())
    }

    pub(super) fn loose(&self) -> bool {
        self.mode == Mode::Loose
    }

    pub(super) fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.index(from.len())]
    }

    fn step(&mut self) -> Step {
        let line = match self.rng.below(16) {
            0 => format!("info {IMAGE}"),
            1 => format!("info --output=json {IMAGE}"),
            2 => format!("check {IMAGE}"),
            3 if self.maps() => format!("check --output=json {IMAGE}"),
            4 if self.maps() => format!("map --output=json {IMAGE}"),
            5 if self.maps() && self.mode == Mode::Exact => format!("map {IMAGE}"),
            6 => {
                let format = self.pick(&["raw", "qcow2", "qcow2 -o cluster_size=4k"]);
                format!("convert -f qcow2 -O {format} {IMAGE} copy")
            }
            // There may be no copy: both say so then.
            7 => format!("compare {IMAGE} copy"),
            8 => "check -f qcow2 copy".to_owned(),
            // Of large clusters the program leaves parts to be holes of the file, and they are not counted then.
            9 if self.maps() && self.cluster <= 64 * KIB => {
                format!("measure --output=json -O qcow2 {IMAGE}")
            }
            10 => {
                self.grow();
                format!("resize {IMAGE} {}", self.size)
            }
            11 => return Step::Swap,
            _ => return self.io(),
        };
        Step::Img(words(&line))
    }

    fn grow(&mut self) {
        if self.version_2 && self.lower.is_some() {
            return;
        }
        self.size += self.cluster * self.rng.below(4);
        self.size = self.size.next_multiple_of(512);
        self.grown |= self.lower.is_some();
    }

    fn io(&mut self) -> Step {
        let options =
            self.pick(&["", "", "", "-t none", "-t writethrough", "-t unsafe", "-n -i native"]);
        let options = words(options);
        let count = 1 + self.rng.below(7);
        self.packed = false;
        let mut commands = Vec::new();
        for _ in 0..count {
            match self.rng.below(12) {
                0 if self.mode == Mode::Loose => self.concurrent(&mut commands),
                _ => {
                    let command = self.command();
                    commands.push(command);
                }
            }
        }
        Step::Io { options, commands, file: IMAGE.to_owned() }
    }

    /// Requests that are on their way together, each in a part of the disk of its own.
    fn concurrent(&mut self, commands: &mut Vec<String>) {
        let part = self.size / 4;
        for at in 0..4 {
            let len = 1 + self.rng.below(part.min(2 * self.cluster));
            let from = at * part + self.rng.below((part + 1).saturating_sub(len).max(1));
            let kind =
                self.pick(&["aio_write -P 7", "aio_write -z", "aio_read", "aio_write -f -P 9"]);
            commands.push(format!("{kind} {from} {len}"));
        }
        commands.push("aio_flush".to_owned());
    }

    /// A range: often of whole clusters or sectors, mostly within the disk.
    fn range(&mut self) -> (u64, u64) {
        let unit = match self.rng.below(4) {
            0 => self.cluster,
            1 => 512,
            2 => 4 * KIB,
            _ => 1,
        };
        let unit = unit.min(self.size);
        let behind = u64::from(self.rng.one_in(20));
        let from = self.rng.below(self.size / unit + behind) * unit;
        let most = [unit, self.cluster, 3 * self.cluster][self.rng.index(3)];
        let len = (1 + self.rng.below(most / unit)) * unit;
        let beyond = self.rng.one_in(25);
        let len = if beyond { len } else { len.min(self.size.saturating_sub(from)) };
        (from, len)
    }

    fn command(&mut self) -> String {
        let (from, len) = self.range();
        let pattern = self.rng.below(256);
        let loose = self.loose();
        match self.rng.below(18) {
            0..=3 => format!("write -P {pattern} {from} {len}"),
            4 => format!("write {from} {len}"),
            5 => format!("write -f -P {pattern} {from} {len}"),
            6 if loose || !self.version_2 => format!("write -z {from} {len}"),
            7 if loose => format!("write -z -u {from} {len}"),
            8 if loose => format!("discard {from} {len}"),
            9 => {
                let half = (len / 2).max(1);
                format!("writev -P {pattern} {from} {half} {}", len.saturating_sub(half).max(1))
            }
            10 => format!("read -P {pattern} {from} {len}"),
            11 => format!("read -v {from} {}", len.min(64)),
            12 => {
                let half = (len / 2).max(1);
                format!("readv {from} {half} {}", len.saturating_sub(half).max(1))
            }
            13 if self.maps() => "map".to_owned(),
            14 if self.maps() => format!("alloc {from} {len}"),
            15 => self.pick(&["length", "info", "flush", "aio_flush"]).to_owned(),
            16 if self.rng.one_in(3) => {
                self.grow();
                format!("truncate {}", self.size)
            }
            // In version 2 zeros give whole clusters up in QEMU, which may be compressed again then.
            17 if loose && !self.packed && !self.version_2 => {
                self.packed = true;
                let (from, len) = (from - from % self.cluster, self.cluster);
                format!("write -c -P {pattern} {from} {}", len.min(self.size.saturating_sub(from)))
            }
            _ => "flush".to_owned(),
        }
    }
}
