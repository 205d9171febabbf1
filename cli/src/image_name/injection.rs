//! Faults on purpose as options and configuration files of QEMU's blkdebug say them.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkring_engine::faults::{Effect, Event, Faults, Ops, Rule};

use super::node::switch;
use crate::reason::Reason;
use crate::text::reason;

/// The sections of a configuration file, which are the names of the options too.
const SECTIONS: [&str; 2] = ["inject-error", "set-state"];

/// Bytes of the sectors that rules name.
const SECTOR: u64 = 512;

/// What is to go wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Injection {
    rules: Vec<Wanted>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Error {
        event: Event,
        state: Option<u32>,
        errno: i32,
        sector: Option<u64>,
        ops: Ops,
        once: bool,
    },
    SetState {
        event: Event,
        state: Option<u32>,
        new: u32,
    },
}

/// The options of one rule, and how an unknown one is told.
struct Section<'a> {
    name: &'a str,
    options: BTreeMap<String, String>,
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Options,
    File,
}

impl Injection {
    /// Takes the rules out of the options that begin with `prefix`, and the file that they name.
    pub fn take(keys: &mut BTreeMap<String, String>, prefix: &str) -> Result<Self, Reason> {
        let mut all = match keys.remove(&format!("{prefix}config")) {
            Some(path) => Injection::of_file(&path)?,
            None => Injection::default(),
        };
        for name in SECTIONS {
            let start = format!("{prefix}{name}.");
            let names: Vec<String> =
                keys.keys().filter(|key| key.starts_with(&start)).cloned().collect();
            let mut rules: BTreeMap<usize, BTreeMap<String, String>> = BTreeMap::new();
            for key in names {
                let value = keys.remove(&key).unwrap_or_default();
                let rest = key.get(start.len()..).unwrap_or_default();
                let numbered = rest.split_once('.');
                let numbered = numbered.and_then(|(at, name)| Some((at.parse().ok()?, name)));
                let (at, option): (usize, &str) = numbered.unwrap_or((0, rest));
                rules.entry(at).or_default().insert(option.to_owned(), value);
            }
            for (place, (at, options)) in rules.into_iter().enumerate() {
                if place != at {
                    let first = options.keys().next().cloned().unwrap_or_default();
                    let text = format!("Unused option '{at}.{first}' for [{name}]");
                    return Err(Reason::Words(text));
                }
                all.rules.push(Section { name, options, source: Source::Options }.rule()?);
            }
        }
        Ok(all)
    }

    /// The rules of a configuration file; none without one.
    pub fn of_file(path: &str) -> Result<Self, Reason> {
        if path.is_empty() {
            return Ok(Injection::default());
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            Reason::Words(format!("Could not read blkdebug config file: {}", reason(&error)))
        })?;
        let rules = sections(&text)?.into_iter().map(|section| section.rule());
        Ok(Injection { rules: rules.collect::<Result<_, _>>()? })
    }

    /// These rules and those of another.
    #[must_use]
    pub fn and(mut self, other: Injection) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// The rules, ready to strike.
    pub fn faults(&self) -> Arc<Faults> {
        let faults = Faults::new();
        for rule in self.rules.iter().filter_map(Wanted::rule) {
            faults.add(rule);
        }
        faults
    }
}

impl Wanted {
    fn rule(&self) -> Option<Rule> {
        let in_state = |rule: Rule, state: Option<u32>| match state {
            Some(state) => rule.in_state(state),
            None => rule,
        };
        match self {
            Wanted::SetState { event, state, new } => {
                Some(in_state(Rule::set_state(*event, *new), *state))
            }
            // An error that is none.
            Wanted::Error { errno: 0, .. } => None,
            Wanted::Error { event, state, errno, sector, ops, once } => {
                let rule = Rule::new(*ops, Effect::Error(*errno)).after_point(*event);
                let rule = in_state(if *once { rule } else { rule.always() }, *state);
                let start = sector.and_then(|sector| sector.checked_mul(SECTOR));
                Some(match start {
                    Some(start) => rule.within(start..start.saturating_add(SECTOR)),
                    None => rule,
                })
            }
        }
    }
}

impl Section<'_> {
    fn rule(mut self) -> Result<Wanted, Reason> {
        let rule = if self.name == "set-state" { self.set_state() } else { self.inject_error() };
        let rule = rule?;
        match (self.options.into_keys().next(), self.source) {
            (None, _) => Ok(rule),
            (Some(option), Source::File) => {
                Err(Reason::Words(format!("Invalid parameter '{option}'")))
            }
            (Some(option), Source::Options) => {
                let text = format!("[{}] section doesn't support the option '{option}'", self.name);
                Err(Reason::Words(text))
            }
        }
    }

    fn set_state(&mut self) -> Result<Wanted, Reason> {
        let (state, new) = (self.state("state")?, self.state("new_state")?.unwrap_or(0));
        Ok(Wanted::SetState { event: self.event()?, state, new })
    }

    fn inject_error(&mut self) -> Result<Wanted, Reason> {
        let errno = self.number("errno")?.unwrap_or(i64::from(libc::EIO));
        let sector = self.number("sector")?.and_then(|sector| u64::try_from(sector).ok());
        let once = self.switch("once")?;
        // An error comes when its operation would begin, whether it waits for that or not.
        self.switch("immediately")?;
        let state = self.state("state")?;
        let event = self.event()?;
        let ops = match self.options.remove("iotype").as_deref() {
            None => Ops::READ | Ops::WRITES | Ops::ZEROES | Ops::DISCARD | Ops::FLUSH,
            Some("read") => Ops::READ,
            Some("write") => Ops::WRITES,
            Some("write-zeroes") => Ops::ZEROES,
            Some("discard") => Ops::DISCARD,
            Some("flush") => Ops::FLUSH,
            // What is allocated is asked of the file system, and of no operation.
            Some("block-status") => Ops::empty(),
            Some(other) => return Err(unknown(other)),
        };
        let errno = i32::try_from(errno).unwrap_or(libc::EIO);
        Ok(Wanted::Error { event, state, errno, sector, ops, once })
    }

    fn event(&mut self) -> Result<Event, Reason> {
        let name = self.options.remove("event");
        let name = name.ok_or_else(|| Reason::words("Missing event name for rule"))?;
        Event::named(&name).ok_or_else(|| unknown(&name))
    }

    fn state(&mut self, name: &str) -> Result<Option<u32>, Reason> {
        let number = self.number(name)?.and_then(|number| u32::try_from(number).ok());
        // Every state.
        Ok(number.filter(|number| *number != 0 || name == "new_state"))
    }

    fn number(&mut self, name: &str) -> Result<Option<i64>, Reason> {
        let Some(word) = self.options.remove(name) else { return Ok(None) };
        let number = word.parse().map(Some);
        number.map_err(|_| Reason::Words(format!("Parameter '{name}' expects a number")))
    }

    fn switch(&mut self, name: &str) -> Result<bool, Reason> {
        match self.options.remove(name).as_deref() {
            None | Some("no" | "n" | "false") => Ok(false),
            Some("yes" | "y" | "true") => Ok(true),
            Some(word) => switch(name, word),
        }
    }
}

fn unknown(word: &str) -> Reason {
    Reason::Words(format!("invalid parameter value: {word}"))
}

/// The sections of a configuration file: `[name]`, then lines of `name = "value"`.
fn sections(text: &str) -> Result<Vec<Section<'static>>, Reason> {
    let mut found: Vec<Section<'static>> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        if let Some(head) = line.strip_prefix('[') {
            let word = head.trim_end_matches(']').split_whitespace().next().unwrap_or_default();
            let name = SECTIONS.into_iter().find(|name| *name == word);
            let name =
                name.ok_or_else(|| Reason::Words(format!("There is no option group '{word}'")))?;
            found.push(Section { name, options: BTreeMap::new(), source: Source::File });
            continue;
        }
        let Some(section) = found.last_mut() else {
            return Err(Reason::words("no group defined"));
        };
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let quoted = value.trim().strip_prefix('"').and_then(|value| value.split('"').next());
        section.options.insert(name.trim().to_owned(), quoted.unwrap_or_default().to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Injection, Reason> {
        let keys = text.split(',').filter_map(|option| option.split_once('='));
        let mut keys = keys.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Injection::take(&mut keys, "file.")
    }

    #[test]
    fn rules_are_read_from_options_and_from_sections() {
        let of_options = options(
            "file.inject-error.0.event=l2_load,file.inject-error.0.errno=28,file.inject-error.0.once=on,\
             file.inject-error.0.sector=4,file.inject-error.0.iotype=read,file.set-state.event=read_aio,\
             file.set-state.state=1,file.set-state.new_state=2",
        );
        let text = "# a comment\n[inject-error]\n event = \"l2_load\"\nerrno = \"28\"\nonce = \"yes\"\n\
                    sector = \"4\"\niotype = \"read\"\n\n[set-state]\nevent = \"read_aio\"\nstate = \"1\"\n\
                    new_state = \"2\"\n";
        let of_text = sections(text).unwrap().into_iter().map(|section| section.rule().unwrap());
        let expected = vec![
            Wanted::Error {
                event: Event::L2Load,
                state: None,
                errno: 28,
                sector: Some(4),
                ops: Ops::READ,
                once: true,
            },
            Wanted::SetState { event: Event::ReadAio, state: Some(1), new: 2 },
        ];
        assert_eq!(of_options.unwrap().rules, expected);
        assert_eq!(of_text.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("file.inject-error.0.errno=1", "Missing event name for rule"),
            ("file.inject-error.0.event=foo", "invalid parameter value: foo"),
            ("file.inject-error.0.errno=x", "Parameter 'errno' expects a number"),
            ("file.inject-error.1.event=none", "Unused option '1.event' for [inject-error]"),
            (
                "file.inject-error.0.event=none,file.inject-error.0.foo=1",
                "[inject-error] section doesn't support the option 'foo'",
            ),
        ] {
            assert_eq!(options(text).unwrap_err(), Reason::words(message), "{text}");
        }
        for (text, message) in
            [("[foo]", "There is no option group 'foo'"), ("event = \"none\"", "no group defined")]
        {
            assert_eq!(sections(text).err().unwrap(), Reason::words(message), "{text}");
        }
    }
}
