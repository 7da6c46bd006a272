//! lockgate from redis-rs, on one connection that tasks share: main HOST PORT locks|everything
//! [PASSWORD]. Exits nonzero where something is not as promised. `locks` tries what works without a
//! Redis behind lockgate, `everything` ordinary commands, too.

use std::{
    env,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::{
    AsyncCommands, AsyncConnectionConfig, Client, Commands, ConnectionAddr, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::MultiplexedConnection, cmd, pipe,
};
use tokio::{sync::mpsc, time::sleep};

async fn lock(redis: &mut MultiplexedConnection, key: &str, token: &str) -> RedisResult<String> {
    let lock = cmd("LOCK").arg(key).arg("TOKEN").arg(token).to_owned();
    lock.query_async(redis).await
}

async fn unlock(redis: &mut MultiplexedConnection, key: &str, token: &str) -> RedisResult<i64> {
    let unlock = cmd("UNLOCK").arg(key).arg(token).to_owned();
    unlock.query_async(redis).await
}

/// Connected, without redis-rs's limit of 500 ms for a reply.
async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    connect_with(client, AsyncConnectionConfig::new()).await
}

async fn connect_with(
    client: &Client,
    config: AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let config = config.set_response_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Returns when so many wait for the lock.
async fn until_waiting(
    redis: &mut MultiplexedConnection,
    key: &str,
    waiters: i64,
) -> RedisResult<()> {
    loop {
        let info: Value = cmd("LOCKINFO").arg(key).query_async(redis).await?;
        // Pairs: RESP2 has no maps.
        let fields = info
            .into_map_iter()
            .unwrap_or_else(|_| panic!("LOCKINFO is no map"));
        let is_waiters = |name: &Value| *name == Value::BulkString(b"waiters".to_vec());
        let found = fields.into_iter().find(|(name, _)| is_waiters(name));
        if found.map(|(_, number)| number) == Some(Value::Int(waiters)) {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn lock_commands(redis: &mut MultiplexedConnection) -> RedisResult<()> {
    let key = "rust:k";
    let token: String = cmd("LOCK").arg(key).query_async(redis).await?;
    assert_eq!(token.len(), 36, "a UUID was expected, not {token}");
    let none: Option<String> = cmd("TRYLOCK").arg(key).query_async(redis).await?;
    assert_eq!(none, None, "granted twice");
    let none: Option<String> = cmd("LOCK")
        .arg(key)
        .arg("WAIT")
        .arg(50)
        .query_async(redis)
        .await?;
    assert_eq!(none, None, "granted twice");
    assert_eq!(
        unlock(redis, key, "other").await?,
        0,
        "released by a stranger"
    );
    assert_eq!(unlock(redis, key, &token).await?, 1, "not released");
    assert_eq!(unlock(redis, key, &token).await?, 0, "released twice");
    let mut last = 0;
    for _ in 0..2 {
        let (token, fence): (String, i64) =
            cmd("LOCK").arg(key).arg("FENCE").query_async(redis).await?;
        assert!(fence > last, "fences rise: {last}, {fence}");
        assert_eq!(unlock(redis, key, &token).await?, 1, "not released");
        last = fence;
    }
    let error: RedisError = cmd("LOCK").query_async::<Value>(redis).await.unwrap_err();
    assert_eq!(
        error.detail(),
        Some("wrong number of arguments for 'lock' command")
    );
    let error: RedisError = cmd("LOCK")
        .arg(key)
        .arg("SOON")
        .query_async::<Value>(redis)
        .await
        .unwrap_err();
    assert_eq!(error.detail(), Some("syntax error"));
    Ok(())
}

/// Tasks that share a connection take turns with a counter, read and written in two steps.
async fn one_after_the_other(redis: &MultiplexedConnection) -> RedisResult<()> {
    const TASKS: u32 = 8;
    const TIMES: u32 = 25;
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    COUNTER.store(0, Ordering::SeqCst);
    let tasks = (0..TASKS).map(|task| {
        let mut redis = redis.clone();
        tokio::spawn(async move {
            for time in 0..TIMES {
                let token = format!("{task}-{time}");
                lock(&mut redis, "rust:counter", &token).await?;
                let value = COUNTER.load(Ordering::SeqCst);
                sleep(Duration::from_millis(1)).await;
                COUNTER.store(value + 1, Ordering::SeqCst);
                assert_eq!(
                    unlock(&mut redis, "rust:counter", &token).await?,
                    1,
                    "not released"
                );
            }
            Ok::<(), RedisError>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task does not panic")?;
    }
    assert_eq!(COUNTER.load(Ordering::SeqCst), TASKS * TIMES);
    Ok(())
}

async fn shared_connection(
    redis: &mut MultiplexedConnection,
    other: &mut MultiplexedConnection,
) -> RedisResult<()> {
    let key = "rust:shared";
    lock(redis, key, "holder").await?;
    let mut shared = redis.clone();
    let waiter = tokio::spawn(async move { lock(&mut shared, "rust:shared", "waiter").await });
    until_waiting(other, key, 1).await?;
    // What belongs to the work under the lock is not overtaken, so this can never be granted.
    let (work, released): (String, i64) = pipe()
        .cmd("ECHO")
        .arg("work")
        .cmd("UNLOCK")
        .arg(key)
        .arg("holder")
        .query_async(redis)
        .await?;
    assert_eq!((&*work, released), ("work", 1), "replies in order");
    let error = waiter
        .await
        .expect("the waiter does not panic")
        .unwrap_err();
    assert_eq!(error.code(), Some("DEADLOCK"), "{error}");
    Ok(())
}

/// redis-rs gives up on a reply, not on the connection: the LOCK waits on at lockgate, and the same
/// again on that connection has the lock when it is its turn.
async fn retry_keeps_its_place(
    redis: &mut MultiplexedConnection,
    client: &Client,
) -> RedisResult<()> {
    let key = "rust:retry";
    let (mut other, mut third) = (connect(client).await?, connect(client).await?);
    lock(&mut other, key, "holder").await?;
    let mut impatient = redis.clone();
    impatient.set_response_timeout(Duration::from_millis(200));
    let giving_up = tokio::spawn(async move { lock(&mut impatient, "rust:retry", "retry").await });
    until_waiting(&mut other, key, 1).await?;
    let behind = tokio::spawn(async move { lock(&mut third, "rust:retry", "behind").await });
    until_waiting(&mut other, key, 2).await?;
    let error = giving_up.await.expect("no panic").unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let mut patient = redis.clone();
    let again = tokio::spawn(async move { lock(&mut patient, "rust:retry", "retry").await });
    assert_eq!(unlock(&mut other, key, "holder").await?, 1, "not released");
    assert_eq!(again.await.expect("no panic")?, "retry");
    assert!(!behind.is_finished(), "granted to the one behind it");
    assert_eq!(unlock(redis, key, "retry").await?, 1, "held");
    assert_eq!(behind.await.expect("no panic")?, "behind");
    assert_eq!(
        unlock(&mut other, key, "behind").await?,
        1,
        "from any connection"
    );
    Ok(())
}

async fn ordinary_commands(redis: &mut MultiplexedConnection) -> RedisResult<()> {
    let (key, value) = ("rust:data", "\r\n$-1\r\n".repeat(20_000));
    let _: () = redis.set(key, &value).await?;
    assert!(redis.get::<_, String>(key).await? == value, "a long value");
    let error = redis.lpush::<_, _, Value>(key, "x").await.unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
    lock(redis, "rust:k", "t").await?;
    assert_eq!(
        redis.get::<_, String>("rust:k").await?,
        "t",
        "the lock is a key of this database"
    );
    assert_eq!(unlock(redis, "rust:k", "t").await?, 1);
    let mut pipeline = pipe();
    pipeline
        .set(key, 1)
        .cmd("LOCK")
        .arg("rust:k")
        .arg("TOKEN")
        .arg("piped");
    pipeline
        .incr(key, 1)
        .cmd("UNLOCK")
        .arg("rust:k")
        .arg("piped");
    let replies: (String, String, i64, i64) = pipeline.query_async(redis).await?;
    assert_eq!(replies, ("OK".into(), "piped".into(), 2, 1), "a pipeline");
    let replies: (i64, i64) = pipe()
        .atomic()
        .incr(key, 1)
        .get(key)
        .query_async(redis)
        .await?;
    assert_eq!(replies, (3, 3), "a transaction");
    let discarded = pipe()
        .atomic()
        .cmd("LOCK")
        .arg("rust:k")
        .query_async::<Value>(redis)
        .await;
    assert!(discarded.is_err(), "LOCK inside MULTI: {discarded:?}");
    redis.del(key).await
}

/// What takes a connection of its own, blocking as most programs have it.
fn on_connections_of_their_own(client: &Client) -> RedisResult<()> {
    let (mut redis, mut other) = (client.get_connection()?, client.get_connection()?);
    let key = "rust:n";
    let _: () = cmd("WATCH").arg(key).query(&mut redis)?;
    let _: () = other.set(key, "other")?;
    let discarded: Option<Value> = pipe().atomic().set(key, "never").query(&mut redis)?;
    assert_eq!(
        (discarded, other.get(key)?),
        (None, "other".to_owned()),
        "WATCH discards"
    );
    let _: () = other.del(key)?;

    let mut subscriber = client.get_connection()?;
    let mut listener = subscriber.as_pubsub();
    listener.subscribe(&["rust:a", "rust:b"])?;
    for channel in ["rust:a", "rust:b"] {
        assert_eq!(other.publish::<_, _, i64>(channel, "hello")?, 1);
        assert_eq!(listener.get_message()?.get_channel_name(), channel);
    }
    listener.unsubscribe(&["rust:a", "rust:b"])?;

    std::thread::scope(|threads| {
        let popping = threads.spawn(|| redis.blpop("rust:list", 10.0));
        while cmd("INFO")
            .arg("clients")
            .query::<String>(&mut other)?
            .contains("blocked_clients:0")
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _: () = other.rpush("rust:list", "x")?;
        let popped: (String, String) = popping.join().expect("no panic")?;
        assert_eq!(popped, ("rust:list".into(), "x".into()));
        Ok(())
    })
}

/// The push that a lock bound to the connection is lost comes, and disturbs nothing.
async fn session_lost(client: &Client, other: &mut MultiplexedConnection) -> RedisResult<()> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut redis =
        connect_with(client, AsyncConnectionConfig::new().set_push_sender(tell)).await?;
    let lock = cmd("LOCK")
        .arg("rust:session")
        .arg("TOKEN")
        .arg("t")
        .arg("SESSION")
        .to_owned();
    let _: String = lock.query_async(&mut redis).await?;
    assert_eq!(other.del::<_, i64>("rust:session").await?, 1);
    for i in 0..200 {
        assert_eq!(cmd("ECHO").arg(i).query_async::<i64>(&mut redis).await?, i);
    }
    let PushInfo { kind, data } = told.recv().await.expect("a push");
    let what = ["rust:session", "t"].map(|text| Value::BulkString(text.into()));
    assert_eq!(
        (kind, &data[..]),
        (PushKind::Other("lock-lost".into()), &what[..])
    );
    assert_eq!(unlock(&mut redis, "rust:session", "t").await?, 0, "lost");
    Ok(())
}

async fn run(client: Client, protocol: ProtocolVersion, everything: bool) -> RedisResult<()> {
    let (mut redis, mut other) = (connect(&client).await?, connect(&client).await?);
    lock_commands(&mut redis).await?;
    one_after_the_other(&redis).await?;
    shared_connection(&mut redis, &mut other).await?;
    retry_keeps_its_place(&mut redis, &client).await?;
    if everything {
        ordinary_commands(&mut redis).await?;
        if protocol == ProtocolVersion::RESP3 {
            session_lost(&client, &mut other).await?;
        }
        let blocking = tokio::task::spawn_blocking(move || on_connections_of_their_own(&client));
        blocking.await.expect("no panic")?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> RedisResult<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, host, port, what, password @ ..] = &arguments[..] else {
        panic!("HOST PORT locks|everything [PASSWORD]");
    };
    let address = ConnectionAddr::Tcp(host.clone(), port.parse().expect("a port"));
    for (protocol, database) in [(ProtocolVersion::RESP2, 0), (ProtocolVersion::RESP3, 3)] {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(protocol)
            .set_db(database);
        if let [password] = password {
            settings = settings.set_password(password);
        }
        let client = Client::open(
            address
                .clone()
                .into_connection_info()?
                .set_redis_settings(settings),
        )?;
        run(client, protocol, what == "everything").await?;
    }
    println!("redis-rs: right");
    Ok(())
}
