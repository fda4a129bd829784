//! The programs of a job, by stage, and the number of the current stage.

use score_proto::ids::ElementIndex;
use score_proto::job_control::Placement;
use score_proto::message::{JobSpec, OsBytes, ProgramKind, StageSpec};

use crate::element::Element;
use crate::stage_hold::ListedStage;

/// The programs of one stage: a pipeline.
#[derive(Debug)]
struct Pipeline {
    paths: Vec<OsBytes>,
    kinds: Vec<ProgramKind>,
}

impl Pipeline {
    fn new(spec: &StageSpec) -> Self {
        let paths = spec.elements.iter().map(|element| element.path.clone()).collect();
        Self { paths, kinds: spec.elements.iter().map(|element| element.kind).collect() }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Programs {
    stages: Vec<Pipeline>,
    /// The number of the current stage; 0 before the first stage is due.
    stage: usize,
    /// [`JobSpec::independent_nodes`]
    has_independent_nodes: bool,
}

impl Programs {
    /// The programs of a job that has not begun its first stage.
    pub fn new(spec: &JobSpec) -> Self {
        Self {
            stages: spec.stages.iter().map(Pipeline::new).collect(),
            stage: 0,
            has_independent_nodes: spec.independent_nodes,
        }
    }

    /// Whether the nodes of the job's programs are independent commands.
    pub fn has_independent_nodes(&self) -> bool {
        self.has_independent_nodes
    }

    /// The stage after the current one.
    pub fn next_stage(&self) -> Option<usize> {
        Some(self.stage + 1).filter(|next| *next < self.stages.len())
    }

    /// A stage is due. Returns its parallel processes, each of this many nodes.
    pub fn begin_stage(&mut self, stage: usize, nodes: u32) -> Vec<Element> {
        self.stage = stage;
        let Pipeline { paths, kinds } = &self.stages[stage];
        let last = ElementIndex(paths.len() as u32 - 1);
        let numbered = (0..).map(ElementIndex).zip(paths.iter().zip(kinds));
        let elements = numbered.map(|(number, (path, kind))| {
            Element::new(number, display_name(path), *kind, nodes, number < last)
        });
        match self.has_independent_nodes {
            true => elements.map(Element::with_independent_nodes).collect(),
            false => elements.collect(),
        }
    }

    /// The current stage, for lists of its processes.
    pub fn listed_stage<'a>(&'a self, placement: &'a Placement) -> ListedStage<'a> {
        ListedStage { stage: self.stage as u32, paths: &self.stages[self.stage].paths, placement }
    }
}

/// The name of a program for the user.
fn display_name(path: &OsBytes) -> String {
    let name = path.0.rsplit(|byte| *byte == b'/').next().unwrap_or(&path.0);
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use score_proto::message::ElementSpec;

    use super::*;

    #[test]
    fn each_stage_has_its_own_programs_and_names_them_without_their_directories() {
        let element = |path: &str| {
            let word = OsBytes(path.as_bytes().to_vec());
            ElementSpec::new(word.clone(), vec![word], ProgramKind::Plain)
        };
        let stages = [vec!["/bin/cat", "sort"], vec!["/opt/a.out"]];
        let stages =
            stages.map(|paths| StageSpec { elements: paths.into_iter().map(element).collect() });
        let spec = JobSpec { stages: stages.to_vec(), ..JobSpec::default() };
        let mut programs = Programs::new(&spec);
        let names = |elements: Vec<Element>| {
            elements.iter().map(|element| element.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(programs.begin_stage(0, 2)), ["cat", "sort"]);
        assert_eq!(programs.next_stage(), Some(1));
        assert_eq!(names(programs.begin_stage(1, 2)), ["a.out"]);
        assert_eq!((programs.next_stage(), programs.has_independent_nodes()), (None, false));
    }
}
