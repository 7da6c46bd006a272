//! What is answered to which request.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use tokio::sync::watch;

use super::{Stage, readiness::Readiness};
use crate::metrics::{
    CONTENT_TYPE,
    exposition::{self, Family},
};

const TEXT: &str = "text/plain; charset=utf-8";

/// With every answer: a browser is to do nothing with it but show it, to nobody else, and to keep none.
const ALWAYS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// What answers need.
pub(super) struct Routes {
    pub(super) readiness: Readiness,
    pub(super) families: Box<dyn Fn() -> Vec<Family> + Send + Sync>,
    pub(super) stage: watch::Receiver<Stage>,
}

/// What is behind a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Health,
    Ready,
    Metrics,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            _ => return None,
        })
    }
}

impl Routes {
    /// The answer to a request, whose body nobody reads.
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
                let text = exposition::text(&(self.families)());
                answer(StatusCode::OK, CONTENT_TYPE, Answer(Some(text.into())))
            }
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

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Answer> {
    answer(status, TEXT, Answer(Some(text.into())))
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

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Answer(Option<Bytes>);

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let whole = self.get_mut().0.take();
        Poll::Ready(whole.map(|whole| Ok(Frame::data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |whole| whole.len() as u64))
    }
}
