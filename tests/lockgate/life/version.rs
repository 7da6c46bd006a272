//! `--version`, what shells complete, and the manual pages.

use std::process::Command;

use crate::support::run_to_its_end;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Builds for development do not tell it, nor do those of whoever has no git.
#[test]
fn a_released_version_tells_the_commit_that_it_was_built_of() {
    let ended = run_to_its_end(&["--version"], &[]);
    assert_eq!(ended.code, Some(0));
    let version = ended.stdout.trim();
    let bare = concat!("lockgate ", env!("CARGO_PKG_VERSION"));
    let head = git(&["rev-parse", "HEAD"]);
    let is_checkout = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(".git")
        .exists();
    match head {
        Some(head) if is_checkout && !cfg!(debug_assertions) => {
            let commit = format!("{bare} ({}", &head[..12]);
            assert!(
                version == format!("{commit})") || version == format!("{commit}, modified)"),
                "{version}, at {head}"
            );
        }
        _ => assert_eq!(version, bare),
    }
}

/// bash itself runs its script.
#[test]
fn shells_complete_flags_and_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run_to_its_end(&["completions", shell], &[]);
        assert_eq!(ended.code, Some(0), "{shell}: {}", ended.stderr);
        for word in ["check-config", "upstream", "completions"] {
            assert!(ended.stdout.contains(word), "{shell}: {word}");
        }
    }
    let script = "source <(\"$1\" completions bash); COMP_WORDS=(lockgate --che); COMP_CWORD=1; \
                  _lockgate lockgate --che lockgate; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_lockgate")])
        .output()
        .expect("bash starts");
    let completed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(completed.trim(), "--check-config", "{output:?}");

    let ended = run_to_its_end(&["completions", "tcsh"], &[]);
    assert_eq!(ended.code, Some(2));
    let mixed = run_to_its_end(&["--listen", "127.0.0.1:0", "completions", "bash"], &[]);
    assert_eq!(mixed.code, Some(2), "{}", mixed.stderr);
}

/// `tests/release/run` lets `man` show the pages.
#[test]
fn the_manual_has_a_page_for_the_program_and_each_subcommand() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let ended = run_to_its_end(&["man", path], &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let main = page("lockgate.1");
    for words in [
        "LOCKGATE_LOCK_LEASE",
        "check\\-config",
        "Exit codes",
        "lockgate\\-demo(1)",
    ] {
        assert!(main.contains(words), "{words}: {main}");
    }
    for name in [
        "lockgate-demo.1",
        "lockgate-doctor.1",
        "lockgate-completions.1",
        "lockgate-man.1",
    ] {
        assert!(page(name).contains(".SH SYNOPSIS"), "{name}");
    }

    let nowhere = run_to_its_end(&["man", "/nonexistent"], &[]);
    assert_eq!(nowhere.code, Some(1));
    assert!(
        nowhere.stderr.contains("/nonexistent"),
        "{}",
        nowhere.stderr
    );
}
