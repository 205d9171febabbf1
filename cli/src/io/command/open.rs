//! `open` and `reopen`: what their words mean.

use blkring_engine::Access;

use super::{Command, Entry};
use crate::io::complaint::Complaint;
use crate::io::getopt::Words;
use crate::io::wish::{Change, Wish, aio_option, cache_option, discard_option};
use crate::options::{Aio, CacheMode, Share};

/// `open`.
pub fn open(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let mut wish = Wish {
        access: if words.has('r') { Access::ReadOnly } else { Access::ReadWrite },
        share: Share::of(words.has('U')),
        ..Wish::default()
    };
    wish.overlay = words.has('s').into();
    wish.copy_on_read = words.has('C').into();
    if words.has('n') {
        wish.cache = CacheMode::None;
    }
    if words.has('k') {
        wish.aio = Some(Aio::Native);
    }
    if let Some(word) = words.value('t') {
        wish.cache = cache_option(word).map_err(Complaint::Program)?;
    }
    if let Some(word) = words.value('d') {
        wish.discard = discard_option(word).map_err(Complaint::Program)?;
    }
    if let Some(word) = words.value('i') {
        wish.aio = Some(aio_option(word).map_err(Complaint::Program)?);
    }
    wish.options = words.value('o').map(str::to_owned);
    match words.arguments[..] {
        [] => (),
        [path] => wish.path = Some(path.into()),
        _ => return Err(Complaint::Usage(entry)),
    }
    Ok(Command::Open(wish))
}

/// `reopen`.
pub fn reopen(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let program = |text: &str| Err(Complaint::Program(text.to_owned()));
    let cache = words.value('c').map(cache_option).transpose().map_err(Complaint::Program)?;
    if words.has('r') && words.has('w') {
        return program("Only one -r/-w option may be given");
    }
    if !words.arguments.is_empty() {
        return Err(Complaint::Usage(entry));
    }
    let access = match () {
        () if words.has('r') => Some(Access::ReadOnly),
        () if words.has('w') => Some(Access::ReadWrite),
        () => None,
    };
    let mut change = Change { access, cache, ..Change::default() };
    change.read(words.value('o').unwrap_or_default()).map_err(Complaint::Program)?;
    Ok(Command::Reopen(change))
}
