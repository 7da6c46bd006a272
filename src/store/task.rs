//! Tasks that end with their owner.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::task::{JoinError, JoinHandle};

/// A spawned task. Dropping it aborts the task; awaiting it waits for the task's end.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Spawns a task. Must be called within a runtime.
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Returns whether the task has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Aborts the task, and returns when everything that it owned is dropped.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // A finished `JoinHandle` must not be polled again.
        if !self.0.is_finished() {
            // Cancelled, completed or panicked: the task has ended either way.
            let _ = (&mut self.0).await;
        }
    }
}

impl Future for Task {
    type Output = Result<(), JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
