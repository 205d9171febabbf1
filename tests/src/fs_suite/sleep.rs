//! Sleeping until a queue has something to do, as an event loop does.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Waits until a descriptor is readable, `patience` at most, and says whether it is. A signal ends the wait early, as if
/// there were something to do.
///
/// # Errors
/// Of poll(2).
pub fn until_readable(fd: RawFd, patience: Duration) -> io::Result<bool> {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the call writes to the one structure on the stack that it is told of, and nothing else. A descriptor that
    // is not open is an answer. Test: `a_sleep_ends`.
    let readable = unsafe { libc::poll(&raw mut one, 1, milliseconds) };
    match readable {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_sleep_ends() {
        let (reader, writer) = std::io::pipe().unwrap();
        let sleep = || until_readable(reader.as_raw_fd(), Duration::from_millis(1)).unwrap();
        assert!(!sleep());
        std::io::Write::write_all(&mut &writer, b"x").unwrap();
        assert!(sleep());
    }
}
