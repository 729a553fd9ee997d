//! A request's body that is not known yet when the request is opened.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::oneshot;

/// Sends the body, once it is known. Dropped, it ends the request.
pub type BodySender = oneshot::Sender<Vec<u8>>;

/// The body.
struct DeferredBody(Option<oneshot::Receiver<Vec<u8>>>);

/// A body that is sent when it is filled.
pub fn deferred_body() -> (BodySender, reqwest::Body) {
    let (fill, body) = oneshot::channel();
    (fill, reqwest::Body::wrap(DeferredBody(Some(body))))
}

impl Body for DeferredBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let bytes = ready!(Pin::new(body).poll(context));
        self.0 = None;
        Poll::Ready(bytes.ok().map(|bytes| Ok(Frame::data(Bytes::from(bytes)))))
    }
}
