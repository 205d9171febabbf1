//! The shipped program holds no broken variant.
//!
//! Tests build the engine with switches that break it on purpose (feature `variants`), to prove that they would notice.
//! The names of these switches are listed once, in `engine/src/variant.rs`, as `pub const NAMES: &[&str] = &[..]`, in
//! kebab case. If one of them is in the released program, that feature has leaked into it. The list is read as text:
//! linking the engine with the feature here would unify it into everything that is built together with this crate.

use std::fs;

use crate::outcome::Outcome;
use crate::place::Place;

/// The features for tests only.
const TEST_FEATURES: [&str; 2] = ["sim", "variants"];

/// The cargo command that prints each package of the released program with its features.
pub(crate) const FEATURES: &str =
    "tree --package blkring --edges no-dev --prefix none --no-dedupe --format {p}\t{f}";

const LIST: &str = "engine/src/variant.rs";

/// Shorter names would be found in a program by chance.
const MIN_NAME: usize = 6;

/// Searches the released program for the names of all variants.
pub(crate) fn check(place: &Place) -> Outcome {
    let list = match fs::read_to_string(place.root.join(LIST)) {
        Ok(list) => list,
        Err(error) => return Outcome::skip(format!("{LIST}, which lists the variants: {error}")),
    };
    let names = match names(&list) {
        Ok(names) => names,
        Err(reason) => return Outcome::fail(format!("{LIST}: {reason}")),
    };
    let path = place.program();
    let program = match fs::read(&path) {
        Ok(program) => program,
        Err(error) => return Outcome::fail(format!("{}: {error}", path.display())),
    };
    let found: Vec<_> = names.into_iter().filter(|name| contains(&program, name)).collect();
    match found.is_empty() {
        true => Outcome::pass(),
        false => Outcome::fail(format!("{} contains the variants {found:?}", path.display())),
    }
}

/// Looks for test-only features of our packages in what [`FEATURES`] printed. The names of the variants alone do not
/// tell: a list of names that nothing in the program uses is left out by the linker.
pub(crate) fn check_features(tree: &str) -> Outcome {
    let ours = tree.lines().filter(|line| line.starts_with("blkring"));
    let packages: Vec<(&str, &str)> = ours.filter_map(|line| line.split_once('\t')).collect();
    if !packages.iter().any(|(package, _)| package.starts_with("blkring-engine ")) {
        return Outcome::fail("cargo tree does not show blkring-engine in the program");
    }
    let with_test_feature =
        |features: &str| features.split(',').any(|one| TEST_FEATURES.contains(&one));
    match packages.into_iter().find(|(_, features)| with_test_feature(features)) {
        None => Outcome::pass(),
        Some((package, features)) => {
            Outcome::fail(format!("the program has {package} with {features}"))
        }
    }
}

/// The strings between `pub const NAMES: &[&str] = &[` and `];`.
fn names(list: &str) -> Result<Vec<&str>, String> {
    let (_, after) =
        list.split_once("pub const NAMES: &[&str]").ok_or("no `pub const NAMES: &[&str]`")?;
    let (body, _) = after.split_once("];").ok_or("`NAMES` does not end with `];`")?;
    let names: Vec<&str> = body.split('"').skip(1).step_by(2).collect();
    if names.is_empty() {
        return Err("`NAMES` is empty".to_owned());
    }
    match names.iter().find(|name| name.len() < MIN_NAME) {
        Some(short) => Err(format!("{short:?} is too short a name to look for")),
        None => Ok(names),
    }
}

fn contains(program: &[u8], name: &str) -> bool {
    program.windows(name.len()).any(|window| window == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let list = "//! Variants.\npub const NAMES: &[&str] = &[\n    \"free-for-all\", // why\n    \"no-sync\",\n];\nfn f() {}";
        assert_eq!(names(list), Ok(vec!["free-for-all", "no-sync"]));
        assert!(names("pub const NAMES: &[&str] = &[];").is_err());
        assert!(names("pub const NAMES: &[&str] = &[\"a\"];").is_err());
        assert!(names("const OTHER: u8 = 1;").is_err());
    }

    #[test]
    fn features_of_tests_are_found() {
        let good = "blkring v0.1.0 (/x)\t\nblkring-engine v0.1.0 (/x)\tdefault\nclap v4.0.0\tsim\n";
        assert_eq!(check_features(good), Outcome::pass());
        let bad = "blkring-engine v0.1.0 (/x)\tdefault,variants\n";
        assert_eq!(check_features(bad).failed, 1);
        assert_eq!(check_features("").failed, 1);
    }

    #[test]
    fn a_name_is_found_anywhere() {
        let program = b"\x7fELF\0\0free-for-all\0";
        assert!(contains(program, "free-for-all"));
        assert!(!contains(program, "free-for-one"));
    }
}
