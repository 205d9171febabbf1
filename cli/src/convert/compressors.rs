//! Compressing the clusters of a target, on all cores.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::available_parallelism;

use blkring_engine::{IoError, IoMem};
use blkring_qcow2::{CompressedCluster, Compressor, Image};
use crossbeam::channel::Receiver;

use super::team::{Answer, Team, answer};
use super::walk::PIECE;

/// The least that is handed to a thread, in bytes, unless less is left.
const CHUNK: usize = 64 << 10;

/// Compressed clusters of one piece that are written at once.
const WINDOW: usize = 16;

/// A write on its way.
type Write<'a> = Pin<Box<dyn Future<Output = Result<(), (u64, IoError)>> + 'a>>;

struct Job {
    mem: IoMem,
    answer: Answer<Vec<Option<CompressedCluster>>>,
}

/// A cluster, ready to be written.
pub enum Packed {
    /// At this offset.
    Compressed(u64, CompressedCluster),
    /// It cannot be made smaller: these bytes of the buffer.
    Plain(Range<usize>),
}

/// Threads that compress, and the image that they do it for.
pub struct Compressors {
    team: Team<Job>,
    image: Arc<Image>,
    cluster: usize,
}

impl Compressors {
    /// As many as there are cores, for `pieces` pieces at once.
    ///
    /// # Errors
    /// If there can be no such threads, or not for this kind of compression.
    pub fn start(image: &Arc<Image>, pieces: usize) -> io::Result<Self> {
        let compression = image.compression();
        let cluster = usize::try_from(image.info().cluster_size).expect("2 MiB at most");
        Compressor::new(compression, cluster).map_err(io::Error::other)?;
        let work = move |jobs: Receiver<Job>| {
            let compressor = Compressor::new(compression, cluster);
            work(compressor.expect("there was one just before"), cluster, jobs);
        };
        let threads = available_parallelism()?.get();
        // All that all pieces can have: nobody is ever held up.
        let room = pieces * usize::try_from(PIECE).expect("a piece is small").div_ceil(CHUNK);
        let team = Team::start("compressor", (threads, room), work)?;
        Ok(Compressors { team, image: image.clone(), cluster })
    }

    /// Compresses a part of a buffer that begins with a cluster, `offset` being where the buffer begins.
    pub async fn compress(&self, offset: u64, mem: &IoMem, part: Range<usize>) -> Vec<Packed> {
        let chunk = CHUNK.max(self.cluster);
        let cut = |part: Range<usize>, size: usize| {
            let end = part.end;
            part.step_by(size).map(move |start| start..end.min(start + size))
        };
        let sent: Vec<_> = cut(part.clone(), chunk)
            .map(|chunk| {
                let (answer, awaited) = answer();
                self.team.send(Job { mem: mem.slice(chunk), answer });
                awaited
            })
            .collect();
        let mut packed = Vec::new();
        let mut clusters = cut(part, self.cluster);
        for awaited in sent {
            for (compressed, range) in awaited.await.into_iter().zip(&mut clusters) {
                packed.push(match compressed {
                    Some(cluster) => Packed::Compressed(offset + range.start as u64, cluster),
                    None => Packed::Plain(range),
                });
            }
        }
        packed
    }

    /// Writes compressed clusters, several at once; after an error no more begin. The error comes with the offset of
    /// its cluster, the first of those that failed.
    pub async fn write(
        &self,
        clusters: Vec<(u64, CompressedCluster)>,
    ) -> Result<(), (u64, IoError)> {
        let mut clusters = clusters.into_iter();
        let mut running: Vec<Write<'_>> = Vec::new();
        let mut result = Ok(());
        std::future::poll_fn(|cx| {
            loop {
                while result.is_ok()
                    && running.len() < WINDOW
                    && let Some((offset, cluster)) = clusters.next()
                {
                    let written = self.image.write_compressed(offset, cluster);
                    running.push(Box::pin(async move {
                        written.await.map_err(|error| (offset, error))
                    }));
                }
                let before = running.len();
                running.retain_mut(|write| match write.as_mut().poll(cx) {
                    Poll::Ready(written) => {
                        if let Err((offset, error)) = written
                            && result.as_ref().err().is_none_or(|(first, _)| offset < *first)
                        {
                            result = Err((offset, error));
                        }
                        false
                    }
                    Poll::Pending => true,
                });
                if running.is_empty() && (before == 0 || result.is_err()) {
                    return Poll::Ready(());
                }
                if running.len() == before {
                    return Poll::Pending;
                }
            }
        })
        .await;
        result
    }
}

fn work(mut compressor: Compressor, cluster: usize, jobs: Receiver<Job>) {
    let mut bytes = Vec::new();
    let (mut compressed, mut plain) = (0, 0);
    for Job { mem, answer } in jobs {
        bytes.resize(mem.len(), 0);
        mem.copy_out(0, &mut bytes);
        let clusters: Vec<_> = bytes.chunks(cluster).map(|one| compressor.compress(one)).collect();
        let smaller = clusters.iter().flatten().count();
        compressed += smaller;
        plain += clusters.len() - smaller;
        answer.give(clusters);
    }
    tracing::debug!(compressed, plain, "a compressor ends");
}
