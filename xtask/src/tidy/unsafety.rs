//! Checks that modules with unsafe code give a reason, and that memory orders come in named pairs.

use std::collections::BTreeMap;

use super::Tree;

/// Modules that allow unsafe code without a reason.
pub fn unexplained_unsafe(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in
        tree.files_with_extension(&["rs"]).filter(|file| !file.path.starts_with("xtask/src/tidy/"))
    {
        for (index, line) in file.lines.iter().enumerate() {
            let location = format!("{}:{}", file.path, index + 1);
            // A module uses `allow` if it has no unsafe code in some configurations (loom),
            // otherwise `expect`.
            let is_attribute =
                line.trim_start().starts_with("#[") || line.trim_start().starts_with("#![");
            let changes_lint = ["expect(", "allow("].iter().any(|lint| line.contains(lint));
            if !is_attribute || !changes_lint || !line.contains("unsafe_code") {
                continue;
            }
            // The reason is in the comment right above, which may have several lines.
            let above = file.lines[..index].iter().rev();
            let mut comment = above.take_while(|line| line.trim_start().starts_with("//"));
            if !comment.any(|line| line.contains("UNSAFETY: ")) {
                findings.push(format!("{location}: no // UNSAFETY: line above"));
            }
        }
    }
    findings
}

/// Names in `SYNC: name` comments that occur only once. The other end of such a pair is not marked.
pub fn unpaired_sync_comments(tree: &Tree) -> Vec<String> {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in tree.files_with_extension(&["rs"]).filter(|file| !file.path.starts_with("xtask/")) {
        for (index, line) in file.lines.iter().enumerate() {
            let Some((before, after)) = line.split_once("SYNC: ") else { continue };
            if !before.contains("//") {
                continue;
            }
            let name: String = after
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || "-_".contains(*letter))
                .collect();
            seen.entry(name).or_default().push(format!("{}:{}", file.path, index + 1));
        }
    }
    let single = seen.into_iter().filter(|(_, locations)| locations.len() == 1);
    single
        .map(|(name, locations)| format!("{}: SYNC: {name} has no other end", locations[0]))
        .collect()
}
