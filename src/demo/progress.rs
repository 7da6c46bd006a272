//! The progress of a contest: a moving bar on a terminal, and nothing anywhere else. A thread of its own draws it,
//! since a terminal may be slow and the clients may not.

use std::{
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressStyle};

/// Interval between two drawings.
const EVERY: Duration = Duration::from_millis(50);

/// A bar. Dropping it clears its line.
pub(super) struct Progress {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts a bar of `total` steps, with this name before it and in this terminal colour; `done` holds the steps
    /// so far.
    pub(super) fn start(
        name: &'static str,
        color: &str,
        total: usize,
        done: Arc<AtomicUsize>,
    ) -> Self {
        if !io::stderr().is_terminal() {
            return Self {
                end: None,
                thread: None,
            };
        }
        let color = match AutoStream::choice(&io::stderr()) {
            ColorChoice::Never => String::new(),
            _ => format!(".{color}"),
        };
        let template = format!("  {{prefix:9}} {{bar:38{color}}}  {{pos}} of {{len}}  {{elapsed}}");
        let style = ProgressStyle::with_template(&template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total as u64)
            .with_prefix(name)
            .with_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            bar.tick();
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(done.load(Ordering::Relaxed) as u64);
                bar.tick();
            }
            bar.finish_and_clear();
        });
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread draws, and does nothing else.
            let _ = thread.join();
        }
    }
}
