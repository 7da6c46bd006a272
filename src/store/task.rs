//! A task that ends with its owner.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::task::{JoinError, JoinHandle};

/// A spawned task; dropping this aborts it. As a future it is the task's end.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Spawns a task; call it within a runtime.
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Ends the task, and returns when everything that it owned is dropped.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // Its end may have been awaited before, and may not be twice.
        if !self.0.is_finished() {
            // Cancelled, done or panicked: over in any case.
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
