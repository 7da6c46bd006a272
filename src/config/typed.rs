//! The typed configuration: set values, environment and file, still as text, each value with its origin. This module
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

use super::builder::{ConfigBuilder, Given};
use crate::auth::password::Password;

/// The prefix of every environment variable for this program.
const PREFIX: &str = "LOCKGATE_";

/// The place of a value that was not typed.
const DEFAULT_PLACE: &str = "the default";

/// Keys with a shorter name, that of their flag; as a variable, both spellings work.
const SHORT: [(&str, &str); 2] = [("upstream", "upstream.url"), ("admin", "admin.listen")];

/// The settings that flags can give.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// The configuration file [env: LOCKGATE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address to listen on: `host:port`, or `:port` for every interface; port 0 takes a free one, `off` is none
    /// [env: LOCKGATE_LISTEN] [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// `embedded`, `host:port`, `redis://[user[:password]@]host[:port]`, `rediss://…` with TLS, or `unix:///path`
    /// [env: LOCKGATE_UPSTREAM] [default: embedded]
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
#[non_exhaustive]
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
        /// Where it was given.
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
    #[error("{key} ({place}): cannot use {}: {why}", path.display())]
    UselessFile {
        /// The key that names it.
        key: &'static str,
        /// The flag, the variable or the file that names it.
        place: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Two keys or variables with the same meaning were both given.
    #[error("{one} and {other} mean the same: give one of them")]
    Twice {
        /// One of the keys.
        key: String,
        /// The same key, with its place.
        one: String,
        /// The other key, with its place.
        other: String,
    },
}

/// What was typed for each key, or its default; only as a hash, since some of it is secret.
#[derive(Debug, Clone, Default)]
pub struct StatedSettings(BTreeMap<&'static str, Stated>);

#[derive(Debug, Clone)]
struct Stated {
    text: Password,
    /// The flag, the variable or the file that it is from.
    place: String,
}

impl StatedSettings {
    /// Returns the keys whose text differs in the other one, even if its meaning may not.
    pub fn changed(&self, other: &Self) -> Vec<&'static str> {
        let differs = |(key, stated): &(&&str, &Stated)| {
            let there = other.0.get(*key);
            there.is_none_or(|there| there.text != stated.text)
        };
        let changed = self.0.iter().filter(differs);
        changed.map(|(key, _)| *key).collect()
    }

    /// Returns a key with its place.
    fn with_place(&self, key: &str) -> String {
        format!("{key} ({})", self.place(key))
    }

    /// Returns the flag, the variable or the file that the value of a key is from.
    pub(super) fn place(&self, key: &str) -> &str {
        let stated = self.0.get(key);
        stated.map_or(DEFAULT_PLACE, |stated| &stated.place)
    }

    /// Returns the error of an instance that cannot run, with the place of the key that it is about.
    pub fn explain(&self, error: &crate::error::Error) -> String {
        use crate::{error::Error, transport::tls::TlsError};
        let is_about = |key: &str, stated: &Stated| match error {
            Error::Listen { key: about, .. } => key == *about,
            Error::Tls {
                section,
                source: TlsError::File { path, .. },
            } => {
                let of_section = key.split_once('.').is_some_and(|(it, _)| it == *section);
                of_section && stated.text.is(path.as_os_str().as_encoded_bytes())
            }
            Error::Tls { .. } | Error::HandedOver(_) => false,
        };
        let about = self.0.iter().find(|(key, stated)| is_about(key, stated));
        match about {
            Some((key, stated)) => format!("{error}; {key} is from {}", stated.place),
            None => error.to_string(),
        }
    }
}

/// What was typed and not yet asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Typed {
    /// By key.
    set: BTreeMap<String, Given>,
    /// By the name of the variable, which for some is longer than the typed name.
    environment: BTreeMap<String, Variable>,
    /// By key.
    file: BTreeMap<String, String>,
    path: PathBuf,
    /// The text of each key that was asked for.
    pub(super) said: StatedSettings,
    /// Every key that was asked for, with its default.
    pub(super) asked: BTreeMap<&'static str, String>,
}

/// A variable of the environment.
#[derive(Debug, Clone)]
struct Variable {
    typed_name: String,
    value: String,
}

impl Typed {
    pub(super) fn read(builder: ConfigBuilder) -> Result<Self, Error> {
        let mut environment = read_environment(builder.environment)?;
        let path = environment.remove("LOCKGATE_CONFIG");
        let path = path.map(|variable| PathBuf::from(variable.value));
        let path = builder.file.or(path);
        let file = path
            .as_deref()
            .map_or_else(|| Ok(BTreeMap::new()), read_file)?;
        Ok(Self {
            set: builder.set,
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
        let by_default = || (default.to_owned(), DEFAULT_PLACE.to_owned());
        let (text, place) = self.given(key).unwrap_or_else(by_default);
        let stated = Stated {
            text: Password::new(text.as_bytes()),
            place: place.clone(),
        };
        self.said.0.insert(key, stated);
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
        let set = self.set.remove(key);
        let environment = self.environment.remove(&variable(key));
        let file = self.file.remove(key);
        set.map(|it| (it.text, it.place))
            .or_else(|| environment.map(|it| (it.value, it.typed_name)))
            .or_else(|| file.map(|text| (text, self.path.display().to_string())))
    }

    /// Replaces what was typed for a key that names a file by what the file holds: a reload reports a change of it.
    pub(super) fn state_content(&mut self, key: &'static str, content: Password) {
        if let Some(stated) = self.said.0.get_mut(key) {
            stated.text = content;
        }
    }

    /// Returns the error for a key whose value was also given elsewhere: by another key, or within its value.
    pub(super) fn twice(&self, key: &str, other: &str, within: &str) -> Error {
        Error::Twice {
            key: key.to_owned(),
            one: self.said.with_place(key),
            other: format!("{within}{}", self.said.with_place(other)),
        }
    }

    /// Forgets an unknown key or variable. Returns whether it was there.
    pub(super) fn forget(&mut self, unknown: &str) -> bool {
        self.set.remove(unknown).is_some()
            || self.environment.remove(unknown).is_some()
            || self.file.remove(unknown).is_some()
    }

    /// Refuses what is left, which is unknown: the check has asked for every known key.
    pub(super) fn refuse_the_rest(self) -> Result<StatedSettings, Error> {
        if let Some((name, Given { place, .. })) = self.set.into_iter().next() {
            let place = format!(" (from {place})");
            return Err(Error::Unknown { name, place });
        }
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
) -> Result<BTreeMap<String, Variable>, Error> {
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
        let typed_name = name.clone();
        variables.insert(name, Variable { typed_name, value });
    }
    for (key, short, long) in SHORT.map(|(short, long)| (long, variable(short), variable(long))) {
        if let Some(value) = variables.remove(&short)
            && variables.insert(long.clone(), value).is_some()
        {
            return Err(Error::Twice {
                key: key.to_owned(),
                one: short,
                other: long,
            });
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
