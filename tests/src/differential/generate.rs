//! Random scripts.

use blkring_engine::sim::Rng;

use super::script::{IMAGE, Mode, Script, Step};

/// The name of the backing file.
const BASE: &str = "base";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What the steps of a script are made from.
struct Maker {
    rng: Rng,
    mode: Mode,
    cluster: u64,
    size: u64,
    /// The format of the backing file, if there is one.
    base: Option<&'static str>,
    policy: &'static str,
    /// Whether parts of clusters are written zero. What is left of such a cluster, QEMU looks whether it reads as zeros,
    /// and makes a zero cluster of it then; so the map differs.
    parts: bool,
    /// Whether the disk has grown over a backing file. QEMU makes everything new zero clusters then; the program only
    /// what the backing file would show through.
    grown: bool,
    /// Whether something was written compressed.
    compressed: bool,
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
    let base = [None, None, None, None, Some("raw"), Some("qcow2")][rng.index(6)];
    let parts = !exact && rng.one_in(3);
    let mut maker =
        Maker { rng, mode, cluster, size, base, policy, parts, grown: false, compressed: false };
    let before = base.map_or_else(Vec::new, |format| maker.base(format));
    let mut steps = vec![maker.create()];
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

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Maker {
    /// Whether both sides have the same map. The policy `ahead` does not keep zeros that are written where nothing is.
    fn maps(&self) -> bool {
        !self.parts && !self.grown && self.policy != "ahead"
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.index(from.len())]
    }

    /// A backing file with something in it.
    fn base(&mut self, format: &str) -> Vec<Step> {
        let size = match self.rng.below(3) {
            0 => self.size,
            1 => (self.size / 2 / 512 * 512).max(512),
            _ => self.size + 512,
        };
        let commands = (0..4).map(|number| {
            let from = self.rng.below(size);
            let len = 1 + self.rng.below((size - from).min(4 * self.cluster));
            format!("write -q -P {} {from} {len}", 0xb0 + number)
        });
        let commands = commands.collect();
        let options = words(&format!("-f {format}"));
        vec![
            Step::Img(words(&format!("create -q -f {format} {BASE} {size}"))),
            Step::Io { options, commands, file: BASE },
        ]
    }

    fn create(&mut self) -> Step {
        let mut options = vec![format!("cluster_size={}", self.cluster)];
        if self.rng.one_in(4) {
            options.push("lazy_refcounts=on".to_owned());
        }
        let mut line = format!("create -f qcow2 -o {}", options.join(","));
        if let Some(format) = self.base {
            line += &format!(" -b {BASE} -F {format}");
        }
        line += &format!(" {IMAGE} {}", self.size);
        Step::Img(words(&line))
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
            // Of compressed clusters QEMU counts a part only.
            9 if self.maps() && !self.compressed => {
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
        self.size += self.cluster * self.rng.below(4);
        self.size = self.size.next_multiple_of(512);
        self.grown |= self.base.is_some();
    }

    fn io(&mut self) -> Step {
        let options =
            self.pick(&["", "", "", "-t none", "-t writethrough", "-t unsafe", "-n -i native"]);
        let options = words(options);
        let count = 1 + self.rng.below(7);
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
        Step::Io { options, commands, file: IMAGE }
    }

    /// Requests that are on their way together, each in a part of the disk of its own.
    fn concurrent(&mut self, commands: &mut Vec<String>) {
        let part = self.size / 4;
        for at in 0..4 {
            let len = 1 + self.rng.below(part.min(2 * self.cluster));
            let from = at * part + self.rng.below((part + 1).saturating_sub(len).max(1));
            let kind =
                self.pick(&["aio_write -P 7", "aio_write -z", "aio_read", "aio_write -f -P 9"]);
            let zeros = kind == "aio_write -z" && !self.parts;
            let kind = if zeros { "aio_write -P 8" } else { kind };
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

    /// A range of zero-writes: of whole clusters, unless parts of them may be written.
    fn zeros(&self, from: u64, len: u64) -> (u64, u64) {
        if self.parts {
            return (from, len);
        }
        let start = from - from % self.cluster;
        let end = (from + len).next_multiple_of(self.cluster).min(self.size.max(from + len));
        (start, end - start)
    }

    fn command(&mut self) -> String {
        let (from, len) = self.range();
        let pattern = self.rng.below(256);
        let loose = self.mode == Mode::Loose;
        match self.rng.below(18) {
            0..=3 => format!("write -P {pattern} {from} {len}"),
            4 => format!("write {from} {len}"),
            5 => format!("write -f -P {pattern} {from} {len}"),
            6 => {
                let (from, len) = self.zeros(from, len);
                format!("write -z {from} {len}")
            }
            7 if loose => {
                let (from, len) = self.zeros(from, len);
                format!("write -z -u {from} {len}")
            }
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
            17 if loose => {
                self.compressed = true;
                let (from, len) = (from - from % self.cluster, self.cluster);
                format!("write -c -P {pattern} {from} {}", len.min(self.size.saturating_sub(from)))
            }
            _ => "flush".to_owned(),
        }
    }
}
