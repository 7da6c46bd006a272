//! lockgate in another program.

use crate::support::Machine;

#[path = "../../examples/embedded.rs"]
mod example;

#[test]
fn the_example_takes_turns_and_ends() {
    let _machine = Machine::shared();
    example::main().unwrap();
}
