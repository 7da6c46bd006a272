//! Gives the crate the commit that it is built from, and the program a version with it. In a packaged crate cargo's
//! own file names the commit, in a checkout git does, elsewhere (such as in a container) the variable
//! `LOCKGATE_BUILD_COMMIT`. Without any of these the version has no commit. Development builds skip the commit, since
//! each new one would rebuild everything.

use std::{env, fs, path::Path, process::Command};

/// Digits of the commit in the version.
const DIGITS: usize = 12;

/// The files and directories that the program is built from.
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
    let (version, commit) = match commit {
        Some(commit) => (format!("{version} ({commit})"), commit),
        None => (version.to_owned(), String::new()),
    };
    // Cargo also sets these variables for every process that it runs, so they must not look like configuration keys.
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={version}");
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={commit}");
}

/// Returns the commit that cargo recorded in a packaged crate.
fn of_package() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    let is_modified = text.contains("\"dirty\": true");
    shown(rest.split('"').next()?, is_modified)
}

/// Returns git's commit, where this directory is itself a checkout and not part of another repository.
fn of_checkout() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    // Checking out another commit changes one of these files; which of them exist depends on the repository.
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

/// Returns the first digits of a commit's name. None where this is not one.
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

/// Cargo counts a missing file as changed in each build.
fn rerun_if_there_and_changed(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}
