//! A configuration in the making: what a program, its flags, the environment and a file say, still as text.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf};

use super::{Config, Error, Flags, StatedSettings, Typed};

/// Builds a [`Config`] from the keys of `config/lockgate.toml`, which documents each with its default and its bounds.
///
/// A key that is [set](Self::set) takes precedence over the environment, the environment over the file, the file over
/// the default.
#[derive(Clone, Default)]
#[must_use = "a configuration exists only once it is built"]
pub struct ConfigBuilder {
    pub(super) set: BTreeMap<String, Given>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) file: Option<PathBuf>,
}

/// A value that the program, or one of its flags, gave.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) text: String,
    pub(super) place: String,
}

impl ConfigBuilder {
    /// Sets a key, such as `upstream.url` or `lock.lease`, to a value as in the file: `"30s"`, `10_000`, `true`.
    pub fn set(self, key: &str, value: impl fmt::Display) -> Self {
        self.set_from("the program", key, value.to_string())
    }

    /// Reads this file, too; only the last one counts.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads these variables, too: `LOCKGATE_LOCK_LEASE` is `lock.lease`, and `LOCKGATE_CONFIG` a file where none is
    /// given. Others do not matter, so [`std::env::vars_os`] will do.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        self.environment.extend(variables);
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key or `LOCKGATE_*` variable, or a value that is not allowed.
    pub fn build(self) -> Result<Config, Error> {
        self.read().map(|(config, _)| config)
    }

    /// Builds the configuration, with what was typed for each key, to compare it with a later reload.
    pub(super) fn read(self) -> Result<(Config, StatedSettings), Error> {
        let mut typed = Typed::read(self)?;
        let config = Config::check(&mut typed)?;
        Ok((config, typed.refuse_the_rest()?))
    }

    fn set_from(mut self, place: &str, key: &str, text: String) -> Self {
        let place = place.to_owned();
        self.set.insert(key.to_owned(), Given { text, place });
        self
    }
}

impl From<Flags> for ConfigBuilder {
    fn from(flags: Flags) -> Self {
        let given = [
            ("--listen", "listen", flags.listen),
            ("--upstream", "upstream.url", flags.upstream),
            ("--admin", "admin.listen", flags.admin),
            ("--log", "log", flags.log),
        ];
        let given = given.into_iter();
        let given = given.filter_map(|(flag, key, text)| Some((flag, key, text?)));
        let empty = Self {
            file: flags.config,
            ..Self::default()
        };
        given.fold(empty, |builder, (flag, key, text)| {
            builder.set_from(flag, key, text)
        })
    }
}

impl fmt::Debug for ConfigBuilder {
    /// Shows no value: some are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigBuilder").finish_non_exhaustive()
    }
}
