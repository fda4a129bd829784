//! The monitor model of a job (manual 3.5.3): fractions and rates, computed from the totals that
//! its shepherds report and scaled as in the manual. The terminal monitor (`scmon`), the page that
//! scored serves, and programs use the same model.
//!
//! ```text
//! shepherds --JobReport::Metrics--> scored --JobAnswer::Metrics--> JobView::apply_report
//!                                                              --> processes, hosts
//! ```
//!
//! There are no clocks and no sockets here. The caller passes the time.
#![forbid(unsafe_code)]

mod history;
mod metric;
mod view;

pub use history::History;
pub use metric::{Metric, parse_metrics};
pub use view::{Host, JobView, Process};
