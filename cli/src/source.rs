//! The options of a command that works on one image.

use std::ffi::OsString;

use clap::Args;

use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::options::{Format, Share, format};

/// Which image, and how it is named.
#[derive(Args)]
pub struct Source {
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// FILE is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// Open it whatever locks others hold.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The image.
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

impl Source {
    /// The one image.
    ///
    /// # Errors
    /// If there is none, or another word too many, or no image can be named so.
    pub fn name(&self) -> Result<ImageName, Failure> {
        match self.files.as_slice() {
            [file] => ImageName::parse(file, Syntax::of(self.image_opts), self.format.as_deref()),
            _ => Err(Failure::Misuse("Expecting one image file name".to_owned())),
        }
    }

    /// Whether no image was named.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The format that was given.
    ///
    /// # Errors
    /// If it is none of this program.
    pub fn format(&self) -> Result<Option<Format>, Failure> {
        self.format.as_deref().map(format).transpose().map_err(Failure::Usage)
    }

    /// Whether locks of others count.
    pub fn share(&self) -> Share {
        Share::of(self.force_share)
    }
}
