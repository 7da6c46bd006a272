//! Redis's own figures, from `INFO`: its version, its CPU time, and how often it executed each command. Two looks
//! make a measure.
//!
//! Redis counts the calls of a script as if a client had sent them. Here a script is one command, as it is for its
//! sender: the calls of the script by which spinning clients release are left out of the count, and show in the CPU
//! time. lockgate's scripts call many, so there lockgate's own count is used.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::timeout;

use super::client::{Client, Reply, Target, Trouble};

/// The calls of the script by which a spinning client releases.
const IN_RELEASE: [&str; 2] = ["get", "del"];

/// Bound on a reply. Redis may be busy: its load is what the demo measures.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The connection for looks.
#[derive(Debug)]
pub(super) struct Observer {
    client: Client,
    answer_within: Duration,
}

/// Redis's figures at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// Such as `Redis 7.0.15`.
    pub(super) server: String,
    /// CPU time of the whole server since its start.
    cpu: Duration,
    /// How often each command was executed since the server's start.
    calls: BTreeMap<String, u64>,
    /// Most clients at a time, where Redis reports it.
    pub(super) most_clients: Option<usize>,
    /// Connected clients.
    pub(super) clients: usize,
}

/// Redis's work between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    pub(super) cpu: Duration,
    /// Commands of all clients, without the looks and the calls of the spinning clients' script.
    pub(super) commands: u64,
}

impl Observer {
    pub(super) async fn connect(target: &Target) -> Result<Self, Trouble> {
        let client = Client::connect(target).await?;
        Ok(Self {
            client,
            answer_within: ANSWER_WITHIN,
        })
    }

    /// Takes a look. The next look counts this one.
    pub(super) async fn look(&mut self) -> Result<Look, Trouble> {
        match self.call(&["INFO", "all"]).await? {
            Reply::Text(text) => {
                Look::parse(&String::from_utf8_lossy(&text)).ok_or(Trouble::Strange)
            }
            _ => Err(Trouble::Strange),
        }
    }

    /// Sends any other command, outside of a measure.
    pub(super) async fn call(&mut self, words: &[&str]) -> Result<Reply, Trouble> {
        let answer = timeout(self.answer_within, self.client.call(words)).await;
        answer.map_err(|_| Trouble::Late(self.answer_within))?
    }
}

impl Look {
    /// Reads a reply to `INFO`. None where it lacks a figure.
    fn parse(text: &str) -> Option<Self> {
        let fields: BTreeMap<_, _> = text.lines().filter_map(|l| l.split_once(':')).collect();
        let seconds = |name| fields.get(name)?.parse::<f64>().ok();
        let cpu = seconds("used_cpu_user")? + seconds("used_cpu_sys")?;
        let number = |name| fields.get(name)?.parse::<usize>().ok();
        let server = match (fields.get("valkey_version"), fields.get("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version?),
        };
        let calls = |(name, numbers): (&&str, &&str)| {
            let name = name.strip_prefix("cmdstat_")?;
            let calls = numbers.strip_prefix("calls=")?.split(',').next()?;
            Some((name.to_owned(), calls.parse().ok()?))
        };
        let calls: BTreeMap<_, _> = fields.iter().filter_map(calls).collect();
        (!calls.is_empty()).then_some(())?;
        Some(Self {
            server,
            cpu: Duration::try_from_secs_f64(cpu).ok()?,
            calls,
            most_clients: number("maxclients"),
            clients: number("connected_clients").unwrap_or(0),
        })
    }

    /// Returns Redis's work from this look to a later one.
    pub(super) fn until(&self, later: &Self) -> Used {
        let sent = later.calls.iter();
        let sent = sent.filter(|(name, _)| !IN_RELEASE.contains(&name.as_str()));
        let counted = sent.map(|(name, calls)| {
            let before = self.calls.get(name).copied().unwrap_or(0);
            // The figures may have been reset meanwhile.
            calls.saturating_sub(before)
        });
        Used {
            cpu: later.cpu.saturating_sub(self.cpu),
            // Without the look itself.
            commands: counted.sum::<u64>().saturating_sub(1),
        }
    }

    /// Returns how many commands Redis executed until a later look, if the demo sent only the look.
    pub(super) fn others_until(&self, later: &Self) -> u64 {
        let sum = |look: &Self| look.calls.values().sum::<u64>();
        sum(later).saturating_sub(sum(self)).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use lockgate::transport::endpoint::{Endpoint, Place};
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    const BEFORE: &str = "# Server\r\nredis_version:7.0.15\r\n# Clients\r\nconnected_clients:3\r\nmaxclients:10000\r\n\
        # CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\n# Commandstats\r\n\
        cmdstat_set:calls=10,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_get:calls=4,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_info:calls=1,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n";

    #[test]
    fn two_looks_make_a_measure() {
        let before = Look::parse(BEFORE).unwrap();
        assert_eq!(before.server, "Redis 7.0.15");
        assert_eq!((before.clients, before.most_clients), (3, Some(10_000)));
        let after = BEFORE
            .replace("user:2.25", "user:2.75")
            .replace("set:calls=10", "set:calls=30")
            .replace("get:calls=4", "get:calls=9")
            .replace("info:calls=1", "info:calls=2")
            + "cmdstat_evalsha:calls=5,usec=1\r\n";
        let after = Look::parse(&after).unwrap();
        let used = before.until(&after);
        assert_eq!(used.cpu, Duration::from_millis(500));
        assert_eq!(used.commands, 25, "SET and EVALSHA, neither GET nor INFO");
        assert_eq!(before.others_until(&after), 30);
    }

    #[tokio::test]
    async fn a_redis_that_hangs_is_not_waited_for_for_ever() {
        let redis = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port: redis.local_addr().unwrap().port(),
        };
        let target = Target {
            endpoint: Endpoint::new(place, None),
            user: None,
            password: None,
            within: Duration::from_secs(60),
        };
        let connecting = Observer::connect(&target);
        let greets = async {
            let (mut stream, _) = redis.accept().await.unwrap();
            stream.write_all(b"+PONG\r\n").await.unwrap();
            stream
        };
        let (observer, _silent) = tokio::join!(connecting, greets);
        let mut observer = observer.unwrap();
        assert_eq!(observer.answer_within, ANSWER_WITHIN);
        observer.answer_within = Duration::from_millis(50);
        let trouble = observer.look().await.unwrap_err();
        assert!(matches!(trouble, Trouble::Late(_)), "{trouble}");
    }

    #[test]
    fn missing_sources_are_not_measured() {
        for missing in ["used_cpu_user", "redis_version", "cmdstat_"] {
            assert_eq!(Look::parse(&BEFORE.replace(missing, "x")), None);
        }
    }

    #[test]
    fn valkey_is_called_by_its_name() {
        let look = Look::parse(&format!("{BEFORE}valkey_version:8.0.1\r\n")).unwrap();
        assert_eq!(look.server, "Valkey 8.0.1");
    }
}
