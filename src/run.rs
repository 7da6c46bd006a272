//! Wires the parts together: builds them from a configuration, and runs them until the shutdown.

use std::{
    future::Future,
    io,
    sync::{Arc, atomic::AtomicUsize},
    time::SystemTime,
};

use tracing::{info, warn};

use crate::{
    admin::Admin,
    auth::{guard::Guard, identity::Users},
    command::Bounds,
    config::{Config, RedisAddress, Upstream, live::LiveConfig},
    error::Error,
    gate::Gate,
    lock::WriteBack,
    relay::connector::Connector,
    sentinel::{SentinelSettings, Sentinels},
    server::{
        Ended,
        embedder::{Embedder, Listening, Sockets},
        reload::Reload,
    },
    session::{Shared, budget::Budget},
    store::{
        Store,
        embedded::EmbeddedStore,
        redis::{
            RedisSettings, RedisStore, ServerProbe,
            doctor::{self, Finding},
        },
    },
    telemetry::metrics::locks::LockMetrics,
    transport::{
        address::Address,
        endpoint::{Endpoint, Place},
        listener::Listener,
        tls::{TlsClient, TlsServer},
    },
};

/// Serves clients until `shutdown` completes and they are done, or until `drain` is over. Logs `listening` with
/// each address once all of them listen, and the admin address too. A Redis that cannot be reached yet is not an
/// error.
///
/// Dropping the future disconnects every client.
///
/// # Errors
/// An address cannot be listened on, or a certificate cannot be used.
pub async fn run(
    config: Config,
    embedder: Embedder,
    shutdown: impl Future<Output = ()>,
) -> Result<Ended, Error> {
    for remark in config.remarks() {
        info!("{remark}");
    }
    let again = Reload {
        clients: tls_to_clients(&config)?,
        upstream: tls_to_redis(&config)?,
        live: Arc::new(LiveConfig::new(&config)),
    };
    let listeners = listen(&config, embedder.sockets, again.clients.as_ref()).await?;
    let admin = listen_for_operators(&config).await?;
    for listener in &listeners {
        let how = if listener.is_secure() {
            "with TLS "
        } else {
            ""
        };
        info!(upstream = %config.upstream.url, "listening {how}on {listener}");
    }
    if let Some(callback) = embedder.on_listening {
        let admin = admin.as_ref().and_then(|(all, _)| all.first());
        callback(Listening {
            clients: &listeners,
            admin: admin.and_then(|first| first.local_addr().ok()),
        });
    }
    let live = Arc::clone(&again.live);
    let upstream = again.upstream.clone();
    tokio::select! {
        ended = serve_all(&config, live, listeners, admin, upstream, shutdown) => Ok(ended),
        never = again.execute(embedder.reloads) => match never {},
    }
}

/// Reads what [`run`] would read and looks up its names, without connecting or listening, and returns every error
/// that can be found this way.
pub fn check(config: &Config) -> Vec<Error> {
    let socket = config.unix_socket.as_ref();
    let socket = socket.and_then(|socket| Listener::check_path(&socket.path).err());
    let socket = socket.map(|source| unix_error(config, source));
    let tls = config.tls.as_ref().map(|tls| ("tls.listen", &tls.listen));
    let plain = config.listen.as_ref().map(|listen| ("listen", listen));
    let admin = config.admin.as_ref();
    let admin = admin.map(|admin| ("admin.listen", &admin.listen));
    let names = [plain, tls, admin].into_iter().flatten();
    let names = names.filter_map(|(key, address)| {
        let error = address.look_up().err()?;
        Some(address_error(address, key, error))
    });
    let names = names.collect::<Vec<_>>();
    let others = check_files(config).into_iter().chain(socket);
    others.chain(names).collect()
}

/// Reads the certificates and keys that [`run`] would read, and returns every error.
pub fn check_files(config: &Config) -> Vec<Error> {
    let tls = [tls_to_clients(config).err(), tls_to_redis(config).err()];
    tls.into_iter().flatten().collect()
}

/// Tries what lockgate needs on the Redis of this configuration. None: the upstream is the memory of this process.
///
/// # Errors
/// A file of TLS towards Redis cannot be used.
pub async fn examine(config: &Config) -> Result<Option<Vec<Finding>>, Error> {
    let tls = tls_to_redis(config)?;
    let Upstream::Redis(redis) = &config.upstream.url else {
        return Ok(None);
    };
    let sentinels = watch_sentinels(config, &redis.place, tls.as_ref());
    let (endpoint, _) = endpoints(&redis.place, tls, sentinels.as_deref());
    let settings = redis_settings(config, redis, Arc::new(endpoint));
    Ok(Some(doctor::examine(&settings, config.lock.replicas).await))
}

/// Serves clients, and the admin address for as long as any client is connected.
async fn serve_all(
    config: &Config,
    live: Arc<LiveConfig>,
    listeners: Vec<Listener>,
    admin: Option<(Vec<std::net::TcpListener>, Vec<String>)>,
    tls: Option<Arc<TlsClient>>,
    shutdown: impl Future<Output = ()>,
) -> Ended {
    let port = listeners.iter().find_map(Listener::port).unwrap_or(0);
    let shared = Arc::new(shared(config, live, tls, port));
    let admin = admin.map(|(listeners, hosts)| Admin::start(listeners, hosts, Arc::clone(&shared)));
    let shutdown = async {
        shutdown.await;
        admin.iter().for_each(Admin::drain);
    };
    let ended = crate::server::serve(listeners, shared, shutdown).await;
    if let Some(admin) = admin {
        admin.end().await;
    }
    ended
}

/// Binds the admin address, where one is configured, and returns it with its host names.
async fn listen_for_operators(
    config: &Config,
) -> Result<Option<(Vec<std::net::TcpListener>, Vec<String>)>, Error> {
    let Some(crate::config::Admin { listen, hosts }) = config.admin.clone() else {
        return Ok(None);
    };
    let wrong = |source| address_error(&listen, "admin.listen", source);
    let mut listeners = Vec::new();
    for listener in listen.bind().await.map_err(wrong)? {
        let address = listener.local_addr().map_err(wrong)?;
        info!("operators find lockgate at http://{address}");
        if !crate::admin::is_private(address) {
            warn!(
                "the admin address {address} can be reached from other machines, and has no password"
            );
        }
        // Served on another thread, by a runtime of its own.
        listeners.push(listener.into_std().map_err(wrong)?);
    }
    Ok(Some((listeners, hosts)))
}

/// Returns TLS towards clients, with the configured files.
fn tls_to_clients(config: &Config) -> Result<Option<Arc<TlsServer>>, Error> {
    let Some(tls) = &config.tls else {
        return Ok(None);
    };
    let server = TlsServer::new(&tls.files, tls.handshake_timeout);
    let wrong = |source| Error::Tls {
        section: "tls",
        source,
    };
    server.map(|server| Some(Arc::new(server))).map_err(wrong)
}

/// Returns TLS towards Redis, with the configured files. None: the upstream does not use TLS.
///
/// # Errors
/// A file cannot be used.
pub fn tls_to_redis(config: &Config) -> Result<Option<Arc<TlsClient>>, Error> {
    let (Some(tls), Upstream::Redis(RedisAddress { place, .. })) =
        (&config.upstream.tls, &config.upstream.url)
    else {
        return Ok(None);
    };
    let name = match (&tls.server_name, place) {
        (Some(name), _) => name,
        (None, Place::Tcp { host, .. }) => host,
        // The configuration demands a name where sentinels tell the address.
        (None, Place::Unix(_) | Place::Master { .. }) => "",
    };
    let client = TlsClient::new(&tls.files, name);
    let wrong = |source| Error::Tls {
        section: "upstream",
        source,
    };
    client.map(|client| Some(Arc::new(client))).map_err(wrong)
}

/// Opens every listener for clients.
async fn listen(
    config: &Config,
    sockets: Sockets,
    tls: Option<&Arc<TlsServer>>,
) -> Result<Vec<Listener>, Error> {
    let plain = config.listen.as_ref();
    let plain = plain.map(|address| ("listen", address, None));
    let secure = config.tls.as_ref();
    let secure = secure.map(|config| ("tls.listen", &config.listen, tls));
    // A socket that was handed over replaces the configured listener of its kind.
    let plain = plain.filter(|_| sockets.plain.is_empty());
    let secure = secure.filter(|_| sockets.tls.is_empty());
    let unix_socket = config.unix_socket.as_ref();
    let unix_socket = unix_socket.filter(|_| sockets.unix.is_empty());
    let mut listeners = Listener::handed_over(sockets, tls).map_err(Error::HandedOver)?;
    // Plain addresses come after those with TLS: the banner suggests the last listener.
    for (key, address, tls) in secure.into_iter().chain(plain) {
        let opened = Listener::all(address, tls).await;
        listeners.extend(opened.map_err(|source| address_error(address, key, source))?);
    }
    if let Some(socket) = unix_socket {
        let listener = Listener::unix(socket.path.clone(), socket.mode);
        listeners.push(listener.map_err(|source| unix_error(config, source))?);
    }
    Ok(listeners)
}

fn address_error(address: &Address, key: &'static str, source: io::Error) -> Error {
    Error::Listen {
        place: address.to_string(),
        key,
        wanted: "a free address of this machine",
        source,
    }
}

fn unix_error(config: &Config, source: io::Error) -> Error {
    let path = config.unix_socket.as_ref().map(|socket| &socket.path);
    Error::Listen {
        place: path.map_or_else(String::new, |path| path.display().to_string()),
        key: "unixsocket",
        wanted: "the path of a socket, old or new, in a directory that may be written to",
        source,
    }
}

/// Builds what all sessions share. `port`: where clients find it over TCP, or 0.
pub fn shared(
    config: &Config,
    live: Arc<LiveConfig>,
    tls: Option<Arc<TlsClient>>,
    port: u16,
) -> Shared {
    let users = Arc::new(Users::default());
    let mut sentinels = None;
    let (store, upstream): (Arc<dyn Store>, _) = match &config.upstream.url {
        Upstream::Embedded => (Arc::new(EmbeddedStore::new()), None),
        Upstream::Redis(redis) => {
            sentinels = watch_sentinels(config, &redis.place, tls.as_ref());
            let (for_locks, for_clients) = endpoints(&redis.place, tls, sentinels.as_deref());
            let for_clients = Arc::new(for_clients);
            let settings = redis_settings(config, redis, Arc::new(for_locks));
            let probe = ServerProbe::new(Arc::new(RedisSettings {
                endpoint: Arc::clone(&for_clients),
                ..settings.clone()
            }));
            let store = RedisStore::new(settings, Arc::clone(&users));
            if let (Some(sentinels), Some(metrics)) = (&sentinels, store.metrics()) {
                metrics.with_sentinels(sentinels.metrics());
            }
            let address = Connector::new(for_clients, config.upstream.connect_timeout, probe);
            (Arc::new(store), Some(Arc::new(address)))
        }
    };
    Shared {
        gate: Gate::new(
            store,
            config.lock_settings(),
            config.limits.clone(),
            LockMetrics::new(config.poll_interval_micros()),
            Arc::clone(live.slow_log()),
        ),
        users,
        upstream,
        sentinels,
        timeout: config.upstream.timeout,
        guard: guard(config, &live),
        live,
        protected_mode: config.protected_mode,
        bounds: Bounds {
            key_bytes: config.limits.key_bytes,
            token_bytes: config.limits.token_bytes,
            command_bytes: config.limits.lock_command_bytes,
            min_lease_ms: config.lock.leases.min_ms,
            max_lease_ms: config.lock.leases.max_ms,
        },
        default_lease_ms: config.lock.leases.default_ms,
        default_replicas: config.lock.replicas,
        min_session_lease_ms: config.lock.leases.min_session_ms,
        tcp_keepalive: config.tcp_keepalive,
        idle_timeout: config.idle_timeout,
        limits: config.limits.clone(),
        port,
        started: crate::clock::now(),
        started_at: SystemTime::now(),
        run_id: run_id(),
        clients: AtomicUsize::new(0),
        budget: Arc::new(Budget::new(config.limits.kept_reply_bytes)),
        relays: Arc::default(),
        admission_queue: Arc::default(),
        peers: Arc::default(),
        unauthorized: crate::session::unauthorized::Unauthorized::default(),
        warnings: crate::session::Warnings::default(),
    }
}

/// Returns one endpoint for locks and one for clients: neither can use up the other's lookups.
fn endpoints(
    place: &Place,
    tls: Option<Arc<TlsClient>>,
    sentinels: Option<&Sentinels>,
) -> (Endpoint, Endpoint) {
    let endpoint = || Endpoint::new(place.clone(), tls.clone());
    match sentinels {
        Some(sentinels) => (
            endpoint().led_by(sentinels.master_for_locks()),
            endpoint().led_by(sentinels.master()),
        ),
        None => (endpoint(), endpoint()),
    }
}

/// Begins to ask the sentinels of the upstream, where it has some.
fn watch_sentinels(
    config: &Config,
    place: &Place,
    tls: Option<&Arc<TlsClient>>,
) -> Option<Arc<Sentinels>> {
    let (Some(section), Place::Master { service, sentinels }) = (&config.upstream.sentinel, place)
    else {
        return None;
    };
    let sentinels = Arc::new(Sentinels::new(SentinelSettings {
        service: service.clone(),
        sentinels: sentinels.clone(),
        own: section.own.clone(),
        tls: tls.filter(|_| section.tls).cloned(),
        poll: section.poll,
        stops_isolated: section.stops_isolated,
        pauses: section.pauses,
        timeout: config.upstream.connect_timeout,
    }));
    sentinels.begin();
    Some(sentinels)
}

/// Returns the settings of the store in this Redis.
fn redis_settings(config: &Config, redis: &RedisAddress, endpoint: Arc<Endpoint>) -> RedisSettings {
    let writes_back = config.write_back.leases != WriteBack::Off;
    RedisSettings {
        endpoint,
        own: redis.own(),
        connect_timeout: config.upstream.connect_timeout,
        timeout: config.upstream.timeout,
        ping: config.upstream.ping,
        grace: writes_back.then_some(config.write_back.grace),
        key_prefix: config.lock.key_prefix.clone(),
        replicas_timeout: config.lock.replicas_timeout,
        connections: config.limits.shared_connections,
        idle: config.upstream.idle_timeout,
    }
}

/// Returns the guard that asks clients for this instance's password, where it has one.
fn guard(config: &Config, live: &LiveConfig) -> Option<Guard> {
    let password = live.password()?.clone();
    Some(match &config.upstream.url {
        Upstream::Embedded => Guard::without_redis(password),
        Upstream::Redis(redis) => Guard::before_redis(password, redis.own().as_ref()),
    })
}

/// Returns forty hexadecimal digits, new with each start, as Redis does.
fn run_id() -> String {
    let (one, other) = (uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let mut id = format!("{one}{other}");
    id.truncate(40);
    id
}
