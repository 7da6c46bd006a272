//! TLS and the instance's own password.

use std::path::Path;

use super::*;
use crate::transport::tls::{ClientCertificates, ClientFiles, KeyPair, ServerFiles};

const SERVER: &str =
    "tls.listen = \"[::1]:7001\"\ntls.certificate = \"/gate.pem\"\ntls.key = \"/gate.key\"\n";

fn pair(certificate: &str, key: &str) -> KeyPair {
    KeyPair {
        certificate: certificate.into(),
        key: key.into(),
    }
}

#[test]
fn the_files_of_tls_to_clients() {
    let tls = |more: &str| {
        nothing_typed()
            .file(&format!("{SERVER}{more}"))
            .starts()
            .tls
    };
    let files = |clients| ServerFiles {
        pair: pair("/gate.pem", "/gate.key"),
        clients,
    };
    let least = Tls {
        listen: Address::parse("[::1]:7001").unwrap(),
        files: files(ClientCertificates::Off),
        handshake_timeout: Duration::from_secs(10),
    };
    assert_eq!(tls(""), Some(least.clone()));
    let asked = |how: &str| {
        let ca = "tls.client_ca = \"/ca.pem\"\ntls.handshake_timeout = \"1s\"";
        tls(&format!("tls.client_certificates = {how:?}\n{ca}"))
    };
    let with = |clients| Tls {
        files: files(clients),
        handshake_timeout: Duration::from_secs(1),
        ..least.clone()
    };
    let ca = || "/ca.pem".into();
    assert_eq!(
        asked("optional"),
        Some(with(ClientCertificates::Optional(ca())))
    );
    assert_eq!(
        asked("required"),
        Some(with(ClientCertificates::Required(ca())))
    );
    // TLS may be the only listener.
    let alone = nothing_typed().file(&format!("listen = \"off\"\n{SERVER}"));
    assert_eq!(alone.starts().listen, None);
}

#[test]
fn the_files_of_tls_to_redis() {
    let tls = |more: &str| {
        let file = format!("upstream.url = \"rediss://u:p@redis:7\"\n{more}");
        let config = nothing_typed().file(&file).starts();
        assert_eq!(config.upstream.url.to_string(), "rediss://redis:7");
        config.upstream.tls.unwrap()
    };
    let none = ClientFiles {
        authorities: None,
        pair: None,
    };
    let least = UpstreamTls {
        files: none,
        server_name: None,
    };
    assert_eq!(tls(""), least);
    let all = tls(r#"upstream.ca = "/ca.pem"
           upstream.certificate = "/gate.pem"
           upstream.key = "/gate.key"
           upstream.server_name = "other""#);
    let files = ClientFiles {
        authorities: Some("/ca.pem".into()),
        pair: Some(pair("/gate.pem", "/gate.key")),
    };
    let server_name = Some("other".to_owned());
    assert_eq!(all, UpstreamTls { files, server_name });
    assert_eq!(
        nothing_typed().upstream("redis://r").starts().upstream.tls,
        None
    );
}

#[test]
fn related_settings_are_named_together() {
    let server = |more: &str| format!("{SERVER}{more}");
    for (file, key, allowed) in [
        (
            "tls.listen = \"[::1]:7001\"".to_owned(),
            "tls.certificate",
            "tls.listen is given",
        ),
        (
            "tls.certificate = \"/gate.pem\"".to_owned(),
            "tls.certificate",
            "unless tls.listen",
        ),
        (
            SERVER.replace("tls.key", "#"),
            "tls.key",
            "since tls.listen is given",
        ),
        (
            "tls.client_certificates = \"required\"".to_owned(),
            "tls.client_certificates",
            "off, unless",
        ),
        (
            server("tls.client_certificates = \"yes\""),
            "tls.client_certificates",
            "off, optional or required",
        ),
        (
            server("tls.client_certificates = \"required\""),
            "tls.client_ca",
            "are asked for",
        ),
        (
            server("tls.client_ca = \"/ca.pem\""),
            "tls.client_ca",
            "nothing, unless",
        ),
        (
            "upstream.ca = \"/ca.pem\"".to_owned(),
            "upstream.ca",
            "rediss://",
        ),
        (
            "upstream.url = \"redis://r\"\nupstream.ca = \"/ca.pem\"".to_owned(),
            "upstream.ca",
            "rediss://",
        ),
        (
            "upstream.url = \"rediss://r\"\nupstream.certificate = \"/gate.pem\"".to_owned(),
            "upstream.key",
            "(PEM)",
        ),
        (
            "upstream.url = \"rediss://r\"\nupstream.key = \"/gate.key\"".to_owned(),
            "upstream.key",
            "unless upstream.certificate",
        ),
    ] {
        assert_names(&nothing_typed().file(&file).refused(), &[key, allowed]);
    }
}

#[test]
fn the_password_is_named_once_and_shown_nowhere() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"hunter2\r\nhunter3\n").unwrap();
    let in_file = |path: &Path| format!("auth.password_file = {path:?}\n");
    let password = |text: &str| nothing_typed().file(text).starts().password;
    assert_eq!(password(""), None);
    let right = |password: Option<Password>| password.is_some_and(|it| it.is(b"hunter2"));
    assert!(right(password("auth.password = \"hunter2\"")));
    assert!(right(password(&in_file(file.path()))));

    let config = nothing_typed().file("auth.password = \"hunter2\"").starts();
    assert!(!format!("{config:?}").contains("hunter2"));
    let twice = format!("{}auth.password = \"hunter2\"", in_file(file.path()));
    let empty = tempfile::NamedTempFile::new().unwrap();
    let long = format!("auth.password = \"{}\"", "hunter2".repeat(100));
    for (text, words) in [
        (twice, ["auth.password (", "auth.password_file ("]),
        (in_file(Path::new("/nowhere")), ["/nowhere", "No such file"]),
        (in_file(empty.path()), ["auth.password_file", "first line"]),
        (long, ["auth.password", "at most 512 bytes"]),
    ] {
        let line = nothing_typed().file(&text).refused();
        assert_names(&line, &words);
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn the_password_for_redis_may_be_in_a_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"hunter2\r\nhunter3\n").unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let in_file = |url: &str, path: &str| {
        let text = format!("[upstream]\nurl = \"{url}\"\npassword_file = \"{path}\"\n");
        nothing_typed().file(&text)
    };
    let own = |operator: Operator| match operator.starts().upstream.url {
        Upstream::Redis(redis) => redis.own(),
        Upstream::Embedded => panic!("a Redis is named"),
    };
    for (url, user) in [("redis://r", "default"), ("redis://u@r", "u")] {
        let account = Credentials::new(user.as_bytes(), b"hunter2");
        assert_eq!(own(in_file(url, &path)), account, "{url}");
    }

    let empty = tempfile::NamedTempFile::new().unwrap();
    let mut long = tempfile::NamedTempFile::new().unwrap();
    long.write_all(&[b'x'; 100_000]).unwrap();
    let file_key = "upstream.password_file (";
    let in_url = in_file("redis://:hunter4@r", &path);
    let beside = in_file("redis://r", &path).variable("LOCKGATE_UPSTREAM_PASSWORD", "hunter4");
    let flag = in_file("redis://r", &path).upstream("redis://:hunter4@r");
    for (operator, words) in [
        (in_url, [file_key, "that in upstream.url ("]),
        (flag, [file_key, "that in upstream.url (--upstream)"]),
        (
            beside,
            [file_key, "upstream.password (LOCKGATE_UPSTREAM_PASSWORD)"],
        ),
        (in_file("redis://r", "/nowhere"), [file_key, "No such file"]),
        (
            in_file("redis://r", empty.path().to_str().unwrap()),
            [file_key, "first line"],
        ),
        (
            in_file("redis://r", long.path().to_str().unwrap()),
            [file_key, "at most 8192 bytes"],
        ),
    ] {
        let line = operator.refused();
        assert_names(&line, &words);
        assert!(!line.contains("hunter") && !line.contains("xxx"), "{line}");
    }
}

#[test]
fn a_reload_sees_a_password_file_that_changed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let stated = |password: &str| {
        std::fs::write(file.path(), password).unwrap();
        let variable = OsString::from("LOCKGATE_UPSTREAM_PASSWORD_FILE");
        let environment = [(variable, file.path().as_os_str().to_owned())];
        Config::read(Flags::default(), environment).unwrap().1
    };
    let began = stated("hunter2\n");
    assert_eq!(began.changed(&stated("hunter2")), [""; 0]);
    assert_eq!(
        began.changed(&stated("hunter3")),
        ["upstream.password_file"]
    );
}

#[test]
fn a_password_that_clients_do_not_get_is_remarked_on() {
    let remarks = |file: &str| nothing_typed().file(file).starts().remarks().len();
    assert_eq!(remarks(""), 0);
    assert_eq!(remarks("upstream.url = \"redis://u@r\""), 0);
    assert_eq!(remarks("upstream.url = \"redis://:p@r\""), 1);
    assert_eq!(
        remarks("upstream = { url = \"redis://r\", password = \"p\" }"),
        1
    );
    assert_eq!(
        remarks("upstream.url = \"redis://:p@r\"\nauth.password = \"q\""),
        0
    );
}
