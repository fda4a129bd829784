//! A browser without a window, for the page.

use std::path::{Path, PathBuf};

use crate::{Outcome, Scene, scene, skip};

/// Names under which Chromium is installed; the first is that of the package.
const NAMES: [&str; 3] = ["chromium-headless-shell", "chromium", "chromium-browser"];

/// Chromium.
pub struct Browser<'a> {
    scene: &'a Scene,
    name: &'static str,
}

impl<'a> Browser<'a> {
    /// The one that is installed; None, and a skip, where there is none.
    pub fn find(scene: &'a Scene) -> Option<Self> {
        let Some(name) = NAMES.into_iter().find(|name| scene::have(name)) else {
            skip("page_in_a_browser", "chromium-headless-shell is not installed");
            return None;
        };
        Some(Self { scene, name })
    }

    /// Opens an address, lets its script work for a moment, takes a picture of it, and gives what
    /// the document then is (standard output) and what the script has complained about (standard
    /// error).
    pub fn open(&self, url: &str, picture: &Path, more: &[&str]) -> Outcome {
        let profile: PathBuf = self.scene.dir().join("browser");
        let job = self.scene.command(self.name).args(&[
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
        job.arg(&format!("--user-data-dir={}", profile.display()))
            .arg(&format!("--screenshot={}", picture.display()))
            .args(more)
            .arg(url)
            .run()
    }
}

/// Lines in which a page's script, or the browser about it, complains.
pub fn complaints(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.stderr.lines().filter(|line| line.contains("CONSOLE"));
    lines.map(str::to_owned).collect()
}
