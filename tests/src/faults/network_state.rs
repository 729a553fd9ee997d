//! PURE: the faults that a network can cause.

/// The state of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkState {
    /// Every request passes.
    Healthy,
    /// Every other request meets a random fault.
    RandomFaults,
    /// Connections are refused.
    Refusing,
    /// Every request meets this fault.
    Always(Fault),
}

/// A fault that affects one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The connection is reset after half of the request. The manager receives none of it.
    ResetInBody,
    /// The manager receives half of the request, then both connections end.
    TornBody,
    /// The manager receives the request, but its answer is lost.
    LostAck,
    /// The agent receives a part of the answer.
    CutAck,
    /// The manager receives the request twice at the same time.
    SentTwice,
    /// The manager receives the request now, and again later.
    SentAgainLater,
    /// Request and answer are delayed.
    Delayed,
    /// The answer is 500. The manager does not receive the request.
    Answer500,
    /// The manager receives the request, but the answer is a proxy's 502.
    Answer502AfterDelivery,
    /// The answer is 503 with `Retry-After: 0`.
    Answer503,
    /// The answer is 503 without `Retry-After`.
    Answer503WithoutRetryAfter,
    /// The answer is 429 with `Retry-After: 1`.
    Answer429,
    /// The answer is 401.
    Answer401,
    /// The answer is 413. The manager does not receive the request.
    Answer413,
    /// The answer is 200 with a body that is not an ack.
    MalformedAck,
    /// No answer, until the state of the network changes.
    BlackHole,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 16] = [
        Self::ResetInBody,
        Self::TornBody,
        Self::LostAck,
        Self::CutAck,
        Self::SentTwice,
        Self::SentAgainLater,
        Self::Delayed,
        Self::Answer500,
        Self::Answer502AfterDelivery,
        Self::Answer503,
        Self::Answer503WithoutRetryAfter,
        Self::Answer429,
        Self::Answer401,
        Self::Answer413,
        Self::MalformedAck,
        Self::BlackHole,
    ];

    /// The answer in the manager's place: status line, header (or empty), body.
    pub(super) fn answer(self) -> Option<(&'static str, &'static str, &'static str)> {
        let problem =
            "{\"title\":\"a fault\",\"status\":0,\"code\":\"fault\",\"detail\":\"injected\"}";
        match self {
            Self::Answer500 => Some(("500 Internal Server Error", "", problem)),
            Self::Answer502AfterDelivery => {
                Some(("502 Bad Gateway", "", "<html>bad gateway</html>"))
            }
            Self::Answer503 => Some(("503 Service Unavailable", "retry-after: 0\r\n", problem)),
            Self::Answer503WithoutRetryAfter => Some(("503 Service Unavailable", "", "")),
            Self::Answer429 => Some(("429 Too Many Requests", "retry-after: 1\r\n", problem)),
            Self::Answer401 => Some(("401 Unauthorized", "www-authenticate: Bearer\r\n", problem)),
            Self::Answer413 => Some(("413 Content Too Large", "", "<html>a proxy's limit</html>")),
            Self::MalformedAck => {
                Some(("200 OK", "", "<html>welcome to the hotel's network</html>"))
            }
            Self::ResetInBody
            | Self::TornBody
            | Self::LostAck
            | Self::CutAck
            | Self::SentTwice
            | Self::SentAgainLater
            | Self::Delayed
            | Self::BlackHole => None,
        }
    }
}
