//! The patches fit the tree: a fault that cannot be made any more would be caught by nobody.

use std::path::Path;

use rlock_check::mutants;

#[test]
fn each_mutant_can_be_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mutants = mutants::all(&root).expect("the patches are there");
    assert!(mutants.len() >= 14, "{} are few", mutants.len());
    for mutant in mutants {
        mutant.check(&root).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(mutant.what.ends_with('.'), "{} says in its first line what is wrong", mutant.name);
    }
}
