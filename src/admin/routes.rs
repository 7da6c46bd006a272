//! The response to each request.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;

use super::{
    Stage,
    host::Hosts,
    readers::{Events, TEXT_BYTES, Watch},
    readiness::Readiness,
};
use crate::{server::metrics, session::Shared, telemetry::metrics::CONTENT_TYPE};

const TEXT: &str = "text/plain; charset=utf-8";
const EVENT_STREAM: &str = "text/event-stream";

/// Headers of every response: a browser may only show it, to no other site, and must not store it.
const ALWAYS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// What the responses need.
pub(super) struct Routes {
    pub(super) readiness: Arc<Readiness>,
    pub(super) hosts: Hosts,
    pub(super) shared: Arc<Shared>,
    pub(super) watch: Arc<Watch>,
    pub(super) stage: watch::Receiver<Stage>,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Health,
    Ready,
    Metrics,
    Events,
    /// A file of the page: its media type, and its content.
    File(&'static str, &'static str),
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            "/events" => Self::Events,
            "/" => Self::File("text/html; charset=utf-8", include_str!("page/page.html")),
            "/page.css" => Self::File("text/css; charset=utf-8", include_str!("page/page.css")),
            "/page.js" => Self::File(
                "text/javascript; charset=utf-8",
                include_str!("page/page.js"),
            ),
            "/icon.svg" => Self::File("image/svg+xml", include_str!("page/icon.svg")),
            _ => return None,
        })
    }
}

impl Routes {
    /// Returns the response to a request. Ignores the request's body.
    pub(super) async fn answer(&self, request: &Request<Incoming>) -> Response<Answer> {
        let Some(route) = Route::of(request.uri().path()) else {
            return text(StatusCode::NOT_FOUND, "nothing is here\n");
        };
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "this can only be read\n");
            let allow = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(header::ALLOW, allow);
            return answer;
        }
        match route {
            Route::Health => text(StatusCode::OK, "ok\n"),
            Route::Ready => self.ready().await,
            Route::Metrics => {
                let text = metrics::text(&self.shared);
                answer(StatusCode::OK, CONTENT_TYPE, Answer::whole(text))
            }
            Route::Events | Route::File(..) if !self.hosts.allow(host(request)) => text(
                StatusCode::MISDIRECTED_REQUEST,
                "this name is not among those that this address is known by (admin.hosts)\n",
            ),
            Route::Events => self.events(request),
            Route::File(kind, file) => answer(StatusCode::OK, kind, Answer::whole(file)),
        }
    }

    fn events(&self, request: &Request<Incoming>) -> Response<Answer> {
        if *self.stage.borrow() >= Stage::Draining {
            return text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n");
        }
        let find = searched(request);
        if find.len() > TEXT_BYTES {
            return text(StatusCode::URI_TOO_LONG, "the text to find is too long\n");
        }
        if *request.method() == Method::HEAD {
            return answer(StatusCode::OK, EVENT_STREAM, Answer::Whole(None));
        }
        match self.watch.read(find) {
            Some(events) => answer(StatusCode::OK, EVENT_STREAM, Answer::Events(events)),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "as many look as may\n"),
        }
    }

    async fn ready(&self) -> Response<Answer> {
        if *self.stage.borrow() >= Stage::Draining {
            return text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n");
        }
        match self.readiness.ask().await {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    }
}

/// Returns the host name in a request.
fn host(request: &Request<Incoming>) -> Option<&str> {
    let host = request.headers().get(header::HOST)?;
    // A header that is not text names no host.
    Some(host.to_str().unwrap_or_default())
}

/// Returns the text of `/events?find=TEXT`, which the names of the locks shown contain.
fn searched(request: &Request<Incoming>) -> Bytes {
    let query = request.uri().query().unwrap_or_default();
    let find = query.split('&').find_map(|pair| pair.strip_prefix("find="));
    percent_decode_str(find.unwrap_or_default()).collect()
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Answer> {
    answer(status, TEXT, Answer::whole(text))
}

fn answer(status: StatusCode, kind: &'static str, body: Answer) -> Response<Answer> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = (header::CONTENT_TYPE, kind);
    for (name, value) in ALWAYS.into_iter().chain([kind]) {
        let value = HeaderValue::from_static(value);
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// The body of a response.
#[derive(Debug)]
pub(super) enum Answer {
    /// The whole body, until it is taken.
    Whole(Option<Bytes>),
    /// A stream of events.
    Events(Events),
}

impl Answer {
    fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(whole) => whole.take(),
            Self::Events(events) => ready!(events.next.poll_recv(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => {
                SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64))
            }
            Self::Events(_) => SizeHint::default(),
        }
    }
}
