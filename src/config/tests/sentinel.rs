//! The URL that names sentinels, and the section `[sentinel]`.

use super::{assert_names, nothing_typed};
use crate::{
    config::{RedisAddress, Upstream},
    transport::endpoint::Place,
};

fn address(url: &str) -> RedisAddress {
    let file = format!("upstream.url = {url:?}\nupstream.server_name = \"redis\"");
    let typed = match url.starts_with("rediss") {
        true => nothing_typed().file(&file),
        false => nothing_typed().upstream(url),
    };
    match typed.starts().upstream.url {
        Upstream::Redis(address) => address,
        Upstream::Embedded => panic!("{url} names a Redis"),
    }
}

#[test]
fn a_url_names_sentinels_the_service_and_the_account_at_redis() {
    for (url, place, tls, account) in [
        ("redis+sentinel://s/m", "s:26379/m", false, None),
        (
            "redis+sentinel://s1:1,10.0.0.1,[::1],[::1]:2/my-Service_1.a",
            "s1:1,10.0.0.1:26379,[::1]:26379,[::1]:2/my-Service_1.a",
            false,
            None,
        ),
        (
            "redis+sentinel://u%3a:p%40:@x@s1,s2/m",
            "s1:26379,s2:26379/m",
            false,
            Some(("u:", "p@:@x")),
        ),
        ("rediss+sentinel://s/m", "s:26379/m", true, None),
        (
            "redis-sentinel://s1,s2#m",
            "s1:26379,s2:26379/m",
            false,
            None,
        ),
        ("redis-sentinel://s/#m", "s:26379/m", false, None),
        (
            "rediss-sentinel://u:p@s:1?sentinelMasterId=m",
            "s:1/m",
            true,
            Some(("u", "p")),
        ),
    ] {
        let parsed = address(url);
        assert!(matches!(parsed.place, Place::Master { .. }), "{url}");
        assert_eq!(
            (parsed.place.to_string().as_str(), parsed.tls),
            (place, tls)
        );
        let said = parsed.user.as_deref().zip(parsed.password.as_deref());
        assert_eq!(said, account, "{url}");
    }
}

#[test]
fn a_url_that_names_no_service_or_no_sentinel_is_refused_without_showing_its_password() {
    let many = vec!["s"; 17].join(",");
    for url in [
        "redis+sentinel://u:hunter2@s",
        "redis+sentinel://u:hunter2@s/",
        "redis+sentinel://u:hunter2@s/m/0",
        "redis+sentinel://u:hunter2@s/m?db=1",
        "redis+sentinel://u:hunter2@/m",
        "redis+sentinel://u:hunter2@s1,,s2/m",
        "redis+sentinel://u:hunter2@s:0/m",
        "redis+sentinel://u:hunter2@s:x/m",
        "redis+sentinel://u:hunter2@s#m",
        "redis-sentinel://u:hunter2@s/0#m",
        "sentinel://:hunter2@s1;sentinel://:hunter2@s2",
        &format!("redis+sentinel://u:hunter2@{many}/m"),
    ] {
        let line = nothing_typed().upstream(url).refused();
        assert_names(&line, &["upstream.url", "redis+sentinel://", "/service"]);
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn the_section_is_refused_where_nobody_would_read_it() {
    for line in [
        "sentinel.user = \"u\"",
        "sentinel.password = \"hunter2\"",
        "sentinel.isolated = \"stop\"",
        "sentinel.tls = \"off\"",
    ] {
        let file = format!("upstream.url = \"redis://r\"\n{line}");
        let (key, _) = line.split_once(' ').unwrap();
        let refused = nothing_typed().file(&file).refused();
        assert_names(&refused, &[key, "unless upstream.url is redis+sentinel://"]);
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn the_account_at_the_sentinels_is_not_that_at_redis() {
    let url = "upstream.url = \"redis+sentinel://u:p@s/m\"\n";
    let own = |lines: &str| {
        let section = nothing_typed().file(&format!("{url}{lines}")).starts();
        let own = section.upstream.sentinel.unwrap().own?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((text(own.name()), text(own.password())))
    };
    let account = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
    assert_eq!(own(""), None);
    assert_eq!(own("sentinel.user = \"s\""), account("s", ""));
    assert_eq!(own("sentinel.password = \"q\""), account("default", "q"));
    let both = "sentinel.user = \"s\"\nsentinel.password = \"q\"";
    assert_eq!(own(both), account("s", "q"));
}

#[test]
fn tls_needs_a_name_since_sentinels_tell_addresses() {
    let file = "upstream.url = \"rediss+sentinel://s/m\"\n";
    let refused = nothing_typed().file(file).refused();
    assert_names(&refused, &["upstream.server_name", "certificate"]);
    let tls = |lines: &str| {
        let file = format!("{file}upstream.server_name = \"redis\"\n{lines}");
        nothing_typed()
            .file(&file)
            .starts()
            .upstream
            .sentinel
            .unwrap()
            .tls
    };
    assert!(tls(""));
    assert!(!tls("sentinel.tls = \"off\""));
}
