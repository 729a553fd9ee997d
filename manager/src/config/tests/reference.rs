//! Tests of the reference pages: they have each known field.

use super::*;
// The tests have modules of the same names.
use crate::config::goals;
use crate::config::services::inherited::INHERITED_FIELDS;
use crate::config::services::{local, openpai, plugin, remote};

/// Asserts that the pages have each of the fields, as code in their text.
pub(in crate::config) fn expect_on_pages(fields: &[&str], pages: &[&str]) {
    let pages_text: Vec<String> = pages.iter().map(|page| code_of(page)).collect();
    let is_inside = |c: char| c.is_ascii_alphanumeric();
    let has = |text: &String, field: &str| text.split(|c| !is_inside(c)).any(|word| word == field);
    let lacks = |field: &&&str| !pages_text.iter().any(|text| has(text, field));
    let missing: Vec<&&str> = fields.iter().filter(lacks).collect();
    assert!(missing.is_empty(), "{pages:?} lack {missing:?}");
}

/// Returns the pieces of code in the text of a page. The blocks of code are only examples.
fn code_of(page: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = std::fs::read_to_string(docs.join(page)).unwrap();
    let text: Vec<&str> = page.split("\n```").step_by(2).collect();
    text.join("\n").split('`').skip(1).step_by(2).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_field_is_on_the_page_of_its_section() {
    #[rustfmt::skip]
    let table: [(&[&str], &[&str]); 11] = [
        (&check::FIELDS,            &["configuration.md"]),
        (&algorithms::FIELDS,       &["configuration.md"]),
        (&goals::OBJECTIVE_FIELDS,  &["configuration.md"]),
        (&goals::CONSTRAINT_FIELDS, &["configuration.md"]),
        (&notifications::FIELDS,    &["notifications.md"]),
        (&local::FIELDS,            &["configuration.md"]),
        (&remote::FIELDS,           &["configuration.md", "remote.md"]),
        (&remote::MACHINE_FIELDS,   &["remote.md"]),
        (&plugin::FIELDS,           &["configuration.md", "plugins.md"]),
        (&INHERITED_FIELDS,         &["configuration.md"]),
        (&openpai::OPENPAI_FIELDS,  &["openpai.md"]),
    ];
    for (fields, pages) in table {
        expect_on_pages(fields, pages);
    }
}
