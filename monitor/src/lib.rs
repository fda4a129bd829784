//! What monitors show of a job (manual 3.5.3): shares and rates, made from the totals that its
//! shepherds report, scaled as the manual says. One model for the monitor of the terminal
//! (`scmon`), the page that scored serves, and programs.
//!
//! ```text
//! shepherds --Figures--> scored --Up::Figures--> JobView::apply_report --> processes, hosts
//! ```
//!
//! No clocks and no sockets: whoever reads says when.
#![forbid(unsafe_code)]

mod history;
mod metric;
mod view;

pub use history::History;
pub use metric::{Metric, parse_metrics};
pub use view::{Host, JobView, Process};
