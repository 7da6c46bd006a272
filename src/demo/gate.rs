//! The lockgate of the demo: the library itself, as the program runs it, on a thread of its own in this process, so
//! that nothing of it outlives the demo. It listens on a free port of this machine.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use lockgate::{
    Config,
    config::live::LiveConfig,
    lock::WriteBack,
    telemetry::metrics::upstream::UpstreamMetrics,
    transport::{
        endpoint::{Endpoint, Place},
        listener::Listener,
        tls::TlsClient,
    },
};
use tokio::{runtime::Builder, sync::oneshot};

use super::{
    Failure,
    client::{Client, Reply, Target, Trouble},
};

/// Bound on the first lock, in milliseconds.
const FIRST_WITHIN_MS: &str = "5000";

/// Bound on draining at the end, when all clients are gone already.
const DRAIN: Duration = Duration::from_secs(1);

/// A lockgate that serves. Dropping it ends it, once the locks that its clients left are released.
pub(super) struct Gate {
    address: SocketAddr,
    metrics: Arc<UpstreamMetrics>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// Starts lockgate in front of this configuration's upstream.
    pub(super) async fn start(
        mut config: Config,
        tls: Option<Arc<TlsClient>>,
    ) -> Result<Self, Failure> {
        config.drain = DRAIN;
        // Without write-back lockgate leaves nothing in this Redis, and keeps no grace there.
        config.write_back.leases = WriteBack::Off;
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        // One thread serves clients in the order in which their bytes arrived.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("lockgate".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                let address = (Ipv4Addr::LOCALHOST, 0).into();
                let listener = match Listener::tcp(address, None).await {
                    Ok(listener) => listener,
                    Err(error) => return drop(tell.send(Err(error))),
                };
                let port = listener.port().unwrap_or(0);
                let live = Arc::new(LiveConfig::new(&config));
                let shared = Arc::new(lockgate::shared(&config, live, tls, port));
                let metrics = shared.gate.upstream_metrics().map(Arc::clone);
                if tell.send(Ok((port, metrics))).is_ok() {
                    let shutdown = async { drop(stopped.await) };
                    lockgate::server::serve(vec![listener], shared, shutdown).await;
                }
            });
            runtime.shutdown_background();
        })?;
        let (port, metrics) = told.await.map_err(io::Error::other)??;
        let metrics = metrics.ok_or_else(|| io::Error::other("the upstream is no Redis"))?;
        Ok(Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            metrics,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the metrics of what it sends to Redis.
    pub(super) fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// Returns this lockgate as a target, with the credentials for Redis.
    pub(super) fn target(&self, redis: &Target) -> Target {
        let place = Place::Tcp {
            host: self.address.ip().to_string(),
            port: self.address.port(),
        };
        Target {
            endpoint: Endpoint::new(place, None),
            ..redis.clone()
        }
    }
}

/// Takes the lock once and releases it: the contest measures a lockgate that has been running for a while.
pub(super) async fn try_once(target: &Target, key: &str) -> Result<(), Trouble> {
    let mut client = Client::connect(target).await?;
    let lock = ["LOCK", key, "TOKEN", "probe", "WAIT", FIRST_WITHIN_MS];
    match client.call(&lock).await? {
        Reply::Text(_) => {}
        _ => return Err(Trouble::Strange),
    }
    match client.call(&["UNLOCK", key, "probe"]).await? {
        Reply::Integer(1) => Ok(()),
        _ => Err(Trouble::Lost),
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}
