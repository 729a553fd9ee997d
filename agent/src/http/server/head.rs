//! PURE: parses the head of a request, the part of HTTP/1.1 (RFC 9112) that a small endpoint needs.
//!
//! A crate for full HTTP servers would be larger than everything around it, and it supports much that this endpoint
//! does not need.

/// The maximum size of a head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// The request target, a path.
    pub target: String,
    /// Length of the body, in bytes.
    pub body_length: usize,
    /// `true` if the connection stays open after the answer.
    pub keeps_alive: bool,
    /// `true` if the client waits for "100 Continue" before it sends its body.
    pub expects_continue: bool,
}

/// The methods that the endpoints distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// PUT.
    Put,
    /// Another method.
    Other,
}

/// The reasons for refusing a request. Its connection is then closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The head is not that of an HTTP/1 request.
    Malformed,
    /// The head is too large.
    HeadTooLarge,
    /// The length of the body is not given in the head.
    LengthRequired,
}

impl Refusal {
    /// Returns the corresponding status.
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::LengthRequired => "411 Length Required",
        }
    }
}

/// Parses the head at the start of `bytes`, and returns it with its length. Returns `None` if it is incomplete.
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Refusal> {
    let window = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let Some(end) = memchr::memmem::find(window, b"\r\n\r\n") else {
        return if bytes.len() < MAX_HEAD_BYTES { Ok(None) } else { Err(Refusal::HeadTooLarge) };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Refusal::Malformed)?;
    let mut lines = text.split("\r\n");
    let request = lines.next().ok_or(Refusal::Malformed)?;
    let (method, target, keeps_alive) = parse_request_line(request).ok_or(Refusal::Malformed)?;

    let mut head = Head { method, target, body_length: 0, keeps_alive, expects_continue: false };
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        let value = value.trim_matches([' ', '\t']);
        if name.eq_ignore_ascii_case("content-length") {
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let length = value.parse().ok().filter(|_| digits);
            head.body_length = length.ok_or(Refusal::Malformed)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Refusal::LengthRequired);
        } else if name.eq_ignore_ascii_case("connection") {
            for option in value.split(',').map(str::trim) {
                if option.eq_ignore_ascii_case("close") {
                    head.keeps_alive = false;
                } else if option.eq_ignore_ascii_case("keep-alive") {
                    head.keeps_alive = true;
                }
            }
        } else if name.eq_ignore_ascii_case("expect") {
            head.expects_continue = value.eq_ignore_ascii_case("100-continue");
        }
    }
    Ok(Some((head, end + 4)))
}

fn parse_request_line(line: &str) -> Option<(Method, String, bool)> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let method = match method {
        "GET" => Method::Get,
        "PUT" => Method::Put,
        "" => return None,
        _ => Method::Other,
    };
    let keeps_alive = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    words.next().is_none().then(|| (method, target.to_owned(), keeps_alive))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parsed = Result<Option<(Method, usize, bool, bool)>, Refusal>;

    #[test]
    fn request_heads_are_parsed() {
        use Method::{Get, Other, Put};
        let large = format!("GET /x HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(MAX_HEAD_BYTES));
        let accepted =
            |method, length, keeps_alive, expects| Ok(Some((method, length, keeps_alive, expects)));
        #[rustfmt::skip]
        let table: [(&str, &str, Parsed); 18] = [
            ("a poll",               "GET /x HTTP/1.1\r\nHost: h\r\n\r\n",                      accepted(Get, 0, true, false)),
            ("a command",            "PUT /x HTTP/1.1\r\nContent-Length: 29\r\n\r\n{",          accepted(Put, 29, true, false)),
            ("in another case",      "PUT /x HTTP/1.1\r\ncontent-length:29\r\n\r\n",            accepted(Put, 29, true, false)),
            ("that closes",          "PUT /x HTTP/1.1\r\nConnection: close\r\n\r\n",            accepted(Put, 0, false, false)),
            ("of an older version",  "GET /x HTTP/1.0\r\n\r\n",                                 accepted(Get, 0, false, false)),
            ("that stays",           "GET /x HTTP/1.0\r\nConnection: Keep-Alive, x\r\n\r\n",    accepted(Get, 0, true, false)),
            ("that waits for a nod", "PUT /x HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",         accepted(Put, 0, true, true)),
            ("another method",       "DELETE /x HTTP/1.1\r\n\r\n",                              accepted(Other, 0, true, false)),
            ("nothing",              "",                                                        Ok(None)),
            ("half of it",           "GET /x HTTP/1.1\r\nHost:",                                Ok(None)),
            ("no HTTP",              "hello\r\n\r\n",                                           Err(Refusal::Malformed)),
            ("HTTP/2",               "PRI * HTTP/2.0\r\n\r\n",                                  Err(Refusal::Malformed)),
            ("too many words",       "GET /x y HTTP/1.1\r\n\r\n",                               Err(Refusal::Malformed)),
            ("a header of no name",  "GET /x HTTP/1.1\r\nhello\r\n\r\n",                        Err(Refusal::Malformed)),
            ("a length of no digits", "GET /x HTTP/1.1\r\nContent-Length: +1\r\n\r\n",          Err(Refusal::Malformed)),
            ("a length too large",   "GET /x HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", Err(Refusal::Malformed)),
            ("a chunked body",       "PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",   Err(Refusal::LengthRequired)),
            ("a head too large",     &large,                                                    Err(Refusal::HeadTooLarge)),
        ];
        for (case, bytes, expected) in table {
            let parsed = parse_head(bytes.as_bytes()).map(|parsed| {
                let (head, length) = parsed?;
                assert!(bytes[..length].ends_with("\r\n\r\n"), "{case}");
                assert_eq!(head.target, "/x", "{case}");
                Some((head.method, head.body_length, head.keeps_alive, head.expects_continue))
            });
            assert_eq!(parsed, expected, "{case}");
        }
    }

    proptest! {
        #[test]
        fn heads_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(parse_head(&bytes));
            drop(parse_head(&[b"GET / HTTP/1.1\r\n", &bytes[..], b"\r\n\r\n"].concat()));
        }
    }
}
