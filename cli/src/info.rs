//! `blkring info`: what is known of an image without its tables. Opens one file, never the ones that it names, unless
//! the whole chain is asked for.

mod encryption;
mod outline;
mod qcow2;
mod report;

use std::collections::HashSet;
use std::process::ExitCode;

use clap::Args;

use crate::bytes;
use crate::chain::{Below, Member};
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::json;
use crate::options::{Format, Output, Share, output};
use crate::reason::Reason;
use crate::source::Source;

pub use qcow2::Qcow2Info;
use report::Info;

/// Print what is known of an image, as qemu-img info does.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// The same for every file below it.
    #[arg(short, long)]
    backing_chain: bool,
    /// How it is printed: human or json.
    #[arg(long, value_name = "OUTPUT", default_value = "human", value_parser = output)]
    output: Output,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let image = options.source.name()?;
    if let Some((depth, _)) = image.wishes().below.first_key_value() {
        // No other file is opened.
        let format = image.format().unwrap_or(Format::Raw).name();
        let option = format!("{}driver", "backing.".repeat(*depth));
        let text = format!("Block format '{format}' does not support the option '{option}'");
        return Err(Failure::open(&image, Reason::words(text)));
    }
    let share = options.source.share();
    let first = look(&image, share)?;
    let members = if options.backing_chain { chain(first, share)? } else { vec![first] };
    let mut all = Vec::new();
    for member in &members {
        let info = Info::of(member).map_err(|reason| Failure::open(&image, reason))?;
        all.push(info);
    }
    match (options.output, all.as_slice()) {
        (Output::Json, [info]) if !options.backing_chain => json::print(info),
        (Output::Json, all) => json::print(&all),
        (Output::Human, all) => {
            let texts: Vec<String> = all.iter().map(Info::human).collect();
            print!("{}", texts.join("\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn look(image: &ImageName, share: Share) -> Result<Member, Failure> {
    Member::open(image, share).map_err(|reason| Failure::open(image, reason))
}

/// All files from `first` down. Each is looked at by itself, so one without a format is probed.
fn chain(first: Member, share: Share) -> Result<Vec<Member>, Failure> {
    let mut seen = HashSet::from([first.path.clone()]);
    let mut below = first.below();
    let mut members = vec![first];
    while let Some(Below { path, format }) = below {
        if !seen.insert(path.clone()) {
            let text =
                format!("Backing file '{}' creates an infinite loop.", bytes::of_path(&path));
            return Err(Failure::Usage(text));
        }
        let name =
            ImageName::parse(&bytes::word(path.as_os_str()), Syntax::FileName, format.as_deref())?;
        let member = look(&name, share)?;
        below = member.below();
        members.push(member);
    }
    Ok(members)
}
