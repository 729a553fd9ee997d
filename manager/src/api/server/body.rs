//! Request bodies: their size, their time and the memory of all together are bounded.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::Error;

/// The maximum size of a body, compressed or not, in bytes.
pub(in crate::api) const BODY_LIMIT_BYTES: usize = 8 << 20;

/// The memory for all bodies together, in bytes. If it is used up, the manager asks clients to retry later.
const BODY_MEMORY_BYTES: usize = 64 << 20;

/// The time in which a client must send its body after the first bytes. Each [`MIN_BYTES_PER_S`] bytes extend it by
/// a second.
pub(in crate::api) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The lowest rate at which a client may send a long body, in bytes per second.
const MIN_BYTES_PER_S: usize = 16 << 10;

/// The time that a client may keep a request open before it sends the body; longer than an agent's heartbeat.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// The memory that all bodies share; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::api) struct BodyMemory(Arc<Semaphore>);

/// A body, which holds its share of the memory until it is dropped.
#[derive(Debug)]
pub(in crate::api) struct ReceivedBody {
    pub(in crate::api) bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
    /// The body's part of its trial's share.
    own_share: Option<OwnedSemaphorePermit>,
}

/// A body that the client is still sending, or has not begun to send.
#[derive(Debug)]
pub(in crate::api) struct PendingBody {
    memory: BodyMemory,
    own: Option<Arc<Semaphore>>,
    body: Body,
    compressed: bool,
    read: ReceivedBody,
}

impl PendingBody {
    /// Waits for the first bytes of the body, or for its end if it is empty. If the future is dropped, no bytes are
    /// lost.
    pub(in crate::api) async fn wait_for_start(&mut self) -> Result<(), Error> {
        timeout(START_TIMEOUT, self.read_piece()).await.map_err(|_| Error::TooSlow)?.map(drop)
    }

    /// Reads the rest and returns the whole body, decompressed if it is compressed.
    pub(in crate::api) async fn read_rest(mut self) -> Result<ReceivedBody, Error> {
        let began = Instant::now();
        loop {
            let seconds = u32::try_from(self.read.bytes.len() / MIN_BYTES_PER_S)
                .expect("the body is limited");
            let until = began + BODY_TIMEOUT + Duration::from_secs(1) * seconds;
            let more = timeout_at(until, self.read_piece());
            if !more.await.map_err(|_| Error::TooSlow)?? {
                break;
            }
        }
        if self.compressed {
            self.memory.decompress(&self.read, self.own.as_ref())
        } else {
            Ok(self.read)
        }
    }

    /// Reads a piece. Returns `false` at the end of the body.
    async fn read_piece(&mut self) -> Result<bool, Error> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame
            .map_err(|error| Error::BadRequest(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { return Ok(true) };
        if self.read.bytes.len() + data.len() > BODY_LIMIT_BYTES {
            return Err(Error::TooLarge { limit_bytes: BODY_LIMIT_BYTES });
        }
        self.memory.enlarge(&mut self.read, self.own.as_ref(), data.len())?;
        self.read.bytes.extend_from_slice(&data);
        Ok(true)
    }
}

impl BodyMemory {
    pub(in crate::api) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BODY_MEMORY_BYTES)))
    }

    /// Reads the body of a request, and decompresses it if it is compressed.
    pub(in crate::api) async fn read(&self, request: Request) -> Result<ReceivedBody, Error> {
        let mut incoming = self.open(request, None)?;
        incoming.wait_for_start().await?;
        incoming.read_rest().await
    }

    /// Checks the headers of a request without reading its body. `own` is the memory that its trial may use.
    pub(in crate::api) fn open(
        &self,
        request: Request,
        own: Option<Arc<Semaphore>>,
    ) -> Result<PendingBody, Error> {
        let (head, body) = request.into_parts();
        let compressed = is_gzip(&head.headers)?;
        if declared_bytes(&head.headers).is_some_and(|length| length > BODY_LIMIT_BYTES) {
            return Err(Error::TooLarge { limit_bytes: BODY_LIMIT_BYTES });
        }
        let read = ReceivedBody { bytes: Vec::new(), share: None, own_share: None };
        Ok(PendingBody { memory: self.clone(), own, body, compressed, read })
    }

    fn decompress(
        &self,
        compressed: &ReceivedBody,
        own: Option<&Arc<Semaphore>>,
    ) -> Result<ReceivedBody, Error> {
        let mut read = ReceivedBody { bytes: Vec::new(), share: None, own_share: None };
        let limit = u64::try_from(BODY_LIMIT_BYTES).expect("8 MiB") + 1;
        MultiGzDecoder::new(compressed.bytes.as_slice())
            .take(limit)
            .read_to_end(&mut read.bytes)
            .map_err(|error| Error::BadRequest(format!("the body is not gzip: {error}")))?;
        if read.bytes.len() > BODY_LIMIT_BYTES {
            return Err(Error::TooLarge { limit_bytes: BODY_LIMIT_BYTES });
        }
        let length = read.bytes.len();
        self.enlarge(&mut read, own, length)?;
        Ok(read)
    }

    /// Enlarges the body's share by `by` bytes. If too little memory is free, returns an error.
    fn enlarge(
        &self,
        read: &mut ReceivedBody,
        own: Option<&Arc<Semaphore>>,
        by: usize,
    ) -> Result<(), Error> {
        let by = u32::try_from(by).expect("at most the body limit");
        if let Some(own) = own {
            let more = Arc::clone(own).try_acquire_many_owned(by).map_err(|_| Error::TooMany)?;
            merge(&mut read.own_share, more);
        }
        let more = Arc::clone(&self.0).try_acquire_many_owned(by).map_err(|_| Error::Overloaded)?;
        merge(&mut read.share, more);
        Ok(())
    }
}

fn merge(share: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match share {
        Some(share) => share.merge(more),
        none => *none = Some(more),
    }
}

/// Returns whether the body is compressed with gzip. Any other compression is an error.
fn is_gzip(headers: &HeaderMap) -> Result<bool, Error> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(false) };
    match encoding.as_bytes().to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Ok(true),
        b"identity" | b"" => Ok(false),
        _ => Err(Error::UnknownEncoding),
    }
}

fn declared_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn request(encoding: Option<&str>, bytes: Vec<u8>) -> Request {
        let mut request = Request::post("/");
        if let Some(encoding) = encoding {
            request = request.header(header::CONTENT_ENCODING, encoding);
        }
        request.body(Body::from(bytes)).unwrap()
    }

    /// A case: the name, the encoding, the body, and the bytes read or the refusal's code.
    type Row<'a> = (&'a str, Option<&'a str>, Vec<u8>, Result<&'a [u8], &'a str>);

    #[tokio::test]
    async fn bodies_are_decompressed_and_bounded() {
        let full = vec![b'x'; BODY_LIMIT_BYTES];
        let over = vec![b'x'; BODY_LIMIT_BYTES + 1];
        let twice = [gzip(b"one "), gzip(b"two")].concat();
        let mut torn = gzip(b"a text that is cut");
        torn.truncate(torn.len() - 3);
        #[rustfmt::skip]
        let table: [Row<'_>; 11] = [
            ("plain",               None,              b"text".to_vec(), Ok(b"text")),
            ("plain, declared",     Some("identity"),  b"text".to_vec(), Ok(b"text")),
            ("empty",               None,              Vec::new(),       Ok(b"")),
            ("compressed",          Some("GZIP"),      gzip(b"text"),    Ok(b"text")),
            ("in two parts",        Some("gzip"),      twice,            Ok(b"one two")),
            ("as large as allowed", Some("gzip"),      gzip(&full),      Ok(&full)),
            ("a bomb",              Some("gzip"),      gzip(&over),      Err("too-large")),
            ("too large",           None,              over,             Err("too-large")),
            ("torn",                Some("gzip"),      torn,             Err("bad-request")),
            ("not compressed",      Some("gzip"),      b"text".to_vec(), Err("bad-request")),
            ("another compression", Some("zstd"),      b"text".to_vec(), Err("unsupported-encoding")),
        ];
        for (case, encoding, bytes, expected) in table {
            let memory = BodyMemory::new();
            let read = memory.read(request(encoding, bytes)).await;
            match (&read, expected) {
                (Ok(read), Ok(expected)) => {
                    assert!(read.bytes == expected, "{case}");
                    assert_eq!(
                        memory.0.available_permits(),
                        BODY_MEMORY_BYTES - expected.len(),
                        "{case}"
                    );
                }
                (Err(error), Err(code)) => assert_eq!(error.parts().1, code, "{case}"),
                (read, _) => panic!("{case}: {read:?}"),
            }
            drop(read);
            assert_eq!(
                memory.0.available_permits(),
                BODY_MEMORY_BYTES,
                "{case}: all memory is free again"
            );
        }
    }

    #[tokio::test]
    async fn clients_are_asked_to_retry_when_the_memory_is_used_up() {
        let memory = BodyMemory::new();
        let held = Arc::clone(&memory.0);
        let held =
            held.try_acquire_many_owned(u32::try_from(BODY_MEMORY_BYTES - 10).unwrap()).unwrap();
        let refused = memory.read(request(None, vec![b'x'; 11])).await.unwrap_err();
        assert_eq!(refused.parts().1, "overloaded");
        assert!(memory.read(request(None, vec![b'x'; 10])).await.is_ok());
        drop(held);
        assert!(memory.read(request(None, vec![b'x'; 11])).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_refused() {
        let memory = BodyMemory::new();
        let (_sender, silent) = tokio::sync::mpsc::channel(1);
        let request = Request::post("/").body(Body::new(SlowBody(silent))).unwrap();
        assert_eq!(memory.read(request).await.unwrap_err().parts().1, "too-slow");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_below_the_lowest_rate_is_refused() {
        // The size of a piece, the number of pieces (one every three seconds), and whether the body is read
        // completely.
        for (bytes, pieces, waited) in
            [(64 << 10, 64, true), (48 << 10, 100, true), (4 << 10, 20, false)]
        {
            let (sender, piece) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                for _ in 0..pieces {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    if sender.send(vec![b'x'; bytes]).await.is_err() {
                        return;
                    }
                }
            });
            let request = Request::post("/").body(Body::new(SlowBody(piece))).unwrap();
            let read = BodyMemory::new().read(request).await;
            assert_eq!(read.map(|read| read.bytes.len()).ok(), waited.then_some(bytes * pieces));
        }
    }

    /// A body that arrives piece by piece, as the test sends it.
    struct SlowBody(tokio::sync::mpsc::Receiver<Vec<u8>>);

    impl axum::body::HttpBody for SlowBody {
        type Data = axum::body::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
            let piece = self.0.poll_recv(context);
            piece.map(|piece| Some(Ok(http_body::Frame::data(piece?.into()))))
        }
    }

    proptest! {
        #[test]
        fn bodies_of_random_bytes_never_panic(bytes: Vec<u8>, flip in 0..200_usize) {
            let memory = BodyMemory::new();
            let raw = ReceivedBody { bytes: bytes.clone(), share: None, own_share: None };
            drop(memory.decompress(&raw, None));
            let mut bent = gzip(&bytes);
            let at = flip % bent.len();
            bent[at] ^= 1;
            drop(memory.decompress(&ReceivedBody { bytes: bent, share: None, own_share: None }, None));
        }
    }
}
