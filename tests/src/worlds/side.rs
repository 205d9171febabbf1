//! The two disks of a world, as their guests know them.

use std::ops::Range;

use crate::powercut::model::{Model, SECTOR, Token, fill, name, read_token};

use super::config::Config;

/// The file of the raw disk.
pub(super) const RAW: &str = "raw";

/// Which disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Image,
    Raw,
}

pub(super) const SIDES: [Side; 2] = [Side::Image, Side::Raw];

/// What may be seen on both.
pub(super) struct Seen {
    pub(super) image: Model,
    pub(super) raw: Model,
}

impl Seen {
    pub(super) fn of(&mut self, side: Side) -> &mut Model {
        match side {
            Side::Image => &mut self.image,
            Side::Raw => &mut self.raw,
        }
    }

    /// Judges what a read of `sectors` that was submitted at `submitted` shows.
    pub(super) fn judge(
        &mut self,
        (side, sectors): (Side, Range<usize>),
        bytes: &[u8],
        submitted: u64,
    ) -> Result<(), String> {
        let model = self.of(side);
        for (sector, found) in sectors.zip(tokens(bytes)) {
            match found {
                Ok(token) if model.shows(sector, token, submitted) => (),
                Ok(token) | Err(token) => {
                    return Err(format!(
                        "{side:?}: a read shows {} in sector {sector}; versions: {}",
                        name(token),
                        model.history(sector)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Judges what is there after a power cut.
    pub(super) fn judge_cut(
        &mut self,
        side: Side,
        found: impl Iterator<Item = Result<Token, Token>>,
    ) -> Result<(), String> {
        let model = self.of(side);
        for (sector, found) in found.enumerate() {
            match found {
                Ok(token) if model.allows(sector, token) => (),
                Ok(token) | Err(token) => {
                    return Err(format!(
                        "{side:?}: sector {sector} holds {}; versions: {}",
                        name(token),
                        model.history(sector)
                    ));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn tokens(bytes: &[u8]) -> impl Iterator<Item = Result<Token, Token>> {
    bytes.chunks(SECTOR as usize).map(read_token)
}

/// What the raw disk holds at first.
pub(super) fn raw_content(config: &Config) -> (Vec<Token>, Vec<u8>) {
    let token = |sector: u64| if sector.is_multiple_of(3) { 0 } else { 0xdddd_dddd_dddd_dddd };
    let all: Vec<Token> = (0..config.raw_sectors).map(token).collect();
    let bytes = all.iter().flat_map(|token| fill(*token)).collect();
    (all, bytes)
}
