//! PURE: the location of a field in a file's text. A checked document has no line numbers, so the text is parsed a
//! second time, and only after an error.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::util::nearest::normalize_name;

/// A location in a text. Both numbers count from 1, and columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The line.
    pub line: u64,
    /// The column.
    pub column: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl From<serde_saphyr::Location> for Location {
    fn from(place: serde_saphyr::Location) -> Self {
        Self { line: place.line(), column: place.column() }
    }
}

/// A text in which fields can be located. JSON is read as YAML, which includes it.
#[derive(Debug)]
pub(super) struct FieldLocations(Node);

impl FieldLocations {
    /// Parses a text that was already read as a document. `None`: the text cannot be parsed again.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        serde_saphyr::from_str(text).ok().map(Self)
    }

    /// Returns the location of a field, such as `trainingService.taskRoles[0].name`. For a missing field, returns the
    /// location of the object that should contain it. `None`: that object is the whole document.
    pub(super) fn find(&self, path: &str) -> Option<Location> {
        self.follow_path(path).0
    }

    /// Returns the location of a field that must exist.
    pub(super) fn find_exactly(&self, path: &str) -> Option<Location> {
        let (place, rest) = self.follow_path(path);
        place.filter(|_| rest.is_empty())
    }

    /// Follows a path as far as it leads. Returns the last location and the rest of the path.
    fn follow_path<'a>(&self, path: &'a str) -> (Option<Location>, &'a str) {
        let (mut node, mut rest, mut place) = (&self.0, path, None);
        while let Some((at, child, left)) = node.follow_step(rest) {
            (node, rest, place) = (child, left, Some(at));
        }
        (place, rest)
    }
}

/// A value, with the locations of its parts.
#[derive(Debug)]
enum Node {
    Map(Vec<(String, Location, Self)>),
    List(Vec<(Location, Self)>),
    Leaf,
}

impl Node {
    /// Follows the first step of a path. Returns the location, the value and the rest of the path.
    fn follow_step<'a>(&self, path: &'a str) -> Option<(Location, &Self, &'a str)> {
        match self {
            Self::Map(members) => {
                // A key may contain dots, so the longest match counts.
                let below = |key: &str| {
                    path.strip_prefix(key)
                        .filter(|left| left.is_empty() || left.starts_with(['.', '[']))
                };
                let fits =
                    members.iter().filter_map(|(key, at, node)| Some((key, at, node, below(key)?)));
                if let Some((_, at, node, left)) = fits.max_by_key(|(key, ..)| key.len()) {
                    return Some((*at, node, left.strip_prefix('.').unwrap_or(left)));
                }
                let end = path.find(['.', '[']).unwrap_or(path.len());
                let wanted = normalize_name(&path[..end]);
                let (_, at, node) =
                    members.iter().find(|(key, ..)| normalize_name(key) == wanted)?;
                let left = &path[end..];
                Some((*at, node, left.strip_prefix('.').unwrap_or(left)))
            }
            Self::List(items) => {
                let (index, left) = path.strip_prefix('[')?.split_once(']')?;
                let (at, node) = items.get(index.parse::<usize>().ok()?)?;
                Some((*at, node, left.strip_prefix('.').unwrap_or(left)))
            }
            Self::Leaf => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Node>>()? {
            list.push((item.referenced.into(), item.value));
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            members.push((key.value, key.referenced.into(), entries.next_value()?));
        }
        Ok(Node::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YAML: &str = "\
# A comment.
trial_command: \"ä\"
trainingService:
  platform: local
  taskRoles:
    - name: ps
    - {name: worker, gpuNumber: x}
searchSpace:
  a.b: {_type: choice, _value: [1, 2]}
  a:
    _type: uniform
tuner: &t
  name: TPE
assessor: *t
";

    #[test]
    fn a_field_is_located_in_the_text() {
        #[rustfmt::skip]
        let table = [
            ("trialCommand",                        Some((2, 1))),
            ("trainingService.platform",            Some((4, 3))),
            ("trainingService.taskRoles[0].name",   Some((6, 7))),
            ("trainingService.taskRoles[1].gpuNumber", Some((7, 22))),
            ("trainingService.taskRoles[1]",        Some((7, 7))),
            ("searchSpace.a.b._value[1]",           Some((9, 36))),
            ("searchSpace.a._type",                 Some((11, 5))),
            // The field is missing, so the object that should contain it is reported.
            ("trainingService.storage.server",      Some((3, 1))),
            ("trainingService.taskRoles[9].name",   Some((5, 3))),
            ("trialConcurrency",                    None),
            ("",                                    None),
        ];
        let json = "{\n\t\"trial_command\": \"ä\",\n\t\"tuner\": {\"name\": 7}\n}";
        let yaml = FieldLocations::parse(YAML.as_bytes()).unwrap();
        for (path, expected) in table {
            let found = yaml.find(path).map(|at| (at.line, at.column));
            assert_eq!(found, expected, "{path}");
        }
        let json = FieldLocations::parse(json.as_bytes()).unwrap();
        let found = ["trialCommand", "tuner.name"].map(|path| json.find(path).unwrap().to_string());
        assert_eq!(found, ["line 2, column 2", "line 3, column 12"]);
        assert_eq!(yaml.find_exactly("trainingService.storage"), None);
    }

    proptest! {
        #[test]
        fn random_paths_in_random_texts_never_panic(
            text in "[ \n:a1{}\\[\\],'\"&*#|>!%@-]{0,40}",
            path in "[a1.\\[\\]ä]{0,12}",
        ) {
            let found = FieldLocations::parse(text.as_bytes()).and_then(|places| places.find(&path));
            prop_assert!(found.is_none_or(|at| at.line > 0 && at.column > 0));
        }
    }
}
