//! A browser without a window, for the page.

use std::path::{Path, PathBuf};

use crate::{Outcome, TestEnv, skip, test_env};

/// Names under which Chromium is installed; the first is that of the package.
const BROWSER_PROGRAMS: [&str; 3] = ["chromium-headless-shell", "chromium", "chromium-browser"];

/// Chromium.
pub struct Browser<'a> {
    env: &'a TestEnv,
    name: &'static str,
}

impl<'a> Browser<'a> {
    /// The one that is installed; None, and a skip, where there is none.
    pub fn find(env: &'a TestEnv) -> Option<Self> {
        let Some(name) = BROWSER_PROGRAMS.into_iter().find(|name| test_env::is_installed(name))
        else {
            skip("page_in_a_browser", "chromium-headless-shell is not installed");
            return None;
        };
        Some(Self { env, name })
    }

    /// Opens an address, lets its script work for a moment, takes a picture of it, and gives what
    /// the document then is (standard output) and what the script has complained about (standard
    /// error).
    pub fn open(&self, url: &str, screenshot: &Path, extra_args: &[&str]) -> Outcome {
        let profile: PathBuf = self.env.dir().join("browser");
        let command = self.env.command(self.name).args(&[
            "--headless",
            // Its own sandbox is not for root.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--enable-logging=stderr",
            // The script's clock goes on as fast as it can; requests take the time they take.
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

/// Lines in which a page's script, or the browser about it, complains.
pub fn console_messages(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.stderr.lines().filter(|line| line.contains("CONSOLE"));
    lines.map(str::to_owned).collect()
}
