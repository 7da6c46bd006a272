//! SIGHUP: the program reads and checks the configuration again, with the files that it names. On an error one log
//! line names it, and everything stays as it was. Otherwise the keys that can change at run time are in force when
//! the reload is done, and the log names every changed key that needs a restart.

use std::{env, sync::Arc};

use lockgate::{
    Config, Error, Reloads,
    config::{Flags, StatedSettings},
    server::{files, reload::RELOADED},
};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::log::Log;

/// The handler of SIGHUP.
pub(crate) struct Reloader {
    flags: Flags,
    began_with: Arc<Began>,
    log: Log,
    reloads: Reloads,
}

/// The configuration that the program started with.
pub(crate) struct Began {
    /// The text of each key.
    pub(crate) said: StatedSettings,
    /// Whether clients are asked for a password.
    pub(crate) asks_for_password: bool,
}

impl Reloader {
    pub(crate) fn new(flags: Flags, began_with: Began, log: Log, reloads: Reloads) -> Self {
        Self {
            flags,
            began_with: Arc::new(began_with),
            log,
            reloads,
        }
    }

    /// Returns the error of an instance that cannot run, with the origin of the key that it is about.
    pub(crate) fn explain(&self, error: &Error) -> String {
        self.began_with.said.explain(error)
    }

    /// Reloads the configuration, and returns it once it is in force. None: everything stays as it was.
    pub(crate) async fn reload(&self) -> Option<Config> {
        let (flags, began_with) = (self.flags.clone(), Arc::clone(&self.began_with));
        // Reading the files blocks. Nothing in it panics.
        let read = spawn_blocking(move || read(flags, &began_with)).await;
        let (config, needs_start) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                warn!("SIGHUP: everything stays as it was: {error}");
                return None;
            }
            Err(_) => return None,
        };
        self.log.change(&config.log);
        if !self.reloads.apply(config.clone()).await {
            return None;
        }
        if !needs_start.is_empty() {
            let keys = needs_start.join(", ");
            warn!(keys, "SIGHUP: these keys were changed and need a new start");
        }
        info!("SIGHUP: the configuration was read again");
        Some(config)
    }
}

/// Returns the configuration with its changed keys that need a restart, or the error.
fn read(flags: Flags, began: &Began) -> Result<(Config, Vec<&'static str>), String> {
    let (mut config, said) =
        Config::read(flags, env::vars_os()).map_err(|error| error.to_string())?;
    // Addresses do not matter: this instance listens already.
    if let Some(error) = lockgate::check_files(&config).first() {
        return Err(said.explain(error));
    }
    files::make_room_for_clients(&mut config);
    let asks = config.password.is_some();
    let needs_start = |key: &&str| match *key {
        "auth.password" | "auth.password_file" => asks != began.asks_for_password,
        key => !RELOADED.contains(&key),
    };
    let changed = began.said.changed(&said).into_iter();
    Ok((config, changed.filter(needs_start).collect()))
}
