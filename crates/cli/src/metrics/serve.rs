//! `/metrics` over HTTP.

use super::series::Format;
use crate::common::{Failure, Outcome};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

/// The most connections at a time. Prometheus needs one; who has more waits in the kernel's queue.
const MOST: usize = 16;

/// How long a connection may last, and how long the head of a request may take: nobody keeps a place for nothing.
const AGE: Duration = Duration::from_secs(60);
const HEAD: Duration = Duration::from_secs(5);

/// How long to wait when no connection can be taken, such as for want of descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until the program is ended. `text` makes the metrics, for one request at a time.
pub(super) fn serve(
    address: SocketAddr,
    text: impl Fn(Format) -> Result<String, Failure> + Clone + 'static,
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = async {
        let listener = TcpListener::bind(address).await.map_err(|why| Failure {
            number: insane::Code::System.number(),
            text: format!("--listen <ADDRESS> is '{address}': {why}"),
            usage: false,
        })?;
        say!("serving http://{}/metrics", listener.local_addr()?);
        let places = Arc::new(Semaphore::new(MOST));
        // Nobody closes the semaphore.
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let text = text.clone();
            tokio::task::spawn_local(async move {
                let service = service_fn(|request: Request<Incoming>| {
                    let response = answer(request.method(), request.uri().path(), request.headers(), &text);
                    async { Ok::<_, Infallible>(response) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD);
                // How a connection ends is its peer's affair.
                let _ = tokio::time::timeout(AGE, http.serve_connection(TokioIo::new(stream), service)).await;
                drop(place);
            });
        }
        Ok(())
    };
    LocalSet::new().block_on(&runtime, work)
}

fn answer(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    text: impl Fn(Format) -> Result<String, Failure>,
) -> Response<Full<Bytes>> {
    if path != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "there is /metrics alone\n".into());
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "it can be read alone\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let accepts = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("application/openmetrics-text"));
    let format = match headers.get_all(ACCEPT).iter().any(accepts) {
        true => Format::OpenMetrics,
        false => Format::Prometheus,
    };
    match text(format) {
        Ok(text) => {
            let mut response = plain(StatusCode::OK, text);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
            response
        }
        Err(failure) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", failure.text)),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
