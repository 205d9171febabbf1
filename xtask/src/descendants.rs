//! The processes below a process.

use std::fs;

/// The ids of `root`'s children, their children and so on, as of now.
pub(crate) fn of(root: u32) -> Vec<u32> {
    let parents = parents();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    found.remove(0);
    found
}

/// Every process with its parent. One that ends meanwhile is left out.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let processes = names.filter_map(|name| name.parse::<u32>().ok());
    processes.filter_map(|process| Some((process, parent(process)?))).collect()
}

/// The fourth field of `stat`. The second, the name in brackets, may hold blanks and brackets itself.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_below_its_parent() {
        let this = std::process::id();
        let above = parent(this).unwrap();
        assert!(of(above).contains(&this));
        assert!(!of(this).contains(&this));
    }
}
