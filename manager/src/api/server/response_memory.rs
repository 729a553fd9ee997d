//! The memory of responses that wait until their clients have read them. It is bounded for each address and in total,
//! so clients that do not read cannot fill the manager's memory. The bytes of a response hold their share until they
//! are sent or the connection ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::Error;
use super::super::access::throttle::Peer;

/// The maximum size of all responses together, in bytes.
const TOTAL_BYTES: usize = 256 << 20;
/// The maximum size of all responses to one address, in bytes. The Unix socket counts as one address.
const ADDRESS_BYTES: usize = 64 << 20;
/// The size up to which a response needs no share, in bytes. An agent's ack is thus never refused because of other
/// responses.
const SMALL_BYTES: usize = 16 << 10;
/// The number of bytes per permit.
const PERMIT_BYTES: usize = 1 << 10;
/// The turns for generating long lists. The rows take several times the memory of the bytes generated from them.
static LIST_TURNS: Semaphore = Semaphore::const_new(4);
/// The number of addresses at which those without a response are removed.
const MAX_ADDRESSES: usize = 1_024;

/// The memory that all responses share; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::api) struct ResponseMemory {
    all: Arc<Semaphore>,
    by_address: Arc<Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>>,
}

/// The part of this memory that belongs to one address, as an extension of its requests.
#[derive(Debug, Clone)]
pub(in crate::api) struct AddressMemory {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Bytes together with their share of the memory.
struct HeldBytes {
    bytes: Bytes,
    _share: [OwnedSemaphorePermit; 2],
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ResponseMemory {
    pub(in crate::api) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(TOTAL_BYTES / PERMIT_BYTES)),
            by_address: Arc::default(),
        }
    }

    fn address_memory(&self, peer: Option<Peer>) -> AddressMemory {
        let mut of = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if of.len() >= MAX_ADDRESSES {
            of.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let own = of.entry(peer.map(Peer::network));
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(ADDRESS_BYTES / PERMIT_BYTES)));
        AddressMemory { own: Arc::clone(own), all: Arc::clone(&self.all) }
    }
}

impl AddressMemory {
    /// Reserves a share for `bytes`. If too little memory is free, returns an error.
    fn try_hold(&self, bytes: Bytes) -> Result<Bytes, Error> {
        let permits = permits(bytes.len());
        let take = |from: &Arc<Semaphore>| {
            Arc::clone(from).try_acquire_many_owned(permits).map_err(|_| Error::Overloaded)
        };
        let share = [take(&self.own)?, take(&self.all)?];
        Ok(Bytes::from_owner(HeldBytes { bytes, _share: share }))
    }

    /// Reserves a share for a piece of a stream, and waits until one is free. A small piece needs none.
    pub(in crate::api) async fn reserve(&self, bytes: Vec<u8>) -> Bytes {
        if bytes.len() <= SMALL_BYTES {
            bytes.into()
        } else {
            self.wait(bytes.len()).await.attach(bytes)
        }
    }

    /// Waits for a share of `size` bytes. The caller reads the bytes afterwards.
    pub(in crate::api) async fn wait(&self, size: usize) -> MemoryReservation {
        let take = async |from: &Arc<Semaphore>| {
            let permits = Arc::clone(from).acquire_many_owned(permits(size)).await;
            permits.expect("the semaphore is never closed")
        };
        MemoryReservation([take(&self.own).await, take(&self.all).await])
    }
}

/// A reserved share that has no bytes yet.
#[derive(Debug)]
pub(in crate::api) struct MemoryReservation([OwnedSemaphorePermit; 2]);

impl MemoryReservation {
    /// Attaches the share to `bytes`.
    pub(in crate::api) fn attach(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes: bytes.into(), _share: self.0 })
    }
}

/// PURE: returns the number of permits for `size` bytes, at most as many as one address may have.
fn permits(size: usize) -> u32 {
    let permits = size.min(ADDRESS_BYTES).div_ceil(PERMIT_BYTES);
    u32::try_from(permits).unwrap_or(u32::MAX)
}

/// Waits for a permit, then runs a request for a long list. The permit is released when the response is complete in
/// memory, so a slow client does not hold it.
pub(in crate::api) async fn limit_long_lists(request: Request, next: Next) -> Response {
    let _permit = LIST_TURNS.acquire().await.expect("the semaphore is never closed");
    next.run(request).await
}

/// Reserves a share of the memory for each complete response. If too little memory is free, the client gets 503 and
/// retries.
pub(in crate::api) async fn limit_response_memory(
    State(answers): State<ResponseMemory>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let address_memory = answers.address_memory(peer);
    request.extensions_mut().insert(address_memory.clone());
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    if size.is_none_or(|size| size <= SMALL_BYTES) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else { return Error::Stopping.into_response() };
    match address_memory.try_hold(whole.to_bytes()) {
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
    async fn responses_are_bounded_and_free_their_memory() {
        let answers = ResponseMemory::new();
        let one = answers.address_memory(peer(1));
        let half = || Bytes::from(vec![b'x'; ADDRESS_BYTES / 2]);
        let mut held = vec![one.try_hold(half()).unwrap(), one.try_hold(half()).unwrap()];
        assert_eq!(one.try_hold(half()).unwrap_err().parts().1, "overloaded");
        for other in 2..5 {
            let other = answers.address_memory(peer(other));
            held.extend([other.try_hold(half()).unwrap(), other.try_hold(half()).unwrap()]);
        }
        let last = answers.address_memory(None);
        assert_eq!(
            last.try_hold(half()).unwrap_err().parts().1,
            "overloaded",
            "the total is bounded"
        );
        let part = held[0].slice(..10);
        held.clear();
        assert!(last.try_hold(half()).is_ok());
        assert!(
            one.try_hold(Bytes::from(vec![b'x'; ADDRESS_BYTES])).is_err(),
            "a slice still holds the share"
        );
        drop(part);
        let larger = one.try_hold(Bytes::from(vec![b'x'; ADDRESS_BYTES + 1])).unwrap();
        let waiting = tokio::spawn({
            let one = one.clone();
            async move { one.wait(1).await.attach(vec![b'y']) }
        });
        assert_eq!(
            one.reserve(vec![b'z'; SMALL_BYTES]).await.len(),
            SMALL_BYTES,
            "a small piece does not wait"
        );
        let piece = tokio::spawn({
            let one = one.clone();
            async move { one.reserve(vec![b'z'; SMALL_BYTES + 1]).await.len() }
        });
        tokio::task::yield_now().await;
        assert!(!piece.is_finished(), "a larger piece waits");
        drop(larger);
        assert_eq!(waiting.await.unwrap(), "y");
        assert_eq!(piece.await.unwrap(), SMALL_BYTES + 1);
        assert_eq!(
            answers.all.available_permits(),
            TOTAL_BYTES / PERMIT_BYTES,
            "every permit is free again"
        );
    }

    #[test]
    fn addresses_without_a_response_are_removed() {
        let answers = ResponseMemory::new();
        for n in 0..10_000_u32 {
            drop(answers.address_memory(Some(Peer(IpAddr::V4(n.into())))));
        }
        assert!(answers.by_address.lock().unwrap().len() <= MAX_ADDRESSES);
    }
}
