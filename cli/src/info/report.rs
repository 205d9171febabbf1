//! What is known of one file of a chain.

use std::fmt::Write;
use std::os::unix::fs::MetadataExt;

use blkring_qcow2::{Header, Incompatible, Snapshot};
use serde::Serialize;

use super::qcow2::Qcow2Info;
use crate::bytes;
use crate::chain::Member;
use crate::number::short;
use crate::options::Format;
use crate::reason::Reason;
use crate::snapshots::{self, SnapshotInfo};

/// Lengths are told in whole sectors, and file systems count what a file takes in units of so many bytes.
const SECTOR: u64 = 512;

/// What is known.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Info {
    children: Vec<Child>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backing_filename_format: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshots: Option<Vec<SnapshotInfo>>,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    encrypted: bool,
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

/// The snapshots of an image.
fn snapshots(member: &Member, header: &Header) -> Result<Vec<SnapshotInfo>, Reason> {
    let list = Snapshot::list(member, header).map_err(|error| Reason::Words(error.to_string()))?;
    Ok(list.iter().map(SnapshotInfo::of).collect())
}

impl Info {
    /// What the file says. Its snapshots are read from it.
    pub fn of(member: &Member) -> Result<Info, Reason> {
        let snapshots = match &member.header {
            Some(header) if header.snapshots() > 0 => Some(snapshots(member, header)?),
            _ => None,
        };
        let text = bytes::text;
        let header = member.header.as_ref();
        let specific = header.map(|header| {
            let data = Qcow2Info::of(member, header)?;
            Ok(Specific { r#type: Format::Qcow2.name(), data })
        });
        let specific = specific.transpose()?;
        let below = member.below();
        let filename = bytes::of_path(&member.path);
        let actual_size = member.metadata.blocks() * SECTOR;
        let file = FileInfo {
            children: [],
            virtual_size: member.length.next_multiple_of(SECTOR),
            filename: filename.clone(),
            format: member.protocol(),
            actual_size,
            format_specific: Specific { r#type: "file", data: Nothing {} },
            dirty_flag: false,
        };
        Ok(Info {
            children: vec![Child { name: "file", info: file }],
            backing_filename_format: header.and_then(Header::backing_format).map(text),
            snapshots,
            virtual_size: member.virtual_size(),
            filename,
            cluster_size: header.map(|header| header.geometry().cluster_size()),
            format: member.format().name(),
            actual_size,
            format_specific: specific,
            encrypted: header.is_some_and(|header| header.encryption() != 0),
            full_backing_filename: below.map(|below| bytes::of_path(&below.path)),
            backing_filename: header.and_then(Header::backing_name).map(text),
            dirty_flag: header
                .is_some_and(|header| header.incompatible().contains(Incompatible::DIRTY)),
        })
    }

    /// The same for people.
    pub fn human(&self) -> String {
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
        if self.encrypted {
            add(format_args!("encrypted: yes"));
        }
        if let Some(size) = self.cluster_size {
            add(format_args!("cluster_size: {size}"));
        }
        if self.dirty_flag {
            add(format_args!("cleanly shut down: no"));
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
        if let Some(snapshots) = &self.snapshots {
            write!(lines, "Snapshot list:\n{}", snapshots::table(snapshots))
                .expect("a string takes everything");
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
