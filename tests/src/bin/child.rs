//! What tests run in a process of its own: `child count IMAGE`.

use std::io;
use std::path::Path;

use blkring_tests::counted;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", image] => print!("{}", counted::table(Path::new(image))?),
        _ => return Err(io::Error::other(format!("what is {args:?}?"))),
    }
    Ok(())
}
