//! How lockgate is started, told things, and ended: by people, scripts and service managers.

mod check;
mod exit;
mod health;
mod lock_log;
mod logs;
mod reload;
mod service;
mod version;
