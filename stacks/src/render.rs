//! Formats a prefix tree as text, for Graphviz, and as JSON.

use std::fmt::Write;

use score_proto::nodeset::NodeSet;
use serde_json::{Value, json};

use crate::frame::Frame;
use crate::tree::{StackTree, TreeNode};

/// Maximum number of ranges of ranks in a label. Ranks of further ranges are only counted.
const MAX_LABEL_RANGES: usize = 12;
/// Maximum length of a label for Graphviz, in characters.
const MAX_LABEL_LEN: usize = 120;

/// Limits for the displayed part of a tree. Omitted parts are shown as `...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Maximum depth in frames.
    pub max_depth: usize,
    /// Maximum number of nodes.
    pub max_nodes: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self { max_depth: 256, max_nodes: 10_000 }
    }
}

/// Formats a set of ranks, as in `0-3,7`. Shows `max_ranges` ranges, and counts the ranks of the
/// others.
fn rank_list(ranks: &NodeSet, max_ranges: usize) -> String {
    let mut text = String::new();
    for (index, range) in ranks.ranges().take(max_ranges).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = match range.end - range.start {
            1 => write!(text, "{comma}{}", range.start),
            _ => write!(text, "{comma}{}-{}", range.start, range.end - 1),
        };
    }
    let more: u32 = ranks.ranges().skip(max_ranges).map(|range| range.end - range.start).sum();
    if more > 0 {
        let _ = write!(text, ",+{more} more");
    }
    text
}

/// The label of a node: its ranks, and the number of threads if a rank has several.
fn rank_label(node: &TreeNode) -> String {
    let ranks = rank_list(&node.ranks, MAX_LABEL_RANGES);
    match (node.threads, u64::from(node.ranks.len())) {
        (threads, ranks_here) if threads == ranks_here => format!("[{ranks}]"),
        (threads, _) => format!("[{ranks}: {threads} threads]"),
    }
}

/// Formats the tree as lines. A frame that is the only child is shown directly below its parent, so
/// a stack without branches needs no indentation.
pub fn text(tree: &StackTree, limits: RenderLimits) -> String {
    let mut lines = String::new();
    let mut writer = TextWriter { lines: &mut lines, limits, nodes: 0 };
    let root = tree.root();
    let _ = writeln!(writer.lines, "all ranks {}", rank_label(root));
    writer.children(root, "", 0);
    lines
}

struct TextWriter<'a> {
    lines: &'a mut String,
    limits: RenderLimits,
    nodes: usize,
}

impl TextWriter<'_> {
    fn children(&mut self, node: &TreeNode, indent: &str, depth: usize) {
        let children = by_threads(node);
        // Threads in the frame itself are a branch like any other.
        let is_chain = children.len() == 1 && node.own_threads() == 0;
        for (index, (frame, child)) in children.iter().enumerate() {
            if depth >= self.limits.max_depth || self.nodes >= self.limits.max_nodes {
                let left = children.len() - index;
                let noun = if left == 1 { "branch" } else { "branches" };
                let _ = writeln!(self.lines, "{indent}`- ... {left} {noun} left out");
                return;
            }
            self.nodes += 1;
            let is_last = index + 1 == children.len();
            let corner = if is_last { "`- " } else { "|- " };
            let corner = if is_chain && depth > 0 { "" } else { corner };
            // In a chain, the ranks are those of the frame above.
            let label = match is_chain && depth > 0 {
                true => String::new(),
                false => format!("  {}", rank_label(child)),
            };
            let _ = writeln!(self.lines, "{indent}{corner}{frame}{label}");
            let next = match (corner, is_last) {
                ("", _) => indent.to_owned(),
                (_, true) => format!("{indent}   "),
                (_, false) => format!("{indent}|  "),
            };
            self.children(child, &next, depth + 1);
        }
    }
}

/// The children. Those with the most threads come first.
fn by_threads(node: &TreeNode) -> Vec<(&Frame, &TreeNode)> {
    let mut children: Vec<_> = node.children.iter().collect();
    children.sort_by_key(|(_, child)| std::cmp::Reverse(child.threads));
    children
}

/// Formats the tree for Graphviz: a node for each frame, with the ranks at the edges.
pub fn dot(tree: &StackTree, limits: RenderLimits) -> String {
    let mut writer = DotWriter { lines: String::new(), limits, nodes: 1 };
    writer.lines.push_str("digraph stacks {\n  node [shape=box];\n");
    let _ = writeln!(writer.lines, "  n0 [label=\"all ranks\"];");
    writer.children(tree.root(), 0, 0);
    writer.lines.push_str("}\n");
    writer.lines
}

struct DotWriter {
    lines: String,
    limits: RenderLimits,
    nodes: usize,
}

impl DotWriter {
    fn children(&mut self, node: &TreeNode, number: usize, depth: usize) {
        for (index, (frame, child)) in by_threads(node).into_iter().enumerate() {
            let own = self.nodes;
            self.nodes += 1;
            let is_cut = depth >= self.limits.max_depth || own > self.limits.max_nodes;
            let label = match is_cut {
                true => format!("... {} left out", node.children.len() - index),
                false => frame.to_string(),
            };
            let _ = writeln!(self.lines, "  n{own} [label=\"{}\"];", escape(&label));
            let edge = if is_cut { String::new() } else { rank_label(child) };
            let _ = writeln!(self.lines, "  n{number} -> n{own} [label=\"{}\"];", escape(&edge));
            if is_cut {
                return;
            }
            self.children(child, own, depth + 1);
        }
    }
}

/// Escapes a string for Graphviz. Names come from programs, and must not end the string.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars().take(MAX_LABEL_LEN) {
        if matches!(letter, '"' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Formats the tree as JSON. Each node has `frame`, `ranks`, `threads` and `children`.
pub fn json(tree: &StackTree, limits: RenderLimits) -> Value {
    let mut nodes = 0;
    let root = tree.root();
    json!({
        "ranks": rank_list(&root.ranks, usize::MAX),
        "threads": root.threads,
        "children": json_children(root, limits, 0, &mut nodes),
    })
}

fn json_children(
    node: &TreeNode,
    limits: RenderLimits,
    depth: usize,
    nodes: &mut usize,
) -> Vec<Value> {
    let mut values = Vec::new();
    let children = by_threads(node);
    for (index, (frame, child)) in children.iter().enumerate() {
        if depth >= limits.max_depth || *nodes >= limits.max_nodes {
            values.push(json!({ "left_out": children.len() - index }));
            break;
        }
        *nodes += 1;
        let mut value = json_frame(frame);
        value["ranks"] = rank_list(&child.ranks, usize::MAX).into();
        value["threads"] = child.threads.into();
        value["children"] = json_children(child, limits, depth + 1, nodes).into();
        values.push(value);
    }
    values
}

fn json_frame(frame: &Frame) -> Value {
    let text = frame.to_string();
    match frame {
        Frame::Function { name, module, source, is_inlined } => {
            let mut value = json!({
                "frame": text, "function": name, "module": module, "inlined": is_inlined,
            });
            if let Some(source) = source {
                value["file"] = source.file.clone().into();
                value["line"] = source.line.into();
            }
            value
        }
        Frame::Address { module, offset } => {
            json!({ "frame": text, "module": module, "offset": offset })
        }
        _ => json!({ "frame": text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Stack;

    fn tree() -> StackTree {
        let function = |name: &str| Frame::Function {
            name: name.to_owned(),
            module: "heat".to_owned(),
            source: None,
            is_inlined: false,
        };
        let stack =
            |names: &[&str]| Stack { frames: names.iter().map(|it| function(it)).collect() };
        let mut tree = StackTree::new();
        let most = [0, 1, 2, 3, 7].into_iter().collect();
        tree.insert(&stack(&["main", "solve", "MPI_Recv", "poll"]), &most, 5);
        tree.insert(&stack(&["main", "solve", "say \"x\\y\""]), &NodeSet::one(5), 1);
        tree.insert(&stack(&["thread", "poll"]), &NodeSet::from(0..8), 16);
        tree
    }

    #[test]
    fn the_text_output_has_the_ranks_of_each_branch() {
        let expected = "\
all ranks [0-7: 22 threads]
|- thread in heat  [0-7: 16 threads]
|  poll in heat
`- main in heat  [0-3,5,7]
   solve in heat
   |- MPI_Recv in heat  [0-3,7]
   |  poll in heat
   `- say \"x\\y\" in heat  [5]
";
        assert_eq!(text(&tree(), RenderLimits::default()), expected);
    }

    #[test]
    fn omitted_parts_are_visible() {
        let limits = RenderLimits { max_depth: 2, ..RenderLimits::default() };
        let shown = text(&tree(), limits);
        assert!(shown.contains("`- ... 2 branches left out"), "{shown}");
        let limits = RenderLimits { max_nodes: 1, ..RenderLimits::default() };
        assert!(text(&tree(), limits).contains("... 1 branch left out"));
        assert!(dot(&tree(), limits).contains("left out"));
        assert!(json(&tree(), limits).to_string().contains("left_out"));
    }

    #[test]
    fn the_graphviz_output_has_one_statement_for_each_node_and_edge() {
        let dot = dot(&tree(), RenderLimits::default());
        assert_eq!(dot.matches(" -> ").count(), 7, "{dot}");
        assert!(dot.contains(r#"[label="say \"x\\y\" in heat"];"#), "{dot}");
        assert!(dot.contains(r#"[label="[0-3,7]"];"#), "{dot}");
        assert!(dot.starts_with("digraph stacks {") && dot.ends_with("}\n"));
    }

    #[test]
    fn json_has_ranks_threads_and_frames() {
        let json = json(&tree(), RenderLimits::default());
        assert_eq!(json["ranks"], "0-7");
        assert_eq!(json["threads"], 22);
        let main = &json["children"][1];
        assert_eq!((&main["function"], &main["ranks"]), (&json!("main"), &json!("0-3,5,7")));
        assert_eq!(main["children"][0]["children"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_long_list_of_ranks_is_counted_at_its_end() {
        let odd: NodeSet = (0..100).map(|rank| rank * 2 + 1).collect();
        assert!(rank_list(&odd, MAX_LABEL_RANGES).ends_with("21,23,+88 more"));
        assert_eq!(rank_list(&odd, usize::MAX).split(',').count(), 100);
    }
}
