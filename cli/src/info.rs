//! `blkring info`: what is known of an image without its tables. Opens one file, never the ones that it names.

use std::fmt::Write;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use blkring_engine::{Claim, Permissions};
use blkring_qcow2::{Access, Compatible, Compression, Header, Incompatible, Version};
use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::image_name::ImageName;
use crate::number::short;
use crate::options::{Format, Output, Share, output};
use crate::reason::Reason;
use crate::source::Source;
use crate::{json, probe};

/// Lengths are told in whole sectors, and file systems count what a file takes in units of so many bytes.
const SECTOR: u64 = 512;

/// Print what is known of an image, as qemu-img info does.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// How it is printed: human or json.
    #[arg(long, value_name = "OUTPUT", default_value = "human", value_parser = output)]
    output: Output,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let image = options.source.name()?;
    let info =
        Info::of(&image, options.source.share()).map_err(|reason| Failure::open(&image, reason))?;
    match options.output {
        Output::Json => json::print(&info),
        Output::Human => print!("{}", info.human()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What is known.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    children: Vec<Child>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backing_filename_format: Option<String>,
    virtual_size: u64,
    filename: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_size: Option<u64>,
    format: &'static str,
    actual_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    format_specific: Option<Specific<Qcow2Info>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_backing_filename: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backing_filename: Option<String>,
    dirty_flag: bool,
}

/// The file that the image is in.
#[derive(Serialize)]
struct Child {
    name: &'static str,
    info: FileInfo,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct FileInfo {
    children: [(); 0],
    virtual_size: u64,
    filename: String,
    format: &'static str,
    actual_size: u64,
    format_specific: Specific<Nothing>,
    dirty_flag: bool,
}

#[derive(Serialize)]
struct Specific<T> {
    r#type: &'static str,
    data: T,
}

/// What only a file has.
#[derive(Serialize)]
struct Nothing {}

/// What only a qcow2 image has.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Qcow2Info {
    compat: &'static str,
    compression_type: &'static str,
    lazy_refcounts: bool,
    refcount_bits: u32,
    corrupt: bool,
    extended_l2: bool,
}

impl Qcow2Info {
    /// What the header says.
    pub fn of(header: &Header) -> Self {
        Qcow2Info {
            compat: match header.version() {
                Version::V2 => "0.10",
                Version::V3 => "1.1",
            },
            compression_type: match header.compression() {
                Compression::Zlib => "zlib",
                Compression::Zstd => "zstd",
            },
            lazy_refcounts: header.compatible().contains(Compatible::LAZY_REFCOUNTS),
            refcount_bits: header.refcount_bits(),
            corrupt: header.incompatible().contains(Incompatible::CORRUPT),
            extended_l2: header.incompatible().contains(Incompatible::EXTENDED_L2),
        }
    }

    /// The same for people.
    pub fn human(&self) -> String {
        format!(
            "Format specific information:\n    compat: {}\n    compression type: {}\n    \
             lazy refcounts: {}\n    refcount bits: {}\n    corrupt: {}\n    extended l2: {}\n",
            self.compat,
            self.compression_type,
            self.lazy_refcounts,
            self.refcount_bits,
            self.corrupt,
            self.extended_l2
        )
    }
}

impl Info {
    fn of(image: &ImageName, share: Share) -> Result<Info, Reason> {
        let path = image.path();
        let format = image.format().map_or_else(|| probe::format(path), Ok)?;
        // A raw image is looked at from outside only. Of others the header is read, which nobody is to change then.
        let nothing = Claim { uses: Permissions::empty(), denies: Permissions::empty() };
        let claim = match (format, image.share(share)) {
            (Format::Qcow2, Share::Locked) => Claim {
                uses: Permissions::empty(),
                ..Claim::exclusive(blkring_engine::Access::ReadOnly)
            },
            (Format::Raw, _) | (_, Share::Forced) => nothing,
        };
        let file = probe::locked(path, image.locking(), claim)?;
        let metadata = file.metadata().map_err(|error| Reason::system(path, &error))?;
        Ok(match format {
            Format::Raw => Info::raw(path, &metadata),
            Format::Qcow2 => {
                Info::qcow2(path, &metadata, &probe::header_of(&file, path, Access::Read)?)
            }
        })
    }

    fn raw(path: &Path, metadata: &Metadata) -> Self {
        let filename = path.display().to_string();
        let actual_size = metadata.blocks() * SECTOR;
        let virtual_size = metadata.len().next_multiple_of(SECTOR);
        let file = FileInfo {
            children: [],
            virtual_size,
            filename: filename.clone(),
            format: "file",
            actual_size,
            format_specific: Specific { r#type: "file", data: Nothing {} },
            dirty_flag: false,
        };
        Info {
            children: vec![Child { name: "file", info: file }],
            backing_filename_format: None,
            virtual_size,
            filename,
            cluster_size: None,
            format: Format::Raw.name(),
            actual_size,
            format_specific: None,
            full_backing_filename: None,
            backing_filename: None,
            dirty_flag: false,
        }
    }

    fn qcow2(path: &Path, metadata: &Metadata, header: &Header) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let backing = header.backing_name().map(text);
        let full = backing.as_ref().map(|name| {
            let directory = path.parent().unwrap_or(Path::new(""));
            directory.join(name).display().to_string()
        });
        Info {
            virtual_size: header.geometry().virtual_size(),
            cluster_size: Some(header.geometry().cluster_size()),
            format: Format::Qcow2.name(),
            format_specific: Some(Specific {
                r#type: Format::Qcow2.name(),
                data: Qcow2Info::of(header),
            }),
            backing_filename_format: header.backing_format().map(text),
            full_backing_filename: full,
            backing_filename: backing,
            dirty_flag: header.incompatible().contains(Incompatible::DIRTY),
            ..Info::raw(path, metadata)
        }
    }

    fn human(&self) -> String {
        let mut lines = format!(
            "image: {}\nfile format: {}\nvirtual size: {} ({} bytes)\ndisk size: {}\n",
            self.filename,
            self.format,
            short(self.virtual_size),
            self.virtual_size,
            short(self.actual_size)
        );
        let mut add = |line: std::fmt::Arguments<'_>| {
            writeln!(lines, "{line}").expect("a string takes everything");
        };
        if let Some(size) = self.cluster_size {
            add(format_args!("cluster_size: {size}"));
        }
        match (&self.backing_filename, &self.full_backing_filename) {
            (Some(name), Some(full)) if name != full => {
                add(format_args!("backing file: {name} (actual path: {full})"));
            }
            (Some(name), _) => add(format_args!("backing file: {name}")),
            (None, _) => (),
        }
        if let Some(format) = &self.backing_filename_format {
            add(format_args!("backing file format: {format}"));
        }
        if let Some(specific) = &self.format_specific {
            lines.push_str(&specific.data.human());
        }
        for Child { name, info } in &self.children {
            let (name, size) = (format!("Child node '/{name}'"), info.virtual_size);
            write!(
                lines,
                "{name}:\n    filename: {}\n    protocol type: {}\n    file length: {} ({size} bytes)\n    \
                 disk size: {}\n",
                info.filename,
                info.format,
                short(size),
                short(info.actual_size)
            )
            .expect("a string takes everything");
        }
        lines
    }
}
