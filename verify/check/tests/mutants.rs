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

#[test]
fn each_lemma_needs_a_mutant() {
    let tree = tempfile::tempdir().expect("a temporary folder");
    let folder = tree.path().join("verify/check/mutants");
    std::fs::create_dir_all(&folder).expect("a folder");
    let add = |lemma: &str| std::fs::write(folder.join(format!("{lemma}.patch")), format!("Wrong.\nLemma: {lemma}\n"));
    let error = || mutants::all(tree.path()).map(|_| ()).map_err(|error| error.to_string());
    for lemma in ["1", "2", "3", "4", "5", "6", "7"] {
        assert_eq!(error(), Err(format!("no mutant breaks lemma {lemma} of docs/guarantees.md")));
        add(lemma).expect("a patch");
    }
    assert_eq!(error(), Ok(()));
}
