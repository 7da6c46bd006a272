//! The typed configuration: flags, environment and file, still as text, each value with its origin. This module
//! knows nothing of the keys but their spelling: `lock.lease` in the file is `LOCKGATE_LOCK_LEASE` in the
//! environment.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use toml::de::{DeTable, DeValue};

use crate::auth::password::Password;

/// The prefix of every environment variable for this program.
const PREFIX: &str = "LOCKGATE_";

/// Flags with a shorter name than their key; as a variable, both spellings work.
const SHORT: [(&str, &str); 2] = [("upstream", "upstream.url"), ("admin", "admin.listen")];

/// The settings that flags can give.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// The configuration file [env: LOCKGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address to listen on; port 0 takes a free one, `off` is none [env: LOCKGATE_LISTEN] [default:
    /// 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// `embedded`, `redis://[user[:password]@]host[:port]`, `rediss://…` with TLS, or `unix:///path` [env:
    /// LOCKGATE_UPSTREAM] [default: embedded]
    ///
    /// Put a password into the environment or the file instead: every user of the machine can read the flags of a
    /// process.
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// The address for operators, over HTTP: a live page, metrics, health; `off` is none [env: LOCKGATE_ADMIN]
    /// [default: off]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// What to log: a level, or module=level, separated by commas [env: LOCKGATE_LOG] [default: info]
    #[arg(long, value_name = "DIRECTIVE")]
    pub log: Option<String>,
}

/// The reason why a configuration is refused. The text names the key or variable, and the allowed values.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}: {error}", path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// The position and the reason, in one line.
        error: String,
    },
    /// The key does not exist.
    #[error("{name}: no such key{place}")]
    Unknown {
        /// The key, or the environment variable.
        name: String,
        /// ` in <file>`, or nothing.
        place: String,
    },
    /// The value is not allowed.
    #[error("{key}: {value} ({place}) is not allowed; allowed is {allowed}")]
    Wrong {
        /// The key.
        key: String,
        /// The given value, or the remark that it is not shown.
        value: String,
        /// The flag, the variable or the file.
        place: String,
        /// The allowed values.
        allowed: String,
    },
    /// A file that holds a value cannot be used.
    #[error("{key}: cannot use {}: {why}", path.display())]
    UselessFile {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Two keys or variables with the same meaning were both given.
    #[error("{0} and {1} mean the same: give one of them")]
    Twice(String, String),
}

/// What was typed for each key, or its default; only as a hash, since some of it is secret.
#[derive(Debug, Clone, Default)]
pub struct StatedSettings(BTreeMap<&'static str, Password>);

impl StatedSettings {
    /// Returns the keys whose text differs in the other one, even if its meaning may not.
    pub fn changed(&self, other: &Self) -> Vec<&'static str> {
        let differs = |key: &&str| self.0.get(key) != other.0.get(key);
        self.0.keys().copied().filter(differs).collect()
    }
}

/// What was typed and not yet asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Typed {
    /// By key.
    flags: BTreeMap<&'static str, String>,
    /// By the name of the variable.
    environment: BTreeMap<String, String>,
    /// By key.
    file: BTreeMap<String, String>,
    path: PathBuf,
    /// The text of each key that was asked for.
    pub(super) said: StatedSettings,
    /// Every key that was asked for, with its default.
    pub(super) asked: BTreeMap<&'static str, String>,
}

impl Typed {
    pub(super) fn read(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut environment = read_environment(environment)?;
        let path = environment.remove("LOCKGATE_CONFIG").map(PathBuf::from);
        let path = flags.config.or(path);
        let file = path
            .as_deref()
            .map_or_else(|| Ok(BTreeMap::new()), read_file)?;
        let flags = [
            ("listen", flags.listen),
            ("upstream.url", flags.upstream),
            ("admin.listen", flags.admin),
            ("log", flags.log),
        ];
        Ok(Self {
            flags: flags
                .into_iter()
                .filter_map(|(key, text)| Some((key, text?)))
                .collect(),
            environment,
            file,
            path: path.unwrap_or_default(),
            said: StatedSettings::default(),
            asked: BTreeMap::new(),
        })
    }

    /// Returns the value of a key, or its default. `parse` returns the allowed values where it refuses the text.
    pub(super) fn parse<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        self.take(key, default, parse, |text| format!("{text:?}"))
    }

    /// Returns the value of a key as [`Typed::parse`] does, for a value that no error may show.
    pub(super) fn parse_secret<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        self.take(key, default, parse, |_| {
            "the value, not shown here,".to_owned()
        })
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
        show: impl FnOnce(&str) -> String,
    ) -> Result<T, Error> {
        self.asked.insert(key, default.to_owned());
        let by_default = || (default.to_owned(), "the default".to_owned());
        let (text, place) = self.given(key).unwrap_or_else(by_default);
        self.said.0.insert(key, Password::new(text.as_bytes()));
        parse(&text).map_err(|allowed| Error::Wrong {
            key: key.to_owned(),
            value: show(&text),
            place,
            allowed,
        })
    }

    /// Takes what was typed for a key, and its origin. Of several, the one with precedence is returned; all of them
    /// are used up.
    pub(super) fn given(&mut self, key: &str) -> Option<(String, String)> {
        let flag = self.flags.remove(key);
        let variable = variable(key);
        let environment = self.environment.remove(&variable);
        let file = self.file.remove(key);
        let name = SHORT.iter().find(|(_, long)| *long == key);
        let name = name.map_or(key, |(short, _)| *short);
        flag.map(|text| (text, format!("--{name}")))
            .or_else(|| environment.map(|text| (text, variable)))
            .or_else(|| file.map(|text| (text, self.path.display().to_string())))
    }

    /// Forgets an unknown key or variable. Returns whether it was there.
    pub(super) fn forget(&mut self, unknown: &str) -> bool {
        self.environment.remove(unknown).is_some() || self.file.remove(unknown).is_some()
    }

    /// Refuses what is left, which is unknown: the check has asked for every known key.
    pub(super) fn refuse_the_rest(self) -> Result<StatedSettings, Error> {
        if let Some(name) = self.environment.into_keys().next() {
            return Err(Error::Unknown {
                name,
                place: " in the environment".to_owned(),
            });
        }
        match self.file.into_keys().next() {
            Some(name) => Err(Error::Unknown {
                name,
                place: format!(" in {}", self.path.display()),
            }),
            None => Ok(self.said),
        }
    }
}

/// Returns the variable of a key: `LOCKGATE_LOCK_LEASE` for `lock.lease`.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_uppercase())
}

fn read_environment(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut variables = BTreeMap::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || is_of_kubernetes(&name, &value) {
            continue;
        }
        let value = value.into_string().map_err(|value| Error::Wrong {
            key: name.clone(),
            value: format!("a value of {} bytes", value.len()),
            place: "the environment".to_owned(),
            allowed: "UTF-8".to_owned(),
        })?;
        variables.insert(name, value);
    }
    for (short, long) in SHORT.map(|(short, long)| (variable(short), variable(long))) {
        if let Some(value) = variables.remove(&short)
            && variables.insert(long.clone(), value).is_some()
        {
            return Err(Error::Twice(short, long));
        }
    }
    Ok(variables)
}

/// Returns whether Kubernetes set this variable: every pod gets such ones for services named `lockgate`,
/// `lockgate-admin` and the like.
fn is_of_kubernetes(name: &str, value: &OsStr) -> bool {
    let is_url = value.to_str().is_some_and(|value| value.contains("://"));
    let of_a_port = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && is_url)
        || name.split_once("_PORT_").is_some_and(of_a_port)
}

fn read_file(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let text = fs::read_to_string(path).map_err(|error| Error::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    // Keeps the spelling: a number keeps its base.
    let table = DeTable::parse(&text).map_err(|error| {
        let before = error
            .span()
            .and_then(|span| text.get(..span.start))
            .unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let error = format!("line {line}: {}", error.message().replace('\n', ", "));
        Error::NotToml {
            path: path.to_owned(),
            error,
        }
    })?;
    let mut keys = BTreeMap::new();
    flatten("", table.into_inner(), path, &mut keys)?;
    Ok(keys)
}

/// Turns `lease` in `[lock]` into `lock.lease`. Goes no deeper than the sections do.
fn flatten(
    section: &str,
    table: DeTable<'_>,
    path: &Path,
    keys: &mut BTreeMap<String, String>,
) -> Result<(), Error> {
    for (name, value) in table {
        let name = name.into_inner();
        let text = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(answer) => answer.to_string(),
            DeValue::Table(inner) if section.is_empty() => {
                flatten(&format!("{name}."), inner, path, keys)?;
                continue;
            }
            other => {
                return Err(Error::Wrong {
                    key: format!("{section}{name}"),
                    value: format!("a value of type {}", other.type_str()),
                    place: path.display().to_string(),
                    allowed: "a string, a whole number, true or false".to_owned(),
                });
            }
        };
        keys.insert(format!("{section}{name}"), text);
    }
    Ok(())
}

/// Returns a duration as it may be typed.
pub(super) fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
