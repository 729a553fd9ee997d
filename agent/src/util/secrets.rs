//! PURE: masks secrets in bytes that leave the machine.

/// The minimum length of a line of a multi-line secret that is masked, in bytes.
const MIN_SECRET_LINE_BYTES: usize = 8;

/// The text in place of a secret.
const SECRET_MASK: &[u8] = b"***";

/// Texts that must not leave the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    /// Creates the list of secrets. It also contains the lines of multi-line secrets (such as a PEM key), because logs
    /// are masked line by line. Values that are too short are left out, because they would mask too much.
    pub fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut values: Vec<_> = values.into_iter().filter(|value| value.len() >= 4).collect();
        let lines: Vec<_> = values
            .iter()
            .filter(|value| value.trim_ascii().contains(&b'\n'))
            .flat_map(|value| value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii))
            .filter(|line| line.len() >= MIN_SECRET_LINE_BYTES)
            .map(<[u8]>::to_vec)
            .collect();
        let ends = values.iter().map(|value| value.trim_ascii().to_vec());
        values = ends.filter(|value| value.len() >= 4).chain(lines).collect();
        // A secret that contains another one is masked first, or a part of it would remain.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self(values)
    }

    /// Returns the length of the longest secret.
    pub fn longest_secret(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// Replaces every secret in `text`.
    pub fn mask_text(&self, text: String) -> String {
        if self.0.is_empty() {
            return text;
        }
        let mut bytes = text.into_bytes();
        self.mask(&mut bytes);
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Replaces every secret in `bytes`.
    pub fn mask(&self, bytes: &mut Vec<u8>) {
        for secret in &self.0 {
            let finder = memchr::memmem::Finder::new(secret);
            if finder.find(bytes).is_none() {
                continue;
            }
            let mut masked = Vec::with_capacity(bytes.len());
            let mut rest = bytes.as_slice();
            while let Some(at) = finder.find(rest) {
                masked.extend_from_slice(&rest[..at]);
                masked.extend_from_slice(SECRET_MASK);
                rest = &rest[at + secret.len()..];
            }
            masked.extend_from_slice(rest);
            *bytes = masked;
        }
    }
}
