//! Tells the program its version with the commit that it is built of: what git says in a checkout, what cargo
//! wrote into a packaged crate, else (in a container, say) what the variable `LOCKGATE_BUILD_COMMIT` says,
//! and nothing where nobody knows. Builds for development do not ask, or each commit would build
//! everything anew.

use std::{env, fs, path::Path, process::Command};

/// Digits of the commit that are shown.
const DIGITS: usize = 12;

/// What the program is built of.
const SOURCES: [&str; 4] = ["src", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    for source in SOURCES {
        rerun_if_there_and_changed(source);
    }
    println!("cargo::rerun-if-env-changed=LOCKGATE_BUILD_COMMIT");
    let version = env!("CARGO_PKG_VERSION");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match is_release {
        true => of_package().or_else(of_checkout).or_else(of_environment),
        false => None,
    };
    let version = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    // Cargo gives it to whatever it runs, too: it must not look like a key of the configuration.
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={version}");
}

/// Cargo says so in the packages that it makes.
fn of_package() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    let is_modified = text.contains("\"dirty\": true");
    shown(rest.split('"').next()?, is_modified)
}

/// Git says so, where this directory is a checkout, not merely part of somebody else's.
fn of_checkout() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    // What changes whenever another commit is checked out; which of these there are depends.
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    for name in ["HEAD", "logs/HEAD", "packed-refs", branch.as_str()] {
        rerun_if_there_and_changed(&git(&["rev-parse", "--git-path", name])?);
    }
    let status = ["status", "--porcelain", "--"];
    let is_modified = !git(&[&status[..], &SOURCES[..]].concat())?.is_empty();
    shown(&git(&["rev-parse", "HEAD"])?, is_modified)
}

fn of_environment() -> Option<String> {
    shown(&env::var("LOCKGATE_BUILD_COMMIT").ok()?, false)
}

/// The beginning of a commit's name; anything else is none.
fn shown(commit: &str, is_modified: bool) -> Option<String> {
    let is_name = commit.len() >= DIGITS && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let with = if is_modified { ", modified" } else { "" };
    is_name.then(|| format!("{}{with}", &commit[..DIGITS]))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// A file that is not there would count as changed each time.
fn rerun_if_there_and_changed(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}
