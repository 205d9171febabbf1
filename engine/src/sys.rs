//! The few system calls that have no safe wrapper.

pub(crate) mod device;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A counter in the kernel that can be polled: wakes a queue that sleeps.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers. Test: `an_event_is_seen_once`.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it. Test: as above, which would close
        // it twice.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes on the stack. A full counter (EAGAIN) is a signal as well. Test:
        // `an_event_is_seen_once`.
        unsafe {
            libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8);
        }
    }

    /// Takes what was signalled since the last call.
    pub(crate) fn take(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: eight writable bytes on the stack; an error leaves them zero. Test: `an_event_is_seen_once`.
        unsafe {
            libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8);
        }
        count
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Takes O_NONBLOCK off an open file: a ring would answer EAGAIN where the file system cannot tell beforehand whether
/// it has to wait.
pub(crate) fn set_blocking(file: &File) -> io::Result<()> {
    // SAFETY: F_GETFL takes no argument. Test: `a_pipe_is_refused_at_once` has a regular file beside it.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: F_SETFL takes a number. Test: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Several descriptors as one that can be polled.
pub(crate) struct Epoll(OwnedFd);

/// When a descriptor of an [`Epoll`] counts as readable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// While it is.
    Level,
    /// Each time it becomes so, until the next [`Epoll::clear`].
    Edge,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers. Test: `every_wake_up_makes_the_event_descriptor_readable`.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it. Test: as above.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn add(&self, fd: RawFd, trigger: Trigger) -> io::Result<()> {
        let edge = if trigger == Trigger::Edge { libc::EPOLLET } else { 0 };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | edge) as u32, u64: 0 };
        // SAFETY: one event on the stack; both descriptors are open. Test:
        // `every_wake_up_makes_the_event_descriptor_readable`.
        let error =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if error < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes note of the edges so far.
    pub(crate) fn clear(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: sixteen writable events on the stack. What does not fit is reported by the next call. Test:
        // `every_wake_up_makes_the_event_descriptor_readable`.
        unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 16, 0);
        }
    }
}

impl Epoll {
    /// Waits for an edge or level, for so long at most, and takes note of the edges so far. A signal handler may end
    /// it early.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        // Rounded up, so that who waits for a time does not come back before it.
        let whole = |limit: Duration| i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX);
        let milliseconds = limit.map_or(-1, whole);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: sixteen writable events on the stack. Test: `a_queue_on_the_pool_sleeps_and_wakes`.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 16, milliseconds) };
        match count {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The signals that a thread raises by what it does itself.
const OWN_SIGNALS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts threads, by `start`, that no handler of the process ever interrupts: they inherit what is blocked now.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain data, for which all zeros is a value, and all pointers are to the stack. An error
    // would leave the signals as they are. Test: `threads_of_the_pool_take_no_signals`.
    unsafe {
        let mut former: libc::sigset_t = std::mem::zeroed();
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut blocked);
        for signal in OWN_SIGNALS {
            libc::sigdelset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut former);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, std::ptr::null_mut());
        started
    }
}

/// Waits until `fd` is readable or `milliseconds` are over.
pub(crate) fn wait_readable(fd: RawFd, milliseconds: i32) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd on the stack. Test: `a_dropped_service_waits_for_the_kernel`.
    unsafe {
        libc::poll(&raw mut poll, 1, milliseconds);
    }
}

/// Which bytes of a file hold data: see lseek(2).
#[derive(Clone, Copy)]
pub(crate) enum Seek {
    Data,
    Hole,
}

/// The next data or hole at or after `offset`; `None` if there is none (ENXIO).
pub(crate) fn seek(file: &File, what: Seek, offset: u64) -> io::Result<Option<u64>> {
    let whence = match what {
        Seek::Data => libc::SEEK_DATA,
        Seek::Hole => libc::SEEK_HOLE,
    };
    let Ok(offset) = i64::try_from(offset) else { return Ok(None) };
    // SAFETY: lseek takes no pointers; nothing else uses the file position. Test: `holes_of_a_sparse_file_are_told`.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    match u64::try_from(at) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Direct-I/O alignment as the kernel tells it (Linux 6.1): memory and offset, in bytes; `None` if it does not.
pub(crate) fn direct_io_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: statx is plain data, for which all zeros is a value. Test: `a_write_is_read_back_from_a_file`.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor; the buffer is writable and large enough.
    // Test: `a_write_is_read_back_from_a_file`, whose direct writes need the right answer.
    let error = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut stat,
        )
    };
    let told =
        error == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0 && stat.stx_dio_offset_align != 0;
    told.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// What is done to a byte of a lock: held together with others, or given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// F_RDLCK.
    Shared,
    /// F_WRLCK, which nobody who follows the rules takes.
    #[cfg(test)]
    Alone,
    /// F_UNLCK.
    No,
}

fn byte_range(kind: i32, bytes: Range<u32>) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start.into(),
        l_len: (bytes.end - bytes.start).into(),
        // The kernel wants zero here for locks of descriptions.
        l_pid: 0,
    }
}

/// Holds bytes of `file`, or gives them up, for its open file description: what others open, also in this process,
/// is another. Does not wait.
pub(crate) fn hold(file: &File, bytes: Range<u32>, hold: Hold) -> io::Result<()> {
    let kind = match hold {
        Hold::Shared => libc::F_RDLCK,
        #[cfg(test)]
        Hold::Alone => libc::F_WRLCK,
        Hold::No => libc::F_UNLCK,
    };
    let range = byte_range(kind, bytes);
    loop {
        // SAFETY: one flock on the stack, which the kernel reads. Test: `what_conflicts_is_refused_by_name`.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
            0 => return Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Whether another open file description, or a process, holds a byte of `file` in any way.
pub(crate) fn is_held_by_another(file: &File, byte: u32) -> io::Result<bool> {
    let mut range = byte_range(libc::F_WRLCK, byte..byte + 1);
    // SAFETY: one writable flock on the stack. Test: `what_conflicts_is_refused_by_name`.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } {
        0 => Ok(i32::from(range.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The result of a blocking `ftruncate`, for kernels whose rings cannot do it (before Linux 6.9).
pub(crate) fn truncate(file: &File, size: u64) -> i32 {
    match file.set_len(size) {
        Ok(()) => 0,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_seen_once() {
        let event = EventFd::new().unwrap();
        event.signal();
        event.signal();
        assert_eq!(event.take(), 2);
        assert_eq!(event.take(), 0);
    }
}
