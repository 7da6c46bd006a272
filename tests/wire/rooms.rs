//! The modules of the crate import each other in one direction only, and none holds more than a fifth of the code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The crate's modules, with the source files of each. The program (`main.rs`, `cli`, `demo`) is another crate.
fn rooms() -> BTreeMap<String, Vec<PathBuf>> {
    let mut rooms = BTreeMap::<_, Vec<_>>::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = vec![source.clone()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|it| it == "rs") {
            let inside = path.strip_prefix(&source).unwrap();
            let room = inside.components().next().unwrap().as_os_str();
            let room = room.to_str().unwrap().trim_end_matches(".rs");
            rooms.entry(room.to_owned()).or_default().push(path);
        }
    }
    for other in ["main", "cli", "demo", "lib", "testing"] {
        rooms.remove(other).expect("it is there");
    }
    rooms
}

/// The source without comments and without unit tests.
fn code(path: &Path) -> String {
    if path.components().any(|it| it.as_os_str() == "tests") || path.ends_with("tests.rs") {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that stand directly behind `crate::` or in its braces.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            found.insert(name(after));
            continue;
        };
        let (mut depth, mut begins) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => begins = true,
                _ if begins && !c.is_whitespace() => {
                    found.insert(name(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

fn name(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

#[test]
fn no_room_imports_another_in_a_circle() {
    let rooms = rooms();
    let mut left: BTreeMap<_, BTreeSet<_>> = rooms
        .iter()
        .map(|(room, files)| {
            let all = files.iter().flat_map(|file| imports(&code(file)));
            let others = all.filter(|it| it != room && rooms.contains_key(it));
            (room.clone(), others.collect())
        })
        .collect();
    assert!(left["gate"].contains("lock"), "the imports are read");
    assert_eq!(left["lock"], BTreeSet::new());
    assert_eq!(left["resp"], BTreeSet::new());
    // Take away what imports nothing that is left, until nothing is left.
    while !left.is_empty() {
        let free: Vec<_> = left
            .iter()
            .filter(|(_, imports)| imports.iter().all(|it| !left.contains_key(it)))
            .map(|(room, _)| room.clone())
            .collect();
        assert!(!free.is_empty(), "circles among {left:?}");
        free.iter().for_each(|room| drop(left.remove(room)));
    }
}

#[test]
fn no_room_holds_more_than_a_fifth_of_the_code() {
    let lines = |files: &Vec<PathBuf>| {
        let lines = files.iter().map(|file| code(file).lines().count());
        lines.sum::<usize>()
    };
    let rooms: BTreeMap<_, _> = rooms()
        .iter()
        .map(|(room, files)| (room.clone(), lines(files)))
        .collect();
    let all: usize = rooms.values().sum();
    assert!(all > 10_000, "the sources are read: {all}");
    for (room, lines) in rooms {
        assert!(lines * 5 <= all, "{room} has {lines} of {all} lines");
    }
}
