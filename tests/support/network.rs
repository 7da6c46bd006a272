//! A network of a test's own: there it runs once more, as the only one, and nobody else is disturbed.

use std::process::Command;

use super::Machine;

/// Set where the network is one of the test's own.
const OWN: &str = "A_NETWORK_OF_ITS_OWN";

/// Whether this is run in a network of its own, and where files are mounted for nobody else, after the shell made of it
/// what the test needs; if not, it has been, as the test of this name (with its modules).
pub(crate) fn in_a_network_of_its_own(test: &str, shell: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        return true;
    }
    let _machine = Machine::shared();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net", "--mount", "sh", "-e", "-c"])
        .arg(format!("{shell}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(OWN, "yes")
        .output()
        .expect("unshare starts; it is part of util-linux");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    false
}
