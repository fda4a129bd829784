//! The terminal: puts it into raw mode, draws on it, and always restores it at the end.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use score_monitor::{JobView, Metric};

use super::draw::{self, FrameText, ViewSettings};

/// An action of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserAction {
    /// Quit.
    Quit,
    /// Draw again.
    Redraw,
}

/// The terminal that is drawn on.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<File>>,
    settings: ViewSettings,
    /// Maximum scroll offset.
    max_offset: usize,
}

impl Screen {
    /// Opens the terminal of standard output or, if there is none, the controlling terminal.
    ///
    /// # Errors
    /// Returns an error if there is no terminal.
    pub fn open() -> Result<Self, String> {
        let path = if io::stdout().is_terminal() { "/proc/self/fd/1" } else { "/dev/tty" };
        let no_terminal = |error: io::Error| format!("no terminal ({error}); use -once or -json");
        // scrun blocks SIGHUP, and its children inherit that. Without the signal, scmon would read
        // for ever from a terminal that has hung up.
        let _ = SigSet::from(Signal::SIGHUP).thread_unblock();
        let mut file = File::options().read(true).write(true).open(path).map_err(no_terminal)?;
        enable_raw_mode().map_err(no_terminal)?;
        execute!(file, EnterAlternateScreen, Hide).map_err(no_terminal)?;
        let terminal = Terminal::new(CrosstermBackend::new(file)).map_err(no_terminal)?;
        Ok(Self { terminal, settings: ViewSettings::default(), max_offset: 0 })
    }

    /// Draws the display.
    ///
    /// # Errors
    /// Returns an error if the terminal has hung up.
    pub fn draw(
        &mut self,
        view: &JobView,
        kinds: &[Metric],
        frame_text: &FrameText,
    ) -> io::Result<()> {
        let (settings, max_offset) = (self.settings, &mut self.max_offset);
        self.terminal.draw(|frame| {
            *max_offset = draw::draw(view, kinds, settings, frame_text, frame.buffer_mut());
        })?;
        self.settings.offset = self.settings.offset.min(self.max_offset);
        Ok(())
    }

    /// The action for a key that the user types within `timeout`.
    ///
    /// # Errors
    /// Returns an error if the terminal has hung up.
    pub fn next_action(&mut self, timeout: Duration) -> io::Result<Option<UserAction>> {
        if !event::poll(timeout)? {
            return Ok(None);
        }
        let key = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Ok(Some(UserAction::Redraw)),
            _ => return Ok(None),
        };
        let page = usize::from(self.terminal.size()?.height).saturating_sub(3);
        let offset = &mut self.settings.offset;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(UserAction::Quit)),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Ok(Some(UserAction::Quit));
            }
            KeyCode::Char('h') => self.settings.hosts_only = Some(true),
            KeyCode::Char('p') => self.settings.hosts_only = Some(false),
            KeyCode::Up => *offset = offset.saturating_sub(1),
            KeyCode::PageUp => *offset = offset.saturating_sub(page),
            KeyCode::Home => *offset = 0,
            KeyCode::Down => *offset = (*offset + 1).min(self.max_offset),
            KeyCode::PageDown => *offset = (*offset + page).min(self.max_offset),
            KeyCode::End => *offset = self.max_offset,
            _ => return Ok(None),
        }
        Ok(Some(UserAction::Redraw))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Errors mean that the terminal has hung up and needs no restoring.
        let _ = execute!(self.terminal.backend_mut(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}
