//! Checks that the modules of a folder import one another in one direction only.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, import_paths, read_sources};

/// The path of a module below the crate: `["spool", "disk"]`.
pub(crate) type ModulePath = Vec<String>;

/// The imports between the children of a module, by the module's path.
pub(crate) type ImportGraph = BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>>;

/// Returns the imports that form circles in a crate. `counts` permits none.
pub(crate) fn import_cycles_of_crate(krate: &str) -> ImportGraph {
    import_cycles(import_graph(&read_sources(krate)))
}

fn import_graph(files: &[Source]) -> ImportGraph {
    let modules: BTreeSet<ModulePath> = files.iter().map(Source::module_path).collect();
    let mut graph = ImportGraph::new();
    for file in files.iter().filter(|file| !file.code.is_empty()) {
        let here = file.module_path();
        for path in import_paths(&file.code, &here) {
            // The longest prefix of the path that is a module. The rest names items.
            let is_module = |end: &usize| modules.contains(&path[..*end]);
            let Some(end) = (1..=path.len()).rev().find(is_module) else { continue };
            let there = &path[..end];
            let common = here.iter().zip(there).take_while(|(a, b)| a == b).count();
            // Imports between a parent and its child are permitted.
            if let (Some(from), Some(to)) = (here.get(common), there.get(common)) {
                let siblings = graph.entry(here[..common].to_vec()).or_default();
                siblings.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    graph
}

/// Repeatedly removes modules without remaining imports. The rest are the circles.
fn import_cycles(mut graph: ImportGraph) -> ImportGraph {
    for siblings in graph.values_mut() {
        loop {
            let open: BTreeSet<String> = siblings.keys().cloned().collect();
            siblings.retain(|_, targets| targets.iter().any(|target| open.contains(target)));
            if siblings.len() == open.len() {
                break;
            }
        }
    }
    graph.retain(|_, siblings| !siblings.is_empty());
    graph
}

#[test]
fn an_import_cycle_is_found_at_any_depth() {
    let file = |path: &str, code: &str| Source::for_test(path, code);
    #[rustfmt::skip]
    let table: [(&str, Vec<Source>, usize); 4] = [
        ("one direction", vec![file("a/b.rs", "use super::c;"), file("a/c.rs", ""), file("a.rs", "")], 0),
        ("siblings",      vec![file("a/b.rs", "use super::c::X;"), file("a/c.rs", "use crate::a::b;"), file("a.rs", "")], 1),
        ("through a child", vec![file("a/b/d.rs", "use super::super::c;"), file("a/b.rs", ""), file("a/c.rs", "use crate::a::b::Y;"), file("a.rs", "")], 1),
        ("parent and child", vec![file("a.rs", "use crate::a::b;"), file("a/b.rs", "use super::Z;")], 0),
    ];
    for (rule, files, expected) in table {
        assert_eq!(import_cycles(import_graph(&files)).len(), expected, "{rule}");
    }
}
