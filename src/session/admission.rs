//! Admits the client of a lock command as a user. Before a connection's first lock command, and after each
//! `AUTH`, `HELLO … AUTH` and `RESET`, the store verifies the credentials that the client gave, unless a
//! recent verification of the same credentials still counts. Of a client that gave none, it checks whether
//! Redis serves it. Redis's reply on the client's own connection is not enough: it shows only that the client
//! claims to be a user.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::sleep;

use super::{Session, absorbing::Front, answer, turn::Turn};
use crate::{
    auth::identity::{Credentials, User},
    clock,
    command::{Command, parse},
    gate::Answer,
    limits::LOCK_COMMAND_ARGUMENTS,
    lock::{Refusal, Time},
    relay::state::Identity,
    resp::arguments,
    session::admission_queue::Ticket,
    store::{Admission, Later},
};

/// The user on whose behalf lock commands run.
pub(super) struct Admitted {
    /// Held until another user is admitted or the connection ends: the connection refers to it by its number.
    user: Arc<User>,
    /// The number of identity changes up to the admission.
    changes: u64,
}

/// A lock command whose client the store has to admit first.
pub(super) struct AuthPending {
    front: Front,
    /// The credentials that the client gave.
    claim: Option<Credentials>,
    admission: Later<Admission>,
    /// Its place among the clients with the same claim. The first of them is admitted first.
    ticket: Option<Ticket>,
    /// The user as which the store admits the client.
    user: Option<Arc<User>>,
    came_at: Time,
    /// Set for a `LOCK` that may wait, with its time limit, if any.
    waits: Option<Option<Duration>>,
}

impl AuthPending {
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }
}

impl Session {
    /// Returns whether the client is admitted with its current identity.
    pub(super) fn is_admitted(&self) -> bool {
        let now = self.backend.identity().ok();
        let admitted = self.admitted.as_ref();
        now.is_some_and(|(_, changes)| admitted.is_some_and(|it| it.changes == changes))
    }

    /// Starts a lock command, which runs as soon as its client is admitted.
    pub(super) fn admit(&mut self, front: Front) {
        let client_info = self.backend.client_info();
        if !self.who.label.says(client_info) {
            self.who.label = Arc::new(self.who.label.saying(client_info));
        }
        if self.is_admitted() && (self.recheck.is_none() || self.releases(&front)) {
            return self.run_or_refuse(front);
        }
        let claim = match self.backend.identity() {
            Err(text) => {
                let refusal = Refusal::Store(Bytes::from(text));
                return self.refuse(&front, refusal);
            }
            Ok((Identity::Known(credentials), _)) => Some(credentials.clone()),
            Ok(_) => None,
        };
        let known = match &claim {
            // Every client shares the memory of this process.
            _ if self.shared.upstream.is_none() => Some(self.shared.users.anonymous()),
            Some(credentials) => self.shared.users.user_of(credentials, clock::now()),
            None => None,
        };
        if let Some(user) = known
            && self.shared.admission_queue.is_free(&claim)
        {
            self.admit_as(user);
            return self.run_or_refuse(front);
        }
        let waits = self.waits(&front);
        let patience = waits.unwrap_or(Some(self.shared.timeout));
        self.turn = Turn::AuthPending(Box::new(AuthPending {
            front,
            admission: self.shared.gate.admits(claim.clone(), patience),
            claim,
            ticket: None,
            user: None,
            came_at: clock::now(),
            waits,
        }));
    }

    pub(super) fn await_admission(
        &mut self,
        cx: &mut Context<'_>,
        mut auth_pending: Box<AuthPending>,
    ) -> bool {
        if !self.may_answer() {
            // The clients behind it in the line do not wait for the rest of Redis's message.
            auth_pending.ticket = None;
            return self.stay(Turn::AuthPending(auth_pending));
        }
        let ticket = auth_pending.ticket.take();
        let ticket =
            ticket.unwrap_or_else(|| self.shared.admission_queue.ticket(&auth_pending.claim));
        let user = match auth_pending.user.take() {
            Some(user) => user,
            None => match auth_pending.admission.as_mut().poll(cx) {
                Poll::Ready(Admission::Welcome(user)) => user,
                Poll::Ready(Admission::Refused(text)) => {
                    return self.turn_away(&auth_pending, Some(text));
                }
                Poll::Ready(Admission::Unanswered(text)) => {
                    return self.turn_away(&auth_pending, text);
                }
                Poll::Pending => {
                    auth_pending.ticket = Some(ticket);
                    return self.stay(Turn::AuthPending(auth_pending));
                }
            },
        };
        if ticket.poll_turn(cx).is_pending() {
            (auth_pending.ticket, auth_pending.user) = (Some(ticket), Some(user));
            return self.stay(Turn::AuthPending(auth_pending));
        }
        self.admit_as(user);
        self.came_at = Some(auth_pending.came_at);
        self.run_or_refuse(auth_pending.front);
        self.came_at = None;
        true
    }

    /// Answers a client that was not admitted; `text` is the reason, where known.
    fn turn_away(&mut self, auth_pending: &AuthPending, text: Option<Bytes>) -> bool {
        let trouble = || self.shared.gate.trouble(self.backend.database());
        match text.or_else(trouble).map(Refusal::Store) {
            None if auth_pending.is_waiting() => self.write_answer(answer::nil),
            refusal => {
                let refusal = refusal.unwrap_or(Refusal::Upstream);
                self.refuse(&auth_pending.front, refusal);
                true
            }
        }
    }

    /// Begins to verify an admitted client anew: another server takes the place of the one that accepted its
    /// credentials, and may not. (Whether it serves anonymous clients shows on their shared connection.)
    pub(super) fn check_again(&mut self) {
        if let Some(admitted) = &self.admitted
            && let Ok((Identity::Known(credentials), _)) = self.backend.identity()
        {
            admitted.user.doubt(credentials);
            let claim = Some(credentials.clone());
            self.recheck = Some(self.shared.gate.admits(claim, None));
        }
    }

    /// Closes the client if it is refused. Takes back a grant that has waited for the check for too long.
    pub(super) fn look_for_recheck(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(recheck) = &mut self.recheck else {
            self.withheld = None;
            return false;
        };
        let Poll::Ready(admission) = recheck.as_mut().poll(cx) else {
            return self.look_for_withheld_grant(cx);
        };
        self.recheck = None;
        match admission {
            Admission::Welcome(user) if self.is_admitted() => self.admit_as(user),
            Admission::Welcome(_) => {}
            Admission::Refused(_) | Admission::Unanswered(_) => {
                self.shared.counters().unrestored_clients.count();
                self.cut_off();
            }
        }
        true
    }

    fn look_for_withheld_grant(&mut self, cx: &mut Context<'_>) -> bool {
        let Turn::Answered(answer @ Answer::Granted(_), _) = &mut self.turn else {
            self.withheld = None;
            return false;
        };
        let timeout = self.shared.timeout;
        let withheld = self
            .withheld
            .get_or_insert_with(|| Box::pin(sleep(timeout)));
        if withheld.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.withheld = None;
        *answer = Answer::Refused(Refusal::Upstream);
        self.shared.counters().refused(&Refusal::Upstream);
        true
    }

    fn admit_as(&mut self, user: Arc<User>) {
        self.recheck = None;
        self.who.user = user.id();
        let changes = self.backend.identity().map_or(0, |(_, changes)| changes);
        self.admitted = Some(Admitted { user, changes });
    }

    fn refuse(&mut self, front: &Front, refusal: Refusal) {
        match front {
            Front::Own(_) => {
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal));
            }
            Front::Absorbed(absorbed) => self.fall_open(absorbed, Some(refusal)),
        }
    }

    fn run_or_refuse(&mut self, front: Front) {
        match front {
            Front::Own(frame) => {
                if let Err(text) = self.run(&frame) {
                    self.write_answer(|out, protocol| answer::error(out, protocol, &text));
                }
            }
            Front::Absorbed(absorbed) => self.run_absorbed(absorbed),
        }
    }

    /// Returns whether the command only releases a lock. It grants nothing, so it need not wait for a new check.
    fn releases(&self, front: &Front) -> bool {
        match front {
            Front::Own(_) => matches!(self.parsed(front), Some(Command::Unlock { .. })),
            Front::Absorbed(absorbed) => absorbed.releases(),
        }
    }

    /// Returns whether the command is a `LOCK` that may wait, and for how long.
    fn waits(&self, front: &Front) -> Option<Option<Duration>> {
        match self.parsed(front)? {
            Command::Lock {
                try_only: false,
                wait_ms,
                ..
            } => Some(wait_ms.map(Duration::from_millis)),
            _ => None,
        }
    }

    fn parsed(&self, front: &Front) -> Option<Command> {
        let Front::Own(frame) = front else {
            return None;
        };
        let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).ok()?;
        parse(&arguments, &self.shared.bounds).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Instant};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{UnixListener, UnixStream},
        sync::{
            mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
            oneshot, watch,
        },
        task::{JoinHandle, yield_now},
        time::timeout,
    };

    use super::*;
    use crate::{
        config::{Config, live::LiveConfig},
        gate::Gate,
        lock::{StoreRequest, StoreRequestId, UserId},
        relay::connector::Connector,
        session::Shared,
        store::{
            Listener, LockName, LockStatus, Receipt, Store,
            embedded::EmbeddedStore,
            redis::{RedisSettings, ServerProbe},
        },
        telemetry::metrics::locks::LockMetrics,
        transport::{
            endpoint::{self, Endpoint},
            stream::Stream,
        },
    };

    /// A generous limit for what happens at once.
    const SOON: Duration = Duration::from_secs(5);

    /// A store in this process whose admissions the test decides.
    struct ProbedStore {
        locks: EmbeddedStore,
        /// Requests about locks get no reply.
        is_mute: bool,
        knocks: UnboundedSender<oneshot::Sender<Admission>>,
    }

    impl Store for ProbedStore {
        fn listen(&self, listener: Arc<dyn Listener>) {
            self.locks.listen(listener);
        }

        fn ask(
            &self,
            name: &LockName,
            id: StoreRequestId,
            store_request: StoreRequest,
            within: Duration,
        ) -> Receipt {
            match self.is_mute {
                true => Receipt::Underway,
                false => self.locks.ask(name, id, store_request, within),
            }
        }

        fn status(&self, name: &LockName, user: UserId) -> Later<Result<LockStatus, Bytes>> {
            self.locks.status(name, user)
        }

        fn admits(&self, _: Option<Credentials>, _: Option<Duration>) -> Later<Admission> {
            let (asker, told) = oneshot::channel();
            self.knocks.send(asker).unwrap();
            Box::pin(async { told.await.unwrap() })
        }
    }

    /// An instance whose store has to admit clients, with the store's pending admissions.
    struct Place {
        shared: Arc<Shared>,
        asked: UnboundedReceiver<oneshot::Sender<Admission>>,
        draining: watch::Sender<bool>,
    }

    impl Place {
        /// Creates an instance whose ordinary commands go to this socket.
        fn before(upstream: &Path) -> Self {
            Self::which(upstream, false)
        }

        fn which(upstream: &Path, is_mute: bool) -> Self {
            let (knocks, asked) = unbounded_channel();
            let config = Config::default();
            let store = Arc::new(ProbedStore {
                locks: EmbeddedStore::new(),
                is_mute,
                knocks,
            });
            let limits = config.limits.clone();
            let metrics = LockMetrics::new(config.poll_interval_micros());
            let upstream = Endpoint::new(endpoint::Place::Unix(upstream.to_owned()), None);
            let upstream = Arc::new(upstream);
            let probe = ServerProbe::new(Arc::new(RedisSettings {
                endpoint: Arc::clone(&upstream),
                own: None,
                connect_timeout: SOON,
                timeout: SOON,
                ping: SOON,
                grace: None,
                key_prefix: Bytes::new(),
                replicas_timeout: Duration::from_millis(100),
                connections: 1,
                idle: SOON,
            }));
            let shared = Shared {
                gate: Gate::new(
                    store,
                    config.lock_settings(),
                    limits,
                    metrics,
                    Arc::default(),
                ),
                upstream: Some(Arc::new(Connector::new(upstream, SOON, probe))),
                ..crate::run::shared(&config, Arc::new(LiveConfig::new(&config)), None, 0)
            };
            Self {
                shared: Arc::new(shared),
                asked,
                draining: watch::channel(false).0,
            }
        }

        fn connect(&self) -> (UnixStream, JoinHandle<()>) {
            let (client, served) = UnixStream::pair().unwrap();
            let (shared, drain) = (Arc::clone(&self.shared), self.draining.subscribe());
            let served = Stream::Unix(served);
            let session = crate::session::serve(shared, served, "somewhere".into(), 1, drain);
            (client, tokio::spawn(session))
        }

        fn welcome(&self) -> Admission {
            Admission::Welcome(self.shared.users.anonymous())
        }

        /// Sends a `LOCK k` of this client. Returns the sender of the store's reply.
        async fn lock(
            &mut self,
            client: &mut UnixStream,
            token: usize,
        ) -> oneshot::Sender<Admission> {
            self.asks(client, &format!("LOCK k TOKEN {token}")).await
        }

        async fn asks(
            &mut self,
            client: &mut UnixStream,
            command: &str,
        ) -> oneshot::Sender<Admission> {
            writes(client, &format!("{command}\r\n")).await;
            timeout(SOON, self.asked.recv()).await.unwrap().unwrap()
        }

        /// Lets this client in as `ann`, and lets it lock `a` with the token `t` for a minute. Returns its connection to
        /// Redis, and the user.
        async fn locks_as_ann(
            &mut self,
            client: &mut UnixStream,
            redis: &UnixListener,
        ) -> (UnixStream, Arc<User>) {
            writes(client, "AUTH ann pw\r\n").await;
            let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
            reads(&mut relay, "AUTH ann pw\r\n").await;
            writes(&mut relay, "+OK\r\n").await;
            reads(client, "+OK\r\n").await;
            let told = self.asks(client, "LOCK a TOKEN t PX 60000").await;
            let ann = Credentials::new(b"ann", b"pw").unwrap();
            let ann = self.shared.users.verified(&ann, clock::now());
            assert!(told.send(Admission::Welcome(Arc::clone(&ann))).is_ok());
            reads(client, "$1\r\nt\r\n").await;
            (relay, ann)
        }
    }

    async fn writes(stream: &mut UnixStream, bytes: &str) {
        stream.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Lets all tasks run until they wait.
    async fn let_run() {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    async fn reads(client: &mut UnixStream, expected: &str) {
        let mut reply = vec![0; expected.len()];
        let read = timeout(SOON, client.read_exact(&mut reply)).await;
        read.unwrap_or_else(|_| panic!("it never reads {expected:?}"))
            .unwrap();
        assert_eq!(String::from_utf8(reply).unwrap(), expected);
    }

    #[tokio::test]
    async fn those_who_are_asked_about_go_in_in_the_order_in_which_they_came() {
        const CLIENTS: usize = 5;
        const ENDS: usize = 2;
        let mut place = Place::before("/nowhere".as_ref());
        let (mut clients, mut told, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            let (mut client, session) = place.connect();
            told.push(place.lock(&mut client, number).await);
            clients.push(client);
            sessions.push(session);
        }
        // A session that ends keeps no other client out.
        sessions[ENDS].abort();
        assert!((&mut sessions[ENDS]).await.unwrap_err().is_cancelled());
        // The order in which the tasks wake must not matter: here the last client's task runs first.
        for (number, asker) in told.into_iter().enumerate().rev() {
            assert_eq!(asker.send(place.welcome()).is_err(), number == ENDS);
            let_run().await;
        }
        for (number, client) in clients.iter_mut().enumerate() {
            if number != ENDS {
                reads(client, &format!("$1\r\n{number}\r\n")).await;
                writes(client, &format!("UNLOCK k {number}\r\n")).await;
                reads(client, ":1\r\n").await;
            }
        }
    }

    #[tokio::test]
    async fn a_command_that_does_not_wait_is_not_delayed_by_admission() {
        const AT_THE_DOOR: Duration = Duration::from_millis(1_800);
        let mut place = Place::which("/nowhere".as_ref(), true);
        let within = place.shared.timeout;
        assert!(AT_THE_DOOR < within);
        let start = Instant::now();
        let (mut clients, mut told) = (Vec::new(), Vec::new());
        for command in ["TRYLOCK a", "UNLOCK b 1", "RELOCK c 1"] {
            let (mut client, session) = place.connect();
            told.push(place.asks(&mut client, command).await);
            clients.push((client, session));
        }
        sleep(AT_THE_DOOR).await;
        for asker in told {
            assert!(asker.send(place.welcome()).is_ok());
        }
        for (client, _) in &mut clients {
            reads(client, "-UPSTREAM ").await;
        }
        let took = start.elapsed();
        assert!(took > AT_THE_DOOR, "{took:?}");
        assert!(took < within + AT_THE_DOOR / 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_grant_waits_until_the_next_server_accepts_the_password() {
        for is_accepted in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("redis");
            let redis = UnixListener::bind(&path).unwrap();
            let mut place = Place::before(&path);
            let (mut owner, _session) = place.connect();
            let told = place.asks(&mut owner, "LOCK k TOKEN owner").await;
            assert!(told.send(place.welcome()).is_ok());
            reads(&mut owner, "$5\r\nowner\r\n").await;

            let (mut waiting, _session) = place.connect();
            writes(&mut waiting, "AUTH ann pw\r\n").await;
            let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
            reads(&mut relay, "AUTH ann pw\r\n").await;
            writes(&mut relay, "+OK\r\n").await;
            reads(&mut waiting, "+OK\r\n").await;
            let told = place.asks(&mut waiting, "LOCK k TOKEN ann").await;
            let ann = Credentials::new(b"ann", b"pw").unwrap();
            let ann = place.shared.users.verified(&ann, clock::now());
            assert!(told.send(Admission::Welcome(Arc::clone(&ann))).is_ok());
            while place.shared.gate.waiters() == 0 {
                yield_now().await;
            }

            drop((redis, relay));
            std::fs::remove_file(&path).unwrap();
            let told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
            writes(&mut owner, "UNLOCK k owner\r\n").await;
            reads(&mut owner, ":1\r\n").await;
            let mut byte = [0];
            let early = timeout(Duration::from_millis(50), waiting.read(&mut byte)).await;
            assert!(early.is_err(), "{early:?}");
            if is_accepted {
                assert!(told.send(Admission::Welcome(ann)).is_ok());
                reads(&mut waiting, "$3\r\nann\r\n").await;
            } else {
                let text = Bytes::from_static(b"WRONGPASS no");
                assert!(told.send(Admission::Refused(text)).is_ok());
                let end = timeout(SOON, waiting.read(&mut byte)).await.unwrap();
                assert_eq!(end.unwrap(), 0, "it is closed");
                // The grant that it did not get is taken back.
                writes(&mut owner, "LOCK k TOKEN next\r\n").await;
                reads(&mut owner, "$4\r\nnext\r\n").await;
            }
        }
    }

    /// It holds the lock for no owner meanwhile.
    #[tokio::test]
    async fn a_grant_that_waits_too_long_for_the_next_server_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = UnixListener::bind(&path).unwrap();
        let mut place = Place::before(&path);
        let (mut owner, _session) = place.connect();
        let told = place.asks(&mut owner, "LOCK k TOKEN owner").await;
        assert!(told.send(place.welcome()).is_ok());
        reads(&mut owner, "$5\r\nowner\r\n").await;
        let (mut waiting, _session) = place.connect();
        let (relay, _ann) = place.locks_as_ann(&mut waiting, &redis).await;
        writes(&mut waiting, "LOCK k TOKEN ann PX 600000 SESSION\r\n").await;
        while place.shared.gate.waiters() == 0 {
            yield_now().await;
        }

        drop((redis, relay));
        std::fs::remove_file(&path).unwrap();
        let _unanswered = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
        writes(&mut owner, "UNLOCK k owner\r\n").await;
        reads(&mut owner, ":1\r\n").await;
        reads(&mut waiting, "-UPSTREAM ").await;
        writes(&mut owner, "LOCK k TOKEN next\r\n").await;
        reads(&mut owner, "$4\r\nnext\r\n").await;
    }

    async fn reads_up_to(client: &mut UnixStream, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let byte = timeout(SOON, client.read_u8()).await;
            text.push(byte.unwrap_or_else(|_| panic!("no {end:?}")).unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn an_extension_waits_for_the_check_by_the_next_server_but_a_release_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = UnixListener::bind(&path).unwrap();
        let mut place = Place::before(&path);
        let (mut owner, _session) = place.connect();
        let told = place.asks(&mut owner, "LOCK other TOKEN owner").await;
        assert!(told.send(place.welcome()).is_ok());
        reads(&mut owner, "$5\r\nowner\r\n").await;

        let (mut client, _session) = place.connect();
        let (relay, ann) = place.locks_as_ann(&mut client, &redis).await;
        writes(&mut client, "LOCK b TOKEN t\r\n").await;
        reads(&mut client, "$1\r\nt\r\n").await;
        writes(&mut client, "LOCK other TOKEN t\r\n").await;
        while place.shared.gate.waiters() == 0 {
            yield_now().await;
        }

        drop((redis, relay));
        std::fs::remove_file(&path).unwrap();
        let told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
        let holder = |key: &'static str| {
            let key = Bytes::from_static(key.as_bytes());
            place.shared.gate.holder(&LockName { database: 0, key })
        };
        // Both would overtake the LOCK that waits, one after the other.
        let behind = "RELOCK a t PX 600000\r\nUNLOCK b t\r\n";
        writes(&mut client, behind).await;
        let released = async {
            while holder("b").is_some() {
                yield_now().await;
            }
        };
        timeout(SOON, released).await.expect("it is released");
        let left_ms = || holder("a").unwrap().1;
        assert!(left_ms() <= 60_000, "{}", left_ms());
        assert!(told.send(Admission::Welcome(ann)).is_ok());
        writes(&mut owner, "UNLOCK other owner\r\n").await;
        reads(&mut client, "$1\r\nt\r\n:1\r\n:1\r\n").await;
        assert!(left_ms() > 60_000, "{}", left_ms());
    }

    #[tokio::test]
    async fn entries_of_commands_have_the_width_of_the_server_at_hand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = UnixListener::bind(&path).unwrap();
        let mut place = Place::before(&path);
        let (mut client, _session) = place.connect();
        let (mut relay, _ann) = place.locks_as_ann(&mut client, &redis).await;
        writes(&mut client, "COMMAND INFO GET LOCK\r\nPING\r\n").await;
        reads_up_to(&mut relay, "PING\r\n").await;
        let six = ":1\r\n".repeat(6);
        let reply = format!("*2\r\n*7\r\n$3\r\nget\r\n{six}*-1\r\n+PONG\r\n");
        writes(&mut relay, &reply).await;
        let told = reads_up_to(&mut client, "+PONG\r\n").await;
        assert_eq!(told.matches("*7\r\n").count(), 2, "{told}");

        drop((redis, relay));
        std::fs::remove_file(&path).unwrap();
        let _told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
        writes(&mut client, "PING\r\n").await;
        assert!(
            reads_up_to(&mut client, "\r\n")
                .await
                .starts_with("-UPSTREAM ")
        );
        let redis = UnixListener::bind(&path).unwrap();
        writes(&mut client, "COMMAND INFO LOCK\r\n").await;
        let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
        reads_up_to(&mut relay, "ann\r\n$2\r\npw\r\n").await;
        writes(&mut relay, "+OK\r\n").await;
        reads_up_to(&mut relay, "LOCK\r\n").await;
        writes(&mut relay, "*1\r\n*-1\r\n").await;
        reads(&mut client, "*1\r\n*10\r\n").await;
    }

    #[tokio::test]
    async fn a_client_that_is_being_refused_blocks_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = UnixListener::bind(&path).unwrap();
        let mut place = Place::before(&path);
        let (mut first, _session) = place.connect();
        writes(&mut first, "HELLO 3\r\n").await;
        let (mut redis, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
        reads(&mut redis, "HELLO 3\r\n").await;
        let hello = "%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
        writes(&mut redis, hello).await;
        reads(&mut first, hello).await;
        let first_told = place.lock(&mut first, 1).await;
        let (mut second, _session) = place.connect();
        let second_told = place.lock(&mut second, 2).await;
        // Redis sends a part of a message only.
        let half = ">2\r\n$10\r\ninvalidate\r\n";
        writes(&mut redis, half).await;
        reads(&mut first, half).await;
        assert!(first_told.send(place.welcome()).is_ok());
        let_run().await;
        assert!(second_told.send(place.welcome()).is_ok());
        reads(&mut second, "$1\r\n2\r\n").await;
        writes(&mut second, "UNLOCK k 2\r\n").await;
        writes(&mut redis, "_\r\n").await;
        reads(&mut first, "_\r\n$1\r\n1\r\n").await;
    }
}
