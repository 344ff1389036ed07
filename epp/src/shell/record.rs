//! Writes a run down in the order of the pool's lock.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use wicketgate_pool::{
    Input, Outputs, Pool, PoolConfig,
    replay::{Entry, Header, Recording, VERSION},
    scheduler::{Nanos, PrefixView},
};

/// Steps that may wait for the disk; a slower disk then slows the pool rather than losing a step.
const BACKLOG: usize = 4096;

/// Why a log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file or its writer could not be made.
    #[error("cannot record to {path}: {source}")]
    Create {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The configuration cannot be written.
    #[error("cannot write the log's header: {0}")]
    Header(#[from] serde_json::Error),
}

/// A log being written. Dropping it writes out the rest.
pub struct Recorder {
    entries: Option<SyncSender<Entry>>,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts a log for a pool that was just made with this configuration and seed.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(
        path: &Path,
        config: &Arc<PoolConfig>,
        seed: u64,
    ) -> Result<Recorder, RecordError> {
        let failed = |source| RecordError::Create {
            path: path.display().to_string(),
            source,
        };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let header = Header {
            version: VERSION,
            config: Arc::clone(config),
            seed,
        };
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n").map_err(failed)?;
        let (entries, inbox) = sync_channel::<Entry>(BACKLOG);
        let writer = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || {
                while let Ok(entry) = inbox.recv() {
                    let written = serde_json::to_writer(&mut file, &entry)
                        .map_err(std::io::Error::from)
                        .and_then(|()| file.write_all(b"\n"));
                    if let Err(error) = written {
                        tracing::error!(%error, "the recording ends here");
                        return;
                    }
                }
                if let Err(error) = file.flush() {
                    tracing::error!(%error, "the recording's end is lost");
                }
            })
            .map_err(failed)?;
        Ok(Recorder {
            entries: Some(entries),
            writer: Some(writer),
        })
    }

    /// Runs the step and writes it down.
    pub(super) fn step(
        &mut self,
        pool: &mut Pool,
        now: Nanos,
        input: Input,
        prefix: &dyn PrefixView,
        out: &mut Outputs,
    ) {
        let recording = Recording::new(prefix);
        let before = out.list.len();
        pool.step(now, input.clone(), &recording, out);
        let entry = Entry {
            now,
            input,
            prefix: recording.into_answers(),
            outputs: out.list.iter().skip(before).cloned().collect(),
        };
        let kept = self
            .entries
            .as_ref()
            .is_some_and(|to| to.send(entry).is_ok());
        if !kept {
            // The writer said why; a log with a hole would be worse than a short one.
            self.entries = None;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.entries = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the recording's writer panicked");
        }
    }
}
