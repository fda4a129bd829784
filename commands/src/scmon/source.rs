//! Where figures come from: scored, or a pipe from scrun. A thread reads and the picture takes
//! what has come; where it is slow, the oldest waits and scored sends less.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use score_proto::frame::Decoder;
use score_proto::message::{Console, Up};

use super::Options;
use crate::cluster::Answer;

/// Messages that wait to be shown.
const WAITING: usize = 64;

/// What comes: messages, then how it ended, as an error if it did not end well.
pub type News = Result<Option<Up>, String>;

/// Begins to read.
///
/// # Errors
/// One line: nobody is there, or it cannot be opened.
pub fn open(options: &Options) -> Result<Receiver<News>, String> {
    let (sender, receiver) = sync_channel(WAITING);
    if let Some(path) = &options.pipe {
        let file = open_pipe(path)?;
        thread::spawn(move || read_pipe(file, &sender));
    } else {
        let job = options.job.unwrap_or_default();
        let question = Console::Watch { job, period_ms: options.period_ms };
        let mut answer = Answer::to(question, options.socket.clone())?;
        thread::spawn(move || {
            loop {
                let part = answer.next_part();
                let last = !matches!(part, Ok(Some(_)));
                if sender.send(part).is_err() || last {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

fn open_pipe(path: &Path) -> Result<File, String> {
    let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    File::open(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_pipe(mut file: File, sender: &SyncSender<News>) {
    let mut decoder = Decoder::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let part = match decoder.next::<Up>() {
            Ok(Some(Up::Finished(_))) => Ok(None),
            Ok(Some(up)) => Ok(Some(up)),
            Err(error) => Err(format!("from scrun: {error}")),
            Ok(None) => match file.read(&mut chunk) {
                Ok(0) => Ok(None),
                Ok(count) => {
                    decoder.push(&chunk[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(format!("from scrun: {error}")),
            },
        };
        let last = !matches!(part, Ok(Some(_)));
        if sender.send(part).is_err() || last {
            return;
        }
    }
}
