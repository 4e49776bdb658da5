//! Each patch applies to the tree. Otherwise its fault could not be tried.

use std::path::Path;

use rlock_check::mutants;

#[test]
fn each_mutant_applies_to_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mutants = mutants::all(&root).expect("the patches are readable");
    assert!(mutants.len() >= 14, "only {} mutants", mutants.len());
    for mutant in mutants {
        mutant.check(&root).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(mutant.what.ends_with('.'), "the first line of {} is not a sentence", mutant.name);
    }
}
