//! The records that a daemon and its keeper exchange on two sockets that preserve record boundaries
//! (SOCK_SEQPACKET). On the first socket the daemon sends [`Call`]s, with descriptors if the call
//! needs them. The keeper answers each call with one [`Reply`]. On the second socket the keeper
//! sends [`Event`]s.

use crate::field::{FieldError, FieldReader, FieldWriter};
use crate::voucher::{KEY_LEN, MAX_VOUCHER_LEN};

/// The maximum length of a record in bytes.
pub const MAX_RECORD_LEN: usize = 8192;
/// The maximum number of network sets of a job, and of interfaces of a set.
const MAX_RAW_SETS: u8 = 16;
/// The maximum length of a network interface's name in bytes (IFNAMSIZ - 1).
const MAX_INTERFACE_NAME_LEN: usize = 15;

/// The keeper's number of a job. Each number is used only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobHandle(pub u64);

/// A request of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Issue a voucher for the process that has connected to the local socket of users. The
    /// connection is passed as a descriptor. Reply: [`Reply::Done`]. The voucher follows in an
    /// event.
    Vouch {
        /// The daemon's number of the session. The event contains it.
        session: u64,
    },
    /// Renew a voucher. The connection for which it was issued is passed as a descriptor. Reply:
    /// [`Reply::Renewed`].
    Renew {
        /// The voucher.
        voucher: Vec<u8>,
    },
    /// Check a voucher. Reply: [`Reply::Done`].
    Verify {
        /// The voucher.
        voucher: Vec<u8>,
    },
    /// Start a shepherd. Its control socket and the socket of its switch thread are passed as
    /// descriptors. Reply: [`Reply::Started`].
    Start(StartRequest),
    /// Start the supervisor of a tool, as the user of the job. Its control socket is passed as a
    /// descriptor. Reply: [`Reply::Done`].
    StartTool {
        /// The job.
        job: JobHandle,
    },
    /// Perform an action on a job. Reply: [`Reply::Done`].
    Act {
        /// The job.
        job: JobHandle,
        /// The action.
        action: Action,
    },
}

/// The parameters of a shepherd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartRequest {
    /// The voucher of the job's user.
    pub voucher: Vec<u8>,
    /// The memory limit of the job in bytes.
    pub memory: Option<u64>,
    /// Whether the job has programs that are copied to the host.
    pub has_programs: bool,
    /// The maximum number of processes that get raw sockets.
    pub max_raw_processes: u32,
    /// The raw sockets of each network set.
    pub raw_sets: Vec<RawSet>,
}

/// The raw sockets of a network set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSet {
    /// The secret that the packets of the set contain.
    pub secret: u64,
    /// The network interfaces.
    pub interfaces: Vec<Vec<u8>>,
}

/// An action on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Freeze the processes of the job.
    Freeze,
    /// Thaw the processes of the job.
    Thaw,
    /// Continue the shepherd, which its user may have stopped with a signal.
    Continue,
    /// Kill the shepherd.
    KillShepherd,
    /// Kill all processes of the job.
    KillAll,
    /// Kill the remaining processes of the job, and remove its cgroup and its directory.
    Remove,
}

const ACTIONS: [Action; 6] = [
    Action::Freeze,
    Action::Thaw,
    Action::Continue,
    Action::KillShepherd,
    Action::KillAll,
    Action::Remove,
];

/// The reply to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The action has been performed or has begun.
    Done,
    /// A new voucher.
    Renewed {
        /// The new voucher.
        voucher: Vec<u8>,
    },
    /// The shepherd has been started.
    Started {
        /// The keeper's number of the job.
        job: JobHandle,
    },
    /// The call is not permitted.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The call failed.
    Failed {
        /// The cause.
        reason: String,
    },
}

/// How a shepherd ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShepherdEnd {
    /// The shepherd exited with this code.
    Exited(u8),
    /// This signal killed the shepherd.
    Signaled(u8),
}

/// A report of the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first event: the keeper is ready.
    Ready {
        /// The key of the links to other daemons, if there is a key of the cluster.
        link_key: Option<[u8; KEY_LEN]>,
    },
    /// The only event: the keeper cannot work.
    Unable {
        /// The cause.
        reason: String,
    },
    /// A requested voucher has been issued.
    Vouched {
        /// The daemon's number of the session.
        session: u64,
        /// The voucher.
        voucher: Vec<u8>,
    },
    /// A requested voucher could not be issued.
    NotVouched {
        /// The daemon's number of the session.
        session: u64,
        /// The cause.
        reason: String,
    },
    /// The keeper has logged a line. The daemon forwards it to the syslog receiver.
    Logged {
        /// The line.
        line: String,
    },
    /// A shepherd has ended.
    Ended {
        /// The keeper's number of the job.
        job: JobHandle,
        /// How it ended.
        end: ShepherdEnd,
        /// Whether the kernel killed processes of the job because of lack of memory.
        killed_for_memory: bool,
    },
}

fn write_optional_u64(writer: &mut FieldWriter, value: Option<u64>) {
    writer.u8(value.is_some().into());
    value.into_iter().for_each(|value| _ = writer.u64(value));
}

fn read_optional_u64(reader: &mut FieldReader<'_>) -> Result<Option<u64>, FieldError> {
    reader.bool()?.then(|| reader.u64()).transpose()
}

impl StartRequest {
    fn write<'a>(&self, writer: &'a mut FieldWriter) -> &'a mut FieldWriter {
        writer.bytes(&self.voucher);
        write_optional_u64(writer, self.memory);
        writer.u8(self.has_programs.into()).u32(self.max_raw_processes);
        writer.list(&self.raw_sets, |writer, set| {
            writer.u64(set.secret).list(&set.interfaces, |writer, name| _ = writer.bytes(name));
        })
    }

    fn read(reader: &mut FieldReader<'_>) -> Result<Self, FieldError> {
        Ok(Self {
            voucher: reader.bytes(MAX_VOUCHER_LEN)?,
            memory: read_optional_u64(reader)?,
            has_programs: reader.bool()?,
            max_raw_processes: reader.u32()?,
            raw_sets: reader.list(MAX_RAW_SETS, |reader| {
                let secret = reader.u64()?;
                let name = |reader: &mut FieldReader<'_>| reader.bytes(MAX_INTERFACE_NAME_LEN);
                Ok(RawSet { secret, interfaces: reader.list(MAX_RAW_SETS, name)? })
            })?,
        })
    }
}

impl Call {
    /// The number of descriptors that are passed with the call.
    pub fn descriptor_count(&self) -> usize {
        match self {
            Self::Vouch { .. } | Self::Renew { .. } | Self::StartTool { .. } => 1,
            Self::Start(_) => 2,
            Self::Verify { .. } | Self::Act { .. } => 0,
        }
    }

    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = FieldWriter::default();
        match self {
            Self::Vouch { session } => writer.u8(1).u64(*session),
            Self::Renew { voucher } => writer.u8(2).bytes(voucher),
            Self::Verify { voucher } => writer.u8(3).bytes(voucher),
            Self::Start(request) => request.write(writer.u8(4)),
            Self::Act { job, action } => {
                let index = ACTIONS.iter().position(|known| known == action);
                writer.u8(5).u64(job.0).u8(index.unwrap_or(ACTIONS.len()) as u8)
            }
            Self::StartTool { job } => writer.u8(6).u64(job.0),
        };
        writer.into_bytes()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// The bytes are not a call.
    pub fn read(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut reader = FieldReader::new(bytes);
        let call = match reader.u8()? {
            1 => Self::Vouch { session: reader.u64()? },
            2 => Self::Renew { voucher: reader.bytes(MAX_VOUCHER_LEN)? },
            3 => Self::Verify { voucher: reader.bytes(MAX_VOUCHER_LEN)? },
            4 => Self::Start(StartRequest::read(&mut reader)?),
            5 => Self::Act {
                job: JobHandle(reader.u64()?),
                action: *ACTIONS.get(usize::from(reader.u8()?)).ok_or(FieldError)?,
            },
            6 => Self::StartTool { job: JobHandle(reader.u64()?) },
            _ => return Err(FieldError),
        };
        reader.end()?;
        Ok(call)
    }
}

impl Reply {
    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = FieldWriter::default();
        match self {
            Self::Done => writer.u8(1),
            Self::Renewed { voucher } => writer.u8(2).bytes(voucher),
            Self::Started { job } => writer.u8(3).u64(job.0),
            Self::Refused { reason } => writer.u8(4).text(reason),
            Self::Failed { reason } => writer.u8(5).text(reason),
        };
        writer.into_bytes()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// The bytes are not a reply.
    pub fn read(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut reader = FieldReader::new(bytes);
        let reply = match reader.u8()? {
            1 => Self::Done,
            2 => Self::Renewed { voucher: reader.bytes(MAX_VOUCHER_LEN)? },
            3 => Self::Started { job: JobHandle(reader.u64()?) },
            4 => Self::Refused { reason: reader.text()? },
            5 => Self::Failed { reason: reader.text()? },
            _ => return Err(FieldError),
        };
        reader.end()?;
        Ok(reply)
    }
}

impl Event {
    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = FieldWriter::default();
        match self {
            Self::Ready { link_key } => {
                let key = link_key.as_ref().map_or(&[][..], |key| key);
                writer.u8(1).u8(link_key.is_some().into()).array(key)
            }
            Self::Unable { reason } => writer.u8(2).text(reason),
            Self::Vouched { session, voucher } => writer.u8(3).u64(*session).bytes(voucher),
            Self::NotVouched { session, reason } => writer.u8(4).u64(*session).text(reason),
            Self::Ended { job, end, killed_for_memory } => {
                let (kind, value) = match end {
                    ShepherdEnd::Exited(code) => (0, *code),
                    ShepherdEnd::Signaled(signal) => (1, *signal),
                };
                writer.u8(5).u64(job.0).u8(kind).u8(value).u8((*killed_for_memory).into())
            }
            Self::Logged { line } => writer.u8(6).text(line),
        };
        writer.into_bytes()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// The bytes are not an event.
    pub fn read(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut reader = FieldReader::new(bytes);
        let event = match reader.u8()? {
            1 => {
                let has_key = reader.bool()?;
                Self::Ready { link_key: has_key.then(|| reader.array()).transpose()? }
            }
            2 => Self::Unable { reason: reader.text()? },
            3 => Self::Vouched { session: reader.u64()?, voucher: reader.bytes(MAX_VOUCHER_LEN)? },
            4 => Self::NotVouched { session: reader.u64()?, reason: reader.text()? },
            5 => {
                let job = JobHandle(reader.u64()?);
                let end = match (reader.bool()?, reader.u8()?) {
                    (false, code) => ShepherdEnd::Exited(code),
                    (true, signal) => ShepherdEnd::Signaled(signal),
                };
                Self::Ended { job, end, killed_for_memory: reader.bool()? }
            }
            6 => Self::Logged { line: reader.text()? },
            _ => return Err(FieldError),
        };
        reader.end()?;
        Ok(event)
    }
}

/// Decodes hostile bytes as each kind of record, and as a voucher.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(call) = Call::read(bytes) {
        assert_eq!(Call::read(&call.to_bytes()), Ok(call));
    }
    if let Ok(reply) = Reply::read(bytes) {
        assert_eq!(Reply::read(&reply.to_bytes()), Ok(reply));
    }
    if let Ok(event) = Event::read(bytes) {
        assert_eq!(Event::read(&event.to_bytes()), Ok(event));
    }
    let _ = crate::voucher::Voucher::read_unverified(bytes);
    assert!(crate::voucher::VoucherKey::new(&[7; KEY_LEN]).open(bytes, 0).is_err());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::MAX_TEXT_LEN;
    use proptest::prelude::*;

    #[test]
    fn records_are_decoded_unchanged() {
        let set = RawSet { secret: 9, interfaces: vec![b"eth0".to_vec(), Vec::new()] };
        let start = StartRequest {
            voucher: vec![1; 300],
            memory: Some(1 << 30),
            has_programs: true,
            max_raw_processes: 4,
            raw_sets: vec![set; 3],
        };
        let calls = [
            Call::Vouch { session: 7 },
            Call::Renew { voucher: vec![5; MAX_VOUCHER_LEN] },
            Call::Verify { voucher: Vec::new() },
            Call::Start(start),
            Call::Start(StartRequest::default()),
        ];
        let acts = ACTIONS.map(|action| Call::Act { job: JobHandle(u64::MAX), action });
        let tool = Call::StartTool { job: JobHandle(7) };
        for call in calls.into_iter().chain(acts).chain([tool]) {
            assert_eq!(Call::read(&call.to_bytes()), Ok(call));
        }
        for reply in [
            Reply::Done,
            Reply::Renewed { voucher: vec![1, 2] },
            Reply::Started { job: JobHandle(3) },
            Reply::Refused { reason: "no".to_owned() },
            Reply::Failed { reason: "é".repeat(MAX_TEXT_LEN / 2) },
        ] {
            assert_eq!(Reply::read(&reply.to_bytes()), Ok(reply));
        }
        for event in [
            Event::Ready { link_key: None },
            Event::Ready { link_key: Some([6; KEY_LEN]) },
            Event::Unable { reason: String::new() },
            Event::Logged { line: "text".to_owned() },
            Event::Vouched { session: 1, voucher: vec![7] },
            Event::NotVouched { session: 1, reason: "x".to_owned() },
            Event::Ended {
                job: JobHandle(2),
                end: ShepherdEnd::Exited(3),
                killed_for_memory: true,
            },
            Event::Ended {
                job: JobHandle(2),
                end: ShepherdEnd::Signaled(9),
                killed_for_memory: false,
            },
        ] {
            assert_eq!(Event::read(&event.to_bytes()), Ok(event));
        }
    }

    #[test]
    fn each_call_has_its_number_of_descriptors() {
        for (call, count) in [
            (Call::Vouch { session: 1 }, 1),
            (Call::Renew { voucher: Vec::new() }, 1),
            (Call::Verify { voucher: Vec::new() }, 0),
            (Call::Start(StartRequest::default()), 2),
            (Call::Act { job: JobHandle(1), action: Action::Freeze }, 0),
            (Call::StartTool { job: JobHandle(1) }, 1),
        ] {
            assert_eq!(call.descriptor_count(), count, "{call:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let reply = Reply::Failed { reason: "é".repeat(MAX_TEXT_LEN) + "x" };
        let cut = Reply::Failed { reason: "é".repeat(MAX_TEXT_LEN / 2) };
        assert_eq!(Reply::read(&reply.to_bytes()), Ok(cut));
    }

    #[test]
    fn records_that_are_too_long_or_unknown_are_refused() {
        let long_voucher = Call::Verify { voucher: vec![0; MAX_VOUCHER_LEN + 1] };
        let long_name = RawSet { secret: 1, interfaces: vec![vec![b'x'; 16]] };
        let many_sets = vec![RawSet { secret: 1, interfaces: Vec::new() }; 17];
        let start = |raw_sets| Call::Start(StartRequest { raw_sets, ..StartRequest::default() });
        for call in [long_voucher, start(vec![long_name]), start(many_sets)] {
            assert_eq!(Call::read(&call.to_bytes()), Err(FieldError));
        }
        let mut trailing = Call::Vouch { session: 1 }.to_bytes();
        trailing.push(0);
        for bytes in [&trailing[..], &[], &[0], &[6], &[5, 0, 0, 0, 0, 0, 0, 0, 0, 6]] {
            assert_eq!(Call::read(bytes), Err(FieldError), "{bytes:?}");
        }
    }

    #[test]
    fn the_corpus_is_read_without_a_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/records");
        let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
        assert!(inputs.len() > 5);
        inputs.iter().for_each(|input| fuzz(&std::fs::read(input.path()).unwrap()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            fuzz(&bytes);
        }
    }
}
