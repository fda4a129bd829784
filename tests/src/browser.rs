//! Runs a headless browser, which opens the page of a cluster.

use std::path::{Path, PathBuf};

use crate::{Outcome, TestEnv, skip, test_env};

/// Names under which Chromium is installed; the first is the name in the package.
const BROWSER_PROGRAMS: [&str; 3] = ["chromium-headless-shell", "chromium", "chromium-browser"];

/// An installed Chromium.
pub struct Browser<'a> {
    env: &'a TestEnv,
    name: &'static str,
}

impl<'a> Browser<'a> {
    /// Finds an installed browser. If there is none, returns `None` and prints a skip.
    pub fn find(env: &'a TestEnv) -> Option<Self> {
        let Some(name) = BROWSER_PROGRAMS.into_iter().find(|name| test_env::is_installed(name))
        else {
            skip("page_in_a_browser", "chromium-headless-shell is not installed");
            return None;
        };
        Some(Self { env, name })
    }

    /// Opens an address, runs the page's script for a moment, and takes a screenshot. Returns the
    /// resulting document (standard output) and the messages of the script (standard error).
    pub fn open(&self, url: &str, screenshot: &Path, extra_args: &[&str]) -> Outcome {
        let profile: PathBuf = self.env.dir().join("browser");
        let command = self.env.command(self.name).args(&[
            "--headless",
            // Chromium refuses to run its own sandbox as root.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--enable-logging=stderr",
            // The script's clock runs as fast as it can, but requests take real time.
            "--virtual-time-budget=4000",
            "--dump-dom",
        ]);
        command
            .arg(&format!("--user-data-dir={}", profile.display()))
            .arg(&format!("--screenshot={}", screenshot.display()))
            .args(extra_args)
            .arg(url)
            .run()
    }
}

/// The lines that the page's script, or the browser itself, has written to the console.
pub fn console_messages(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.stderr.lines().filter(|line| line.contains("CONSOLE"));
    lines.map(str::to_owned).collect()
}
