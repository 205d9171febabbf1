//! Commands from the standard input.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::session::{Next, Session};
use crate::bytes;
use crate::failure::Failure;
use crate::name;

/// How long a request that ends while no command comes may stay unnoticed.
const STEP: Duration = Duration::from_millis(1);

/// Runs the commands that are read until the input ends, with a prompt before each. The exit code is 1 if any of them
/// failed.
///
/// # Errors
/// If the queue or the input fails as a whole.
pub fn run(session: &mut Session) -> Result<ExitCode, Failure> {
    let lines = lines();
    let mut code = ExitCode::SUCCESS;
    loop {
        print!("{}> ", name::own().text());
        // What cannot be printed is lost; the commands are done all the same.
        drop(std::io::stdout().flush());
        let Some(line) = next(session, &lines)? else { return Ok(code) };
        match session.execute(&line?)? {
            Next::Go => (),
            Next::GoFailed => code = ExitCode::FAILURE,
            Next::Quit => return Ok(code),
        }
    }
}

/// The lines of the standard input, as they come: a thread of their own waits for them, and the requests that were
/// begun go on meanwhile.
fn lines() -> Receiver<std::io::Result<String>> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            if sender.send(line.map(|line| bytes::text(&line))).is_err() {
                break;
            }
        }
    });
    lines
}

fn next(
    session: &mut Session,
    lines: &Receiver<std::io::Result<String>>,
) -> Result<Option<std::io::Result<String>>, Failure> {
    loop {
        if !session.is_busy() {
            return Ok(lines.recv().ok());
        }
        match lines.recv_timeout(STEP) {
            Ok(line) => return Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => session.turn()?,
        }
    }
}
