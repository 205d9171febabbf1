//! One io_uring of the kernel: set up, filled, entered, reaped.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::device::Kind;
use crate::faults::EnterFaults;
use crate::lane::{Lane, Sent};
use crate::memory::IoMem;
use crate::op::{Op, Verb};
use crate::sys;

/// Keys from here up are not of ops: wake-ups and polled services of a queue.
pub(crate) const RESERVED_KEYS: u64 = 1 << 62;

/// What the end of a watch completes with: nobody waits for it.
const UNWATCHED: u64 = u64::MAX;

/// The longest transfer of one read or write call (`MAX_RW_COUNT` of the kernel, rounded to 4 KiB).
pub(crate) const MAX_TRANSFER: usize = 0x7fff_f000;

/// The most segments of one vectored call (`IOV_MAX`).
pub(crate) const MAX_SEGMENTS: usize = 1024;

/// The most slots of a ring (`IORING_MAX_ENTRIES` of the kernel).
pub const MAX_DEPTH: u32 = 32768;

/// A ring and what its kernel can do.
pub(crate) struct Uring {
    ring: IoUring,
    /// What calls that submit or wait are to meet, for tests.
    faults: Option<Arc<EnterFaults>>,
    truncates: bool,
    commands: bool,
    setup: &'static str,
}

/// Set-up flags that are asked for together, with their names.
type FlagSet = (&'static str, fn(&mut io_uring::Builder));

/// None of them, for kernels before Linux 5.18.
const BARE: FlagSet = ("", |_| ());

/// Who will enter a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Issuer {
    /// One thread, later: the ring starts disabled.
    One,
    /// Any thread that holds the lock around it.
    Many,
}

/// A completion.
#[derive(Clone, Copy)]
pub(crate) struct Completed {
    pub(crate) key: u64,
    pub(crate) result: i32,
    pub(crate) more: bool,
}

/// Why there is no io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// `kernel.io_uring_disabled` is 1 or 2.
    Sysctl,
    /// A seccomp filter or another security module refuses the call.
    Seccomp,
    /// The kernel has no io_uring, or an older one than needed.
    Kernel,
    /// `RLIMIT_MEMLOCK` is too low.
    Memlock,
    /// A ring of so many slots was asked for, and there is none: [`MAX_DEPTH`] at most, and not 0.
    Depth(u32),
    /// Anything else, by its error number.
    Other(i32),
}

/// There is no ring: one line that says what is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("io_uring is not available: {}", .obstacle)]
#[non_exhaustive]
pub struct RingUnavailable {
    /// What is in the way.
    pub obstacle: Obstacle,
}

impl From<io::Error> for RingUnavailable {
    fn from(error: io::Error) -> Self {
        RingUnavailable { obstacle: Obstacle::now(&error) }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Sysctl => f.write_str("the sysctl kernel.io_uring_disabled forbids it"),
            Obstacle::Seccomp => {
                f.write_str("a seccomp filter or security module refuses io_uring_setup")
            }
            Obstacle::Kernel => f.write_str("this kernel lacks it or is older than 5.15"),
            Obstacle::Memlock => {
                f.write_str("the limit on locked memory (ulimit -l, RLIMIT_MEMLOCK) is too low")
            }
            Obstacle::Depth(depth) => {
                write!(f, "a ring has 1 to {MAX_DEPTH} slots, and {depth} were asked for")
            }
            Obstacle::Other(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

impl Obstacle {
    /// Reads the obstacle from the error number of `io_uring_setup` and, for EPERM, from the sysctl.
    pub(crate) fn of(errno: i32, sysctl: Option<&str>) -> Self {
        let disabled = matches!(sysctl.map(str::trim), Some("1" | "2"));
        match errno {
            libc::EPERM if disabled => Obstacle::Sysctl,
            libc::EPERM | libc::EACCES => Obstacle::Seccomp,
            libc::ENOSYS | libc::EINVAL => Obstacle::Kernel,
            libc::ENOMEM => Obstacle::Memlock,
            other => Obstacle::Other(other),
        }
    }

    fn now(error: &io::Error) -> Self {
        let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Obstacle::of(error.raw_os_error().unwrap_or(libc::EIO), sysctl.as_deref())
    }
}

impl Uring {
    /// Sets a ring up with the best flags that the kernel takes. Each set is asked for whole: a kernel that knows the
    /// flags of one set never sees a mixture.
    pub(crate) fn new(entries: u32, issuer: Issuer) -> Result<Self, RingUnavailable> {
        if !(1..=MAX_DEPTH).contains(&entries) {
            return Err(RingUnavailable { obstacle: Obstacle::Depth(entries) });
        }
        let sets: &[FlagSet] = match issuer {
            Issuer::One => &[
                ("SINGLE_ISSUER DEFER_TASKRUN TASKRUN_FLAG SUBMIT_ALL", |b| {
                    b.setup_single_issuer()
                        .setup_defer_taskrun()
                        .setup_taskrun_flag()
                        .setup_submit_all();
                }),
                ("SINGLE_ISSUER COOP_TASKRUN TASKRUN_FLAG SUBMIT_ALL", |b| {
                    b.setup_single_issuer()
                        .setup_coop_taskrun()
                        .setup_taskrun_flag()
                        .setup_submit_all();
                }),
                ("COOP_TASKRUN TASKRUN_FLAG SUBMIT_ALL", |b| {
                    b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
                }),
                BARE,
            ],
            // Completions of a shared ring must come in although its last submitter never enters the kernel again,
            // so task work may not be deferred.
            Issuer::Many => &[
                ("SUBMIT_ALL", |b| {
                    b.setup_submit_all();
                }),
                BARE,
            ],
        };
        let mut last = None;
        for (setup, apply) in sets {
            let mut builder = IoUring::builder();
            apply(&mut builder);
            if issuer == Issuer::One {
                builder.setup_r_disabled();
            }
            match builder.build(entries) {
                Ok(ring) => return Self::probed(ring, setup),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        let error = last.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        Err(error.into())
    }

    fn probed(ring: IoUring, setup: &'static str) -> Result<Self, RingUnavailable> {
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Writev::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
        ];
        if needed.iter().any(|&code| !probe.is_supported(code)) {
            return Err(RingUnavailable { obstacle: Obstacle::Kernel });
        }
        let truncates = probe.is_supported(opcode::Ftruncate::CODE);
        let commands = probe.is_supported(opcode::UringCmd16::CODE);
        Ok(Uring { truncates, commands, ring, setup, faults: None })
    }

    /// The flags of the ring, by the kernel's names without their prefix.
    pub(crate) fn setup(&self) -> &'static str {
        self.setup
    }

    /// Makes the calling thread the issuer of a ring that was set up disabled.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Signals `event` at each completion.
    pub(crate) fn signal_to(&self, event: RawFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(event)
    }

    /// Moves the unsent ops of `lane` into the submission queue, entering the kernel whenever it is full.
    pub(crate) fn fill(&mut self, lane: &Lane) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            filled += lane.send(|key, op, iovecs| self.push(key, op, iovecs));
            if !self.ring.submission().is_full() {
                return Ok(filled);
            }
            self.enter(0)?;
            // The kernel takes nothing for the moment, and may want completions to be reaped first.
            if self.ring.submission().is_full() {
                return Ok(filled);
            }
        }
    }

    /// Has calls that submit or wait fail.
    pub(crate) fn set_faults(&mut self, faults: &Arc<EnterFaults>) {
        self.faults = Some(faults.clone());
    }

    fn push(&mut self, key: u64, op: &Op, iovecs: &mut Vec<libc::iovec>) -> Sent {
        let Kind::File(file) = &op.device.kind else {
            unreachable!("only ops of files go to a ring")
        };
        let fd = types::Fd(file.as_raw_fd());
        let entry = match op.verb {
            Verb::Read | Verb::Write | Verb::WriteDurable => transfer(fd, op, iovecs),
            Verb::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Verb::Allocate(mode) => {
                opcode::Fallocate::new(fd, op.len).offset(op.offset).mode(mode.mode()).build()
            }
            Verb::Truncate if self.truncates => opcode::Ftruncate::new(fd, op.offset).build(),
            // Rare (resize, close) and short, so that a blocking call is bearable where the ring has none.
            Verb::Truncate => return Sent::Done(sys::truncate(file, op.offset)),
            Verb::Discard if self.commands => discard(fd, op),
            Verb::Discard => return Sent::Done(-libc::EOPNOTSUPP),
            Verb::Call(change) => {
                return blocking(|| {
                    sys::device::change(file.as_raw_fd(), change, op.offset, op.len)
                });
            }
        };
        self.push_entry(entry.user_data(key))
    }

    /// Watches a descriptor until it is closed; a completion with `key` for each time it becomes readable.
    pub(crate) fn watch(&mut self, fd: RawFd, key: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push_own(entry.user_data(key))
    }

    /// Ends the watch with `key`. The ring keeps what it watches open.
    pub(crate) fn unwatch(&mut self, key: u64) -> io::Result<()> {
        self.push_own(opcode::PollRemove::new(key).build().user_data(UNWATCHED))
    }

    fn push_own(&mut self, entry: squeue::Entry) -> io::Result<()> {
        while let Sent::NoRoom = self.push_entry(entry.clone()) {
            self.enter(0)?;
        }
        Ok(())
    }

    fn push_entry(&mut self, entry: squeue::Entry) -> Sent {
        // SAFETY: the memory, the iovec array and the file of an op live in its slab entry until its completion is
        // reaped (`Lane`), also when the future that waits for it is dropped. Test: `schedule_12` of the tracker's
        // list, `a_dropped_read_keeps_its_memory`.
        match unsafe { self.ring.submission().push(&entry) } {
            Ok(()) => Sent::Taken,
            Err(_) => Sent::NoRoom,
        }
    }

    /// Whether entries wait to be submitted.
    pub(crate) fn holds_entries(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether completions are ready that only a call makes visible.
    pub(crate) fn holds_completions(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Submits everything and waits for `want` completions; runs deferred task work in any case.
    pub(crate) fn enter(&mut self, want: u32) -> io::Result<()> {
        if let Some(error) = self.faults.as_ref().and_then(|faults| faults.strike()) {
            return passed_over(Err(error));
        }
        let queued = u32::try_from(self.ring.submission().len()).expect("a ring has fewer entries");
        // SAFETY: no argument structure is passed. Whatever is submitted keeps its memory, see `push_entry`.
        // Test: `a_write_is_read_back_from_a_file`.
        let entered =
            unsafe { self.ring.submitter().enter::<()>(queued, want, ENTER_GETEVENTS, None) };
        passed_over(entered)
    }

    /// The same, for so long at most.
    pub(crate) fn enter_for(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        if let Some(error) = self.faults.as_ref().and_then(|faults| faults.strike()) {
            return passed_over(Err(error));
        }
        let limit = types::Timespec::from(limit);
        let args = types::SubmitArgs::new().timespec(&limit);
        match self.ring.submitter().submit_with_args(want, &args) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            entered => passed_over(entered),
        }
    }

    /// Collects completions.
    pub(crate) fn reap(&mut self, into: &mut Vec<Completed>) {
        into.extend(self.ring.completion().map(|cqe| Completed {
            key: cqe.user_data(),
            result: cqe.result(),
            more: io_uring::cqueue::more(cqe.flags()),
        }));
    }
}

/// Errors after which nothing is lost: what was not taken stays in the submission queue for the next call.
fn passed_over(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

/// `IORING_ENTER_GETEVENTS`, which the io-uring crate keeps to itself.
const ENTER_GETEVENTS: u32 = 1;

/// Runs a call that no ring has. It blocks the thread that sends it: what such calls do is asked of the ring first.
fn blocking(call: impl FnOnce() -> i32) -> Sent {
    Sent::Done(call())
}

/// The command has its two numbers, offset and length, where others have an address and its extension.
fn discard(fd: types::Fd, op: &Op) -> squeue::Entry {
    let mut extension = [0; 16];
    #[expect(clippy::host_endian_bytes, reason = "the kernel of this machine reads a number")]
    extension[..8].copy_from_slice(&op.len.to_ne_bytes());
    opcode::UringCmd16::new(fd, sys::device::RING_DISCARD)
        .addr(Some(op.offset))
        .cmd(extension)
        .build()
}

fn transfer(fd: types::Fd, op: &Op, iovecs: &mut Vec<libc::iovec>) -> squeue::Entry {
    let mem = op.mem.as_ref().expect("a transfer has memory");
    let flags = if op.verb == Verb::WriteDurable { libc::RWF_DSYNC } else { 0 };
    let mut segments = mem.segments();
    let first = segments.next();
    let base = |address: usize| std::ptr::with_exposed_provenance_mut::<u8>(address);
    if let (Some(one), None) = (first, segments.next()) {
        let len = u32::try_from(one.len).unwrap_or(MAX_TRANSFER as u32);
        return match op.verb {
            Verb::Read => opcode::Read::new(fd, base(one.address), len).offset(op.offset).build(),
            _ => opcode::Write::new(fd, base(one.address), len)
                .offset(op.offset)
                .rw_flags(flags)
                .build(),
        };
    }
    let count = u32::try_from(list_segments(mem, iovecs)).expect("bounded by MAX_SEGMENTS");
    match op.verb {
        Verb::Read => opcode::Readv::new(fd, iovecs.as_ptr(), count).offset(op.offset).build(),
        _ => opcode::Writev::new(fd, iovecs.as_ptr(), count)
            .offset(op.offset)
            .rw_flags(flags)
            .build(),
    }
}

/// Lists the segments for one vectored call, as many as it takes, and gives their number.
pub(crate) fn list_segments(mem: &IoMem, iovecs: &mut Vec<libc::iovec>) -> usize {
    iovecs.clear();
    iovecs.extend(mem.segments().take(MAX_SEGMENTS).map(|segment| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(segment.address),
        iov_len: segment.len,
    }));
    iovecs.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_obstacle_is_named() {
        assert_eq!(Obstacle::of(libc::EPERM, Some("2\n")), Obstacle::Sysctl);
        assert_eq!(Obstacle::of(libc::EPERM, Some("0\n")), Obstacle::Seccomp);
        assert_eq!(Obstacle::of(libc::ENOSYS, None), Obstacle::Kernel);
        assert_eq!(Obstacle::of(libc::ENOMEM, Some("0")), Obstacle::Memlock);
        let line = RingUnavailable { obstacle: Obstacle::Sysctl }.to_string();
        assert_eq!(
            line,
            "io_uring is not available: the sysctl kernel.io_uring_disabled forbids it"
        );
    }

    #[test]
    fn a_depth_that_no_ring_has_is_not_blamed_on_the_kernel() {
        for depth in [0, MAX_DEPTH + 1] {
            let error = Uring::new(depth, Issuer::One).err().unwrap();
            assert_eq!(error.obstacle, Obstacle::Depth(depth));
        }
        assert_eq!(
            RingUnavailable { obstacle: Obstacle::Depth(0) }.to_string(),
            "io_uring is not available: a ring has 1 to 32768 slots, and 0 were asked for"
        );
        // The bound is the kernel's, unless it has no memory for so large a ring.
        let largest = Uring::new(MAX_DEPTH, Issuer::One).err().map(|error| error.obstacle);
        assert!(matches!(largest, None | Some(Obstacle::Memlock)), "{largest:?}");
    }

    #[test]
    fn a_ring_of_this_kernel_has_the_best_flags() {
        let ring = Uring::new(8, Issuer::One).unwrap();
        assert!(ring.setup().starts_with("SINGLE_ISSUER"), "{}", ring.setup());
    }
}
