//! `--check-config`.

use std::{
    fs::{self, File},
    net::TcpListener,
};

use crate::support::{Authority, Ended, RedisServer, free_address, program, run_to_its_end, text};

fn checked(flags: &[&str], environment: &[(&str, &str)]) -> Ended {
    run_to_its_end(&[&["--check-config"], flags].concat(), environment)
}

#[test]
fn a_valid_configuration_is_shown_without_secrets() {
    let authority = Authority::new();
    let pair = authority.issue("gate", "127.0.0.1");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("gate.sock");
    let (address, tls_address) = (free_address().to_string(), free_address().to_string());
    let ended = checked(
        &["--listen", &address],
        &[
            (
                "LOCKGATE_UPSTREAM",
                "redis://app:hunter2@redis.invalid:7000",
            ),
            ("LOCKGATE_AUTH_PASSWORD", "hunter3"),
            ("LOCKGATE_TLS_LISTEN", &tls_address),
            ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
            ("LOCKGATE_TLS_KEY", text(&pair.key)),
            ("LOCKGATE_UNIXSOCKET", text(&socket)),
        ],
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr, "");
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "the configuration is right",
            &format!("would listen on {address}"),
            &format!("would listen on {tls_address} (TLS)"),
            &format!("would listen on {}", socket.display()),
            "upstream: redis://redis.invalid:7000",
        ]
    );
    assert!(!socket.exists(), "nothing was listened on");
}

/// `lockgate --check-config | head -1`, and a disk that is full.
#[test]
fn how_it_ends_does_not_depend_on_who_reads_it() {
    for (flag, code) in [("127.0.0.1:0", 0), ("nonsense", 2)] {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let mut check = program();
        check.args(["--check-config", "--listen", flag]);
        let ended = check.stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(ended.code(), Some(code), "{flag}");
        let mut start = program();
        start.args(["--listen", flag]).stderr(full());
        if code != 0 {
            assert_eq!(start.status().unwrap().code(), Some(code), "{flag}");
        }
    }
}

/// It is run beside the lockgate that serves.
#[test]
fn it_neither_listens_nor_connects() {
    let redis = TcpListener::bind("127.0.0.1:0").unwrap();
    redis.set_nonblocking(true).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let upstream = format!("redis://{}", redis.local_addr().unwrap());
    let ended = checked(&["--listen", &taken, "--upstream", &upstream], &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(redis.accept().is_err(), "nobody connected");
}

#[test]
fn each_thing_that_is_wrong_is_one_line_and_the_exit_code_that_of_a_start() {
    let authority = Authority::new();
    let pair = authority.issue("gate", "127.0.0.1");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("not-a-key.pem");
    fs::write(&file, "hunter2").unwrap();
    let nowhere = directory.path().join("nowhere/gate.sock");
    let upstream = "rediss://redis.invalid";
    type Wrong<'a> = (&'a [(&'a str, &'a str)], i32, &'a [&'a str]);
    let wrong: [Wrong; 7] = [
        // One of each section, and every key that is not known; not what only follows from another.
        (
            &[
                ("LOCKGATE_TLS_LISTEN", "nowhere"),
                ("LOCKGATE_TLS_CERTIFICATE", "/no/file"),
                ("LOCKGATE_LOCK_LEASE", "soon"),
                ("LOCKGATE_LOCK_LEESE", "2s"),
                ("LOCKGATE_LOCK_LAESE", "2s"),
                ("LOCKGATE_LIMITS_CLIENTS", "0"),
            ],
            2,
            &[
                "tls.listen",
                "LOCK_LEASE",
                "LOCK_LEESE",
                "LOCK_LAESE",
                "limits.clients",
            ],
        ),
        (
            &[("LOCKGATE_LOCK_LEESE", "2s")],
            2,
            &["LOCKGATE_LOCK_LEESE"],
        ),
        (
            &[("LOCKGATE_AUTH_PASSWORD_FILE", "/no/file")],
            4,
            &["/no/file"],
        ),
        (
            &[
                ("LOCKGATE_TLS_LISTEN", "127.0.0.1:0"),
                ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
                ("LOCKGATE_TLS_KEY", text(&file)),
            ],
            4,
            &["not-a-key.pem"],
        ),
        (
            &[
                ("LOCKGATE_UPSTREAM", upstream),
                ("LOCKGATE_UPSTREAM_CA", "/no/ca.pem"),
            ],
            4,
            &["/no/ca.pem"],
        ),
        (
            &[("LOCKGATE_UNIXSOCKET", text(&file))],
            3,
            &["not-a-key.pem"],
        ),
        (
            &[
                ("LOCKGATE_UPSTREAM", upstream),
                ("LOCKGATE_UPSTREAM_CA", "/no/ca.pem"),
                ("LOCKGATE_UNIXSOCKET", text(&nowhere)),
            ],
            4,
            &["/no/ca.pem", "nowhere/gate.sock"],
        ),
    ];
    for (environment, code, names) in wrong {
        let ended = checked(&["--listen", "127.0.0.1:0"], environment);
        assert_eq!(ended.code, Some(code), "{environment:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{environment:?}");
        for name in names {
            assert!(ended.stderr.contains(name), "{name}: {}", ended.stderr);
        }
        let lines = ended.stderr.lines().count();
        assert_eq!(lines, names.len(), "{}", ended.stderr);
        assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
        let started = run_to_its_end(&["--listen", "127.0.0.1:0"], environment);
        assert_eq!(
            started.code,
            Some(code),
            "{environment:?}: {}",
            started.stderr
        );
    }
}

/// The file of the old one is taken away by whoever starts, not by whoever checks.
#[test]
fn a_socket_in_use_is_left_alone() {
    let redis = RedisServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("gate.sock");
    let _used = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let environment = [("LOCKGATE_UNIXSOCKET", text(&socket))];
    let ended = checked(&["--upstream", &redis.url()], &environment);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok());
}
