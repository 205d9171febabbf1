//! What tests run in a process of its own: `child count IMAGE`, `child hostile IMAGE` and `child abandon FILE`.

use std::io;
use std::path::Path;

use blkring_tests::{abandoned, counted, hostile};

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", image] => print!("{}", counted::table(Path::new(image))?),
        ["hostile", image] => {
            let (tried, kib) = hostile::measured(Path::new(image))?;
            let opened = tried.opened.map_or_else(|error| error.to_string(), |()| "opened".into());
            println!("{kib} KiB\n{opened}\n{:?}", tried.failed);
        }
        ["abandon", file] => println!("{}", abandoned::left_of(Path::new(file))),
        _ => return Err(io::Error::other(format!("what is {args:?}?"))),
    }
    Ok(())
}
