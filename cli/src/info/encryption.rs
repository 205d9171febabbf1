//! How the data of an image is encrypted, as far as that is no secret.

use blkring_qcow2::{ExtensionKind, Header, ReadAt};
use serde::Serialize;

use crate::chain::Member;
use crate::reason::Reason;

/// What is told of it.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Encryption {
    /// The older method, which has no parameters.
    Aes {
        /// Its name.
        format: &'static str,
    },
    /// The other one.
    Luks(Luks),
}

/// The header of LUKS, version 1.
#[derive(Serialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub struct Luks {
    ivgen_alg: String,
    detached_header: bool,
    hash_alg: String,
    cipher_alg: String,
    uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ivgen_hash_alg: Option<String>,
    format: &'static str,
    cipher_mode: String,
    slots: Vec<Slot>,
    payload_offset: u64,
    master_key_iters: u32,
}

/// A place for a key.
#[derive(Serialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
struct Slot {
    active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    iters: Option<u32>,
    key_offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stripes: Option<u32>,
}

const SLOTS: usize = 8;
const SLOT_BYTES: usize = 48;
const FIRST_SLOT: usize = 208;
/// Bytes of the header.
const BYTES: usize = FIRST_SLOT + SLOTS * SLOT_BYTES;
const MAGIC: &[u8] = b"LUKS\xba\xbe\0\x01";
/// What says that a slot has a key.
const ACTIVE: u32 = 0x00ac_71f3;
/// Offsets are told in sectors.
const SECTOR: u64 = 512;

impl Encryption {
    /// That of an image with this header, if it is encrypted.
    pub fn of(member: &Member, header: &Header) -> Result<Option<Self>, Reason> {
        match header.encryption() {
            0 => return Ok(None),
            1 => return Ok(Some(Encryption::Aes { format: "aes" })),
            _ => (),
        }
        let found = header.extensions().iter().find(|one| one.kind == ExtensionKind::ENCRYPTION);
        let place = found.and_then(|one| one.data.first_chunk::<8>());
        let Some(offset) = place.map(|bytes| u64::from_be_bytes(*bytes)) else {
            return Err(Reason::words("Missing CRYPTO header for crypt method 2"));
        };
        let mut bytes = [0; BYTES];
        if offset.checked_add(BYTES as u64).is_none_or(|end| end > ReadAt::len(member)) {
            return Err(Reason::words("the encryption header lies outside of the file"));
        }
        let read = member.read_at(offset, &mut bytes);
        read.map_err(|error| Reason::system(&member.path, &error))?;
        let luks = Luks::parse(&bytes);
        luks.map(|luks| Some(Encryption::Luks(luks)))
            .ok_or_else(|| Reason::words("the encryption header is damaged"))
    }
}

impl Luks {
    fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let text = |at: usize, len: usize| {
            let field = bytes.get(at..at + len)?.split(|byte| *byte == 0).next()?;
            Some(String::from_utf8_lossy(field).into_owned())
        };
        let number = |at: usize| {
            let field = bytes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_be_bytes(*field))
        };
        let (cipher, mode, key_bytes) = (text(8, 32)?, text(40, 32)?, u64::from(number(108)?));
        // As in xts-plain64 and cbc-essiv:sha256.
        let (mode, ivgen) = mode.split_once('-')?;
        let (ivgen, hash) = match ivgen.split_once(':') {
            Some((ivgen, hash)) => (ivgen, Some(hash.to_owned())),
            None => (ivgen, None),
        };
        // This mode takes two keys.
        let key_bits = if mode == "xts" { key_bytes * 4 } else { key_bytes * 8 };
        let slots = (0..SLOTS).map(|slot| {
            let at = FIRST_SLOT + slot * SLOT_BYTES;
            let active = number(at)? == ACTIVE;
            Some(Slot {
                active,
                iters: number(at + 4).filter(|_| active),
                key_offset: u64::from(number(at + 40)?) * SECTOR,
                stripes: number(at + 44).filter(|_| active),
            })
        });
        Some(Luks {
            ivgen_alg: ivgen.to_owned(),
            detached_header: false,
            hash_alg: text(72, 32)?,
            cipher_alg: format!("{cipher}-{key_bits}"),
            uuid: text(168, 40)?,
            ivgen_hash_alg: hash,
            format: "luks",
            cipher_mode: mode.to_owned(),
            slots: slots.collect::<Option<_>>()?,
            payload_offset: u64::from(number(104)?) * SECTOR,
            master_key_iters: number(164)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_header_is_refused() {
        assert_eq!(Luks::parse(&[0; BYTES]), None);
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        assert_eq!(Luks::parse(&bytes), None, "it has no mode");
        bytes[40..50].copy_from_slice(b"xts-plain6");
        bytes[111] = 64;
        let luks = Luks::parse(&bytes).unwrap();
        assert_eq!((&*luks.cipher_alg, &*luks.ivgen_alg, luks.slots.len()), ("-256", "plain6", 8));
    }
}
