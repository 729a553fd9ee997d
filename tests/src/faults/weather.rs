//! PURE: what a network can do to a request.

/// How the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Every request passes.
    Calm,
    /// Every other request meets a fault, any of them.
    Storm,
    /// Nobody listens.
    Refusing,
    /// Every request meets this one.
    Always(Fault),
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The connection is reset when half of the request has arrived; the manager sees none of it.
    ResetInBody,
    /// Half of the request reaches the manager, then both connections end.
    TornBody,
    /// The manager takes the request, and nobody hears its answer.
    LostAck,
    /// Half of the answer arrives.
    CutAck,
    /// The manager gets the request twice at the same time.
    Twice,
    /// The manager gets it now, and again later.
    AgainLater,
    /// It takes a while on its way, and so does the answer.
    Slow,
    /// It is answered with 500, and the manager sees none of it.
    Answer500,
    /// The manager takes it, and the answer that arrives is a 502 of somebody else's.
    Answer502Taken,
    /// It is answered with 503 and `Retry-After: 0`.
    Answer503,
    /// It is answered with 503, and nothing says when to come back.
    Answer503Bare,
    /// It is answered with 429 and `Retry-After: 1`.
    Answer429,
    /// It is answered with 401.
    Answer401,
    /// It is answered with 413 if more than one report is in it.
    Answer413,
    /// It is answered with 200 and something that is no ack.
    Nonsense,
    /// Nobody answers, for as long as the weather lasts.
    BlackHole,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::ResetInBody,
        Self::TornBody,
        Self::LostAck,
        Self::CutAck,
        Self::Twice,
        Self::AgainLater,
        Self::Slow,
        Self::Answer500,
        Self::Answer502Taken,
        Self::Answer503,
        Self::Answer503Bare,
        Self::Answer429,
        Self::Answer401,
        Self::Answer413,
        Self::Nonsense,
        Self::BlackHole,
    ];

    /// The answer that is given in the manager's place: status line, a header or none, body.
    pub(super) fn answer(self) -> Option<(&'static str, &'static str, &'static str)> {
        let problem =
            "{\"title\":\"a fault\",\"status\":0,\"code\":\"fault\",\"detail\":\"injected\"}";
        match self {
            Self::Answer500 => Some(("500 Internal Server Error", "", problem)),
            Self::Answer502Taken => Some(("502 Bad Gateway", "", "<html>bad gateway</html>")),
            Self::Answer503 => Some(("503 Service Unavailable", "retry-after: 0\r\n", problem)),
            Self::Answer503Bare => Some(("503 Service Unavailable", "", "")),
            Self::Answer429 => Some(("429 Too Many Requests", "retry-after: 1\r\n", problem)),
            Self::Answer401 => Some(("401 Unauthorized", "www-authenticate: Bearer\r\n", problem)),
            Self::Answer413 => Some(("413 Content Too Large", "", "<html>a proxy's limit</html>")),
            Self::Nonsense => Some(("200 OK", "", "<html>welcome to the hotel's network</html>")),
            Self::ResetInBody
            | Self::TornBody
            | Self::LostAck
            | Self::CutAck
            | Self::Twice
            | Self::AgainLater
            | Self::Slow
            | Self::BlackHole => None,
        }
    }
}
