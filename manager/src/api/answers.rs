//! The memory of answers that wait for their clients to take them: bounded for each address and in all, so that clients
//! that do not read cannot fill the manager's memory. A share is held by the bytes themselves, and is free once they were
//! sent or the connection has ended.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Error;
use super::throttle::Peer;

/// Bytes of all answers together.
const IN_ALL: usize = 256 << 20;
/// Bytes of the answers to one address. The Unix socket counts as one.
const OF_ADDRESS: usize = 64 << 20;
/// Smaller answers need no share, in bytes: an agent's ack is never refused for others' answers.
const SMALL: usize = 16 << 10;
/// Bytes of one permit.
const PERMIT: usize = 1 << 10;
/// Long lists that are made at a time. Rows take several times the room of the bytes that are made of them.
static LIST_TURNS: Semaphore = Semaphore::const_new(4);
/// Addresses that are kept until those without an answer are forgotten.
const ADDRESSES: usize = 1_024;

/// The memory that all answers share; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    all: Arc<Semaphore>,
    of: Arc<Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>>,
}

/// An address's part of that memory, as an extension of its requests.
#[derive(Debug, Clone)]
pub(super) struct Allowance {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Bytes and their share.
struct HeldBytes {
    bytes: Bytes,
    _share: [OwnedSemaphorePermit; 2],
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answers {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(IN_ALL / PERMIT)), of: Arc::default() }
    }

    fn allowance(&self, peer: Option<Peer>) -> Allowance {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= ADDRESSES {
            of.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let own = of.entry(peer.map(Peer::network));
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(OF_ADDRESS / PERMIT)));
        Allowance { own: Arc::clone(own), all: Arc::clone(&self.all) }
    }
}

impl Allowance {
    /// Gives bytes their share, or refuses if there is none just now.
    fn try_hold(&self, bytes: Bytes) -> Result<Bytes, Error> {
        let permits = permits(bytes.len());
        let take = |from: &Arc<Semaphore>| {
            Arc::clone(from).try_acquire_many_owned(permits).map_err(|_| Error::Overloaded)
        };
        let share = [take(&self.own)?, take(&self.all)?];
        Ok(Bytes::from_owner(HeldBytes { bytes, _share: share }))
    }

    /// Gives a piece of a stream its share, once there is one. A small piece needs none.
    pub(super) async fn hold(&self, bytes: Vec<u8>) -> Bytes {
        if bytes.len() <= SMALL { bytes.into() } else { self.wait(bytes.len()).await.hold(bytes) }
    }

    /// Waits for a share of `size` bytes, to be given to the bytes that are read then.
    pub(super) async fn wait(&self, size: usize) -> Share {
        let take = async |from: &Arc<Semaphore>| {
            let permits = Arc::clone(from).acquire_many_owned(permits(size)).await;
            permits.expect("it is never closed")
        };
        Share([take(&self.own).await, take(&self.all).await])
    }
}

/// A share of the memory that waits for its bytes.
#[derive(Debug)]
pub(super) struct Share([OwnedSemaphorePermit; 2]);

impl Share {
    /// Binds the share to the bytes.
    pub(super) fn hold(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes: bytes.into(), _share: self.0 })
    }
}

/// PURE: the permits for so many bytes; never more than an address may have.
fn permits(size: usize) -> u32 {
    let permits = size.min(OF_ADDRESS).div_ceil(PERMIT);
    u32::try_from(permits).unwrap_or(u32::MAX)
}

/// Makes a long list once fewer are being made. Its client is not waited for: the answer is whole when the turn ends.
pub(super) async fn make_in_turn(request: Request, next: Next) -> Response {
    let _turn = LIST_TURNS.acquire().await.expect("it is never closed");
    next.run(request).await
}

/// Gives each whole answer its share of the memory. One for which there is none is refused with 503: the client comes again.
pub(super) async fn bound(
    State(answers): State<Answers>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let allowance = answers.allowance(peer);
    request.extensions_mut().insert(allowance.clone());
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    if size.is_none_or(|size| size <= SMALL) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else { return Error::Stopping.into_response() };
    match allowance.try_hold(whole.to_bytes()) {
        Ok(bytes) => Response::from_parts(parts, Body::from(bytes)),
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<Peer> {
        format!("192.0.2.{last}").parse().ok().map(Peer)
    }

    #[tokio::test]
    async fn answers_hold_so_much_for_an_address_and_in_all_and_give_it_back() {
        let answers = Answers::new();
        let one = answers.allowance(peer(1));
        let half = || Bytes::from(vec![b'x'; OF_ADDRESS / 2]);
        let mut held = vec![one.try_hold(half()).unwrap(), one.try_hold(half()).unwrap()];
        assert_eq!(one.try_hold(half()).unwrap_err().code(), "overloaded");
        for other in 2..5 {
            let other = answers.allowance(peer(other));
            held.extend([other.try_hold(half()).unwrap(), other.try_hold(half()).unwrap()]);
        }
        let last = answers.allowance(None);
        assert_eq!(last.try_hold(half()).unwrap_err().code(), "overloaded", "in all");
        let part = held[0].slice(..10);
        held.clear();
        assert!(last.try_hold(half()).is_ok());
        assert!(
            one.try_hold(Bytes::from(vec![b'x'; OF_ADDRESS])).is_err(),
            "a part is still there"
        );
        drop(part);
        let larger = one.try_hold(Bytes::from(vec![b'x'; OF_ADDRESS + 1])).unwrap();
        let waiting = tokio::spawn({
            let one = one.clone();
            async move { one.wait(1).await.hold(vec![b'y']) }
        });
        assert_eq!(one.hold(vec![b'z'; SMALL]).await.len(), SMALL, "a small piece does not wait");
        let piece = tokio::spawn({
            let one = one.clone();
            async move { one.hold(vec![b'z'; SMALL + 1]).await.len() }
        });
        tokio::task::yield_now().await;
        assert!(!piece.is_finished(), "a larger one does");
        drop(larger);
        assert_eq!(waiting.await.unwrap(), "y");
        assert_eq!(piece.await.unwrap(), SMALL + 1);
        assert_eq!(answers.all.available_permits(), IN_ALL / PERMIT, "all came back");
    }

    #[test]
    fn addresses_without_an_answer_are_forgotten() {
        let answers = Answers::new();
        for n in 0..10_000_u32 {
            drop(answers.allowance(Some(Peer(IpAddr::V4(n.into())))));
        }
        assert!(answers.of.lock().unwrap().len() <= ADDRESSES);
    }
}
