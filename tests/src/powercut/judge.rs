//! Whether what a power cut left is legal.

use std::ops::RangeInclusive;
use std::sync::Arc;

use blkring_engine::sim::{Rng, SimDisk, World};
use blkring_engine::{Flags, IoMem, QueueOptions, Request};
use blkring_qcow2::{CheckLimits, CheckReport, Finding, Image, ImageOptions, Severity, check};

use super::config::{Config, Packed, Past};
use super::make::{IMAGE, open};
use super::model::{Answer, Model, SECTOR, Token, name, packed_token, read_token};
use super::run::{Packer, is_taken};
use super::script::{Effect, Guest, draw};
use crate::snapshots::view;

/// Requests of a queue that only reads.
const READ_QUEUE: usize = 4;

/// Findings in a report.
const FINDINGS: usize = 3;

/// Clusters of a file that are looked at, whether it has them or not: more than are ever counted.
const BEYOND: u64 = 640;

/// The numbers of requests after a power cut begin here: they are told from those before.
pub(crate) const AFTER: u64 = 1 << 24;

/// What is to hold after a power cut.
pub(crate) struct Law<'a> {
    pub(crate) config: &'a Config,
    pub(crate) model: &'a Model,
    /// What each snapshot holds.
    pub(crate) snapshots: &'a [Vec<Token>],
    /// Leaked clusters at most.
    pub(crate) leaks: u64,
    /// Sectors that the disk may have.
    pub(crate) sectors: RangeInclusive<u64>,
}

/// Checks the structures of the image: no corruption. How many clusters are leaked.
pub(crate) fn check_structure(disk: &SimDisk, config: &Config) -> Result<u64, String> {
    let mut file = disk.contents(IMAGE);
    run_check(&file, config)?;
    // Counts of clusters beyond the end of the file are leaks as well: the file may grow again.
    let beyond = usize::try_from(BEYOND * config.cluster).expect("small");
    file.resize(file.len() + beyond, 0);
    Ok(run_check(&file, config)?.leaks)
}

fn run_check(file: &Vec<u8>, config: &Config) -> Result<CheckReport, String> {
    let mut findings = Vec::new();
    let mut note = |finding: &Finding| {
        // A cluster may be alone and not claim so, where the case begins with such.
        let unclaimed = config.past == Past::ClaimsCleared
            && matches!(finding, Finding::Copied { raw, .. } if raw >> 63 == 0);
        if finding.severity() != Severity::Leak && !unclaimed {
            findings.push(finding.to_string());
        }
    };
    let report = check(file, CheckLimits::default(), &mut note);
    let report = report.map_err(|error| format!("I1: the image cannot be checked: {error}"))?;
    if !findings.is_empty() {
        findings.truncate(FINDINGS);
        return Err(format!("I1, I4: {}", findings.join("; ")));
    }
    Ok(report)
}

/// No snapshot has changed.
fn judge_snapshots(
    disk: &SimDisk,
    config: &Config,
    snapshots: &[Vec<Token>],
) -> Result<(), String> {
    for (number, expected) in snapshots.iter().enumerate() {
        let copy = disk.crash_keeping_nothing();
        copy.create_file(IMAGE, &view(&disk.contents(IMAGE), number)?);
        let (_, found) = contents(&copy, config)?;
        let differs = found.iter().zip(expected).position(|(found, token)| found != &Ok(*token));
        if let Some(sector) = differs {
            let (found, expected) = (found[sector], expected[sector]);
            return Err(format!(
                "snapshot {number}: sector {sector} reads {found:x?}, not {expected:#x}"
            ));
        }
    }
    Ok(())
}

impl Law<'_> {
    /// Judges one state.
    pub(crate) fn judge(&self, after: &SimDisk, rng: &mut Rng) -> Result<(), String> {
        let leaks = check_structure(after, self.config)?;
        if leaks > self.leaks {
            return Err(format!("I5: {leaks} clusters leaked, {} at most", self.leaks));
        }
        judge_snapshots(after, self.config, self.snapshots)?;
        let (has, tokens) = contents(after, self.config)?;
        if !self.sectors.contains(&has) {
            return Err(format!("I2: the disk has {has} sectors instead of {:?}", self.sectors));
        }
        for (sector, token) in tokens.iter().enumerate() {
            self.judge_sector(sector, *token)?;
        }
        if rng.one_in(20) {
            let tokens: Vec<Token> = tokens.into_iter().filter_map(Result::ok).collect();
            self.judge_use(after, (has, &tokens), leaks, rng)?;
        }
        Ok(())
    }

    fn judge_sector(&self, sector: usize, found: Result<Token, Token>) -> Result<(), String> {
        let what = match found {
            Ok(token) if self.model.allows(sector, token) => return Ok(()),
            Ok(token) => name(token),
            Err(first) => format!("a mixture that begins with {}", name(first)),
        };
        let legal = self.model.history(sector);
        Err(format!("I2, I3: sector {sector} reads {what}; versions: {legal}"))
    }

    /// Opens what was left for writing, uses it, closes it: afterwards nothing more may be leaked.
    fn judge_use(
        &self,
        after: &SimDisk,
        (mut sectors, tokens): (u64, &[Token]),
        leaks: u64,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let disk = after.crash_keeping_nothing();
        let mut world = World::new(rng.next_u64(), &disk);
        world.add_queue(QueueOptions::default());
        let image = open(&mut world, self.config, self.config.options())
            .map_err(|error| format!("after the cut the image cannot be opened: {error}"))?;
        let handle = world.queue(0).attach(&image).expect("a queue without a ring");
        let mut model = Model::new(tokens);
        if sectors < self.config.sectors() && rng.one_in(2) {
            sectors = self.config.sectors();
            let (image, size) = (image.clone(), self.config.size());
            let grown = world.block_on(0, async move { image.resize(size).await });
            grown.map_err(|error| format!("after the cut growing fails: {error}"))?;
        }
        let guest = Guest { config: self.config, sectors };
        for number in AFTER..AFTER + 2 + rng.below(6) {
            let step = draw(rng, guest, number);
            let (handle, request) = (handle.clone(), step.request);
            let answered = world.block_on(0, async move { handle.request(request).await });
            answered.map_err(|error| format!("after the cut '{}' fails: {error}", step.text))?;
            note(&mut model, &step.effect, number);
        }
        self.pack_some(&mut world, &image, &mut model, rng)?;
        let closed = world.block_on(0, async move { image.close().await });
        closed.map_err(|error| format!("after the cut closing fails: {error}"))?;
        let now = check_structure(&disk, self.config)
            .map_err(|text| format!("used and closed: {text}"))?;
        if now > leaks {
            return Err(format!("I5: used and closed, {now} clusters leaked instead of {leaks}"));
        }
        judge_snapshots(&disk, self.config, self.snapshots)
            .map_err(|text| format!("used and closed: {text}"))?;
        let end = model.tick();
        let law = Law { model: &model, sectors: sectors..=sectors, ..*self };
        for (sector, token) in contents(&disk, self.config)?.1.into_iter().enumerate() {
            law.judge_sector(sector, token).map_err(|text| format!("used and closed: {text}"))?;
            if token.is_ok_and(|token| !model.shows(sector, token, end)) {
                return Err(format!("used and closed: sector {sector} reads an older version"));
            }
        }
        Ok(())
    }

    /// Writes a few clusters in compressed form, beside what was left.
    fn pack_some(
        &self,
        world: &mut World,
        image: &Arc<Image>,
        model: &mut Model,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let size = image.info().virtual_size;
        let whole = size / self.config.cluster;
        if self.config.packed == Packed::None || whole == 0 {
            return Ok(());
        }
        let mut packer = Packer::new(self.config);
        let per_cluster = self.config.cluster / SECTOR;
        for number in AFTER + 10..AFTER + 10 + rng.below(6) {
            let cluster = rng.below(whole);
            let sectors = index(cluster * per_cluster)..index((cluster + 1) * per_cluster);
            let token = move |sector| packed_token(number, sector);
            let packed = packer.pack(sectors.clone().map(token));
            let (image, offset) = (image.clone(), cluster * self.config.cluster);
            match world.block_on(0, async move { image.write_compressed(offset, packed).await }) {
                Ok(()) => {
                    let submitted = model.submit(sectors.clone(), token);
                    model.answer(sectors, submitted, Answer::Written);
                }
                Err(error) if is_taken(&error) => (),
                Err(error) => return Err(format!("after the cut compressing fails: {error}")),
            }
        }
        Ok(())
    }
}

fn index(sector: u64) -> usize {
    usize::try_from(sector).expect("the disks here are small")
}

/// A request that was alone has succeeded.
fn note(model: &mut Model, effect: &Effect, number: u64) {
    if let Some((sectors, token)) = effect.changes(number) {
        let submitted = model.submit(sectors.clone(), token);
        model.answer(sectors, submitted, Answer::Written);
    }
}

/// How many sectors a driver that knows nothing of what was before sees, and what it reads in every sector. Those that
/// the disk does not have yet are zeros.
pub(crate) fn contents(
    disk: &SimDisk,
    config: &Config,
) -> Result<(u64, Vec<Result<Token, Token>>), String> {
    let mut world = World::new(1, disk);
    world.add_queue(QueueOptions::with_requests(READ_QUEUE));
    let image = open(&mut world, config, ImageOptions::new().cache_bytes(0))
        .map_err(|error| format!("the image cannot be opened: {error}"))?;
    let handle = world.queue(0).attach(&image).expect("a queue without a ring");
    let size = handle.size();
    let len = usize::try_from(size).expect("small");
    let all = IoMem::aligned_zeroed(len);
    let request = Request::read(0, all.clone()).with(Flags::empty());
    let read = world.block_on(0, async move { handle.request(request).await });
    read.map_err(|error| format!("the image cannot be read: {error}"))?;
    let mut tokens: Vec<_> = all.to_vec().chunks(SECTOR as usize).map(read_token).collect();
    tokens.resize(usize::try_from(config.sectors()).expect("small"), Ok(0));
    Ok((size / SECTOR, tokens))
}
