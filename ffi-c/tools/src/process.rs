//! Implements the callbacks of libthread_db by commands of tool control.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;

use score_tools::wire::{
    Command, CommandAnswer, CommandRequest, CommandSet, FloatRegisters, FloatRegistersHead,
    GENERAL_REGISTERS, GeneralRegister, GeneralRegisters, MAX_COMMANDS, MAX_MEMORY_LEN,
    MemoryRange, NoData, SPECIAL_REGISTERS, SetMemory, SetMemoryHead, SharedAccess,
    SpecialRegister, SpecialRegisters, SpeculativeAccess,
};

use crate::connection::Connection;
use crate::failure::Failure;

/// Registers in a prgregset_t of x86-64 (struct user_regs_struct).
pub const REGISTERS: usize = 27;
/// Bytes of a prfpregset_t of x86-64: the first part of an XSAVE area.
pub const FLOAT_LEN: usize = 512;
/// Offset in an XSAVE area of its header, which begins with the components in use (XSTATE_BV).
const USED_COMPONENTS: usize = 512;
/// Offset in the first part from which on the bytes are reserved for the kernel.
const SOFTWARE_BYTES: usize = 464;

/// A register of a prgregset_t.
#[derive(Debug, Clone, Copy)]
enum Place {
    General(GeneralRegister),
    Special(SpecialRegister),
}

use GeneralRegister::{R8, R9, R10, R11, R12, R13, R14, R15};
use GeneralRegister::{Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi, Rsp};
use Place::{General, Special};

/// The registers of a prgregset_t, in order.
const PLACES: [Place; REGISTERS] = [
    General(R15),
    General(R14),
    General(R13),
    General(R12),
    General(Rbp),
    General(Rbx),
    General(R11),
    General(R10),
    General(R9),
    General(R8),
    General(Rax),
    General(Rcx),
    General(Rdx),
    General(Rsi),
    General(Rdi),
    Special(SpecialRegister::OrigRax),
    Special(SpecialRegister::Rip),
    Special(SpecialRegister::Cs),
    Special(SpecialRegister::Eflags),
    General(Rsp),
    Special(SpecialRegister::Ss),
    Special(SpecialRegister::FsBase),
    Special(SpecialRegister::GsBase),
    Special(SpecialRegister::Ds),
    Special(SpecialRegister::Es),
    Special(SpecialRegister::Fs),
    Special(SpecialRegister::Gs),
];

/// The id of a thread in its own PID namespace.
fn inner_id(status: &str) -> Option<i32> {
    let list = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    list.split_whitespace().last()?.parse().ok()
}

/// Converts a thread id to the id on this host. `ids` are pairs: the id on this host, and the id in
/// the PID namespace of the process. libthread_db uses the id in the namespace, tools use the id on
/// the host.
fn resolve(ids: &[(i32, Option<i32>)], named: i32) -> Result<i32, &'static str> {
    let is_outer = ids.iter().any(|(outer, _)| *outer == named);
    let inner = ids.iter().find(|(_, inner)| *inner == Some(named)).map(|(outer, _)| *outer);
    match (is_outer, inner) {
        (true, Some(other)) if other != named => Err(
            "could mean two threads, because the job's PID namespace has other ids: use the thread's other id",
        ),
        (true, _) => Ok(named),
        (false, Some(outer)) => Ok(outer),
        (false, None) => Err("is none of its threads"),
    }
}

impl Connection {
    /// The process id on the host.
    pub fn process_id(&mut self, rank: u32) -> Result<i32, Failure> {
        if let Some(pid) = self.ranks.get(&rank).and_then(|state| state.pid) {
            return Ok(pid);
        }
        let request = CommandRequest::GetProcessData(NoData {});
        let pid = self.query(rank, 0, request, |answer| match answer {
            CommandAnswer::GetProcessData(data) => Some(data.tgid.cast_signed()),
            _ => None,
        })?;
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.pid = Some(pid);
        }
        Ok(pid)
    }

    /// Converts a thread id to the id in messages.
    pub fn thread(&mut self, rank: u32, named: i32) -> Result<u32, Failure> {
        let tasks = format!("/proc/{}/task", self.process_id(rank)?);
        let entries = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let ids: Vec<(i32, Option<i32>)> = entries
            .filter_map(|entry| {
                let outer = entry.file_name().to_str()?.parse().ok()?;
                let status = fs::read_to_string(entry.path().join("status"));
                Some((outer, status.ok().and_then(|status| inner_id(&status))))
            })
            .collect();
        resolve(&ids, named).map(i32::cast_unsigned).map_err(|problem| Failure::Thread {
            rank,
            thread: named,
            problem,
        })
    }

    /// Reads memory. If the bytes do not fit into a message, the service copies them to memory that
    /// it shares with this tool.
    pub fn read_memory(
        &mut self,
        rank: u32,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        if buffer.is_empty() {
            return Ok(());
        }
        if buffer.len() > MAX_MEMORY_LEN as usize {
            return self.copy_memory(rank, address, buffer);
        }
        let (length, access) = (buffer.len() as u32, SpeculativeAccess::Permitted);
        let range = MemoryRange { address, length, access };
        self.query(rank, 0, CommandRequest::GetMemory(range), |answer| match answer {
            CommandAnswer::GetMemory(memory) if memory.bytes.len() == buffer.len() => {
                buffer.copy_from_slice(&memory.bytes);
                Some(())
            }
            _ => None,
        })
    }

    /// Writes memory, in several messages if necessary.
    pub fn write_memory(&mut self, rank: u32, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut address = address;
        for part in bytes.chunks(MAX_MEMORY_LEN as usize) {
            let head = SetMemoryHead {
                address,
                access: SpeculativeAccess::Permitted,
                // The callback has no parameter for this, and a debugger writes to any address that
                // the user requests.
                shared: SharedAccess::Allowed,
            };
            let memory = SetMemory { head, bytes: Cow::Borrowed(part) };
            self.update(rank, 0, CommandRequest::SetMemory(memory))?;
            address = address.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Reads general and special registers by one message.
    fn both_registers(
        &mut self,
        rank: u32,
        thread: u32,
    ) -> Result<([u64; GENERAL_REGISTERS], [u64; SPECIAL_REGISTERS]), Failure> {
        let commands = [
            Command { thread, request: CommandRequest::GetGeneralRegisters(NoData {}) },
            Command { thread, request: CommandRequest::GetSpecialRegisters(NoData {}) },
        ];
        self.succeed(rank, &commands, |results| match (&results[0].answer, &results[1].answer) {
            (
                Some(CommandAnswer::GetGeneralRegisters(general)),
                Some(CommandAnswer::GetSpecialRegisters(special)),
            ) => Some((general.values, special.values)),
            _ => None,
        })
    }

    /// Reads the registers of a thread, in the order of a prgregset_t.
    pub fn registers(&mut self, rank: u32, named: i32) -> Result<[u64; REGISTERS], Failure> {
        let thread = self.thread(rank, named)?;
        let (general, special) = self.both_registers(rank, thread)?;
        Ok(PLACES.map(|place| match place {
            General(register) => general[register.number() as usize],
            Special(register) => special[register.number() as usize],
        }))
    }

    /// Sets the registers of a thread. Registers that a prgregset_t does not have do not change.
    pub fn set_registers(
        &mut self,
        rank: u32,
        named: i32,
        values: &[u64; REGISTERS],
    ) -> Result<(), Failure> {
        let thread = self.thread(rank, named)?;
        let (mut general, mut special) = self.both_registers(rank, thread)?;
        for (place, value) in PLACES.iter().zip(values) {
            match place {
                General(register) => general[register.number() as usize] = *value,
                Special(register) => special[register.number() as usize] = *value,
            }
        }
        let (general, special) =
            (GeneralRegisters { values: general }, SpecialRegisters { values: special });
        let commands = [
            Command { thread, request: CommandRequest::SetGeneralRegisters(general) },
            Command { thread, request: CommandRequest::SetSpecialRegisters(special) },
        ];
        self.succeed(rank, &commands, |_| Some(()))
    }

    fn float_area(&mut self, rank: u32, thread: u32) -> Result<(u64, Vec<u8>), Failure> {
        let request = CommandRequest::GetFloatRegisters(NoData {});
        let (features, area) = self.query(rank, thread, request, |answer| match answer {
            CommandAnswer::GetFloatRegisters(it) => Some((it.head.features, it.bytes.to_vec())),
            _ => None,
        })?;
        // The header of an XSAVE area has 64 bytes.
        match area.len() {
            len if len >= USED_COMPONENTS + 64 => Ok((features, area)),
            _ => Err(Failure::NoFloatRegisters { rank }),
        }
    }

    /// Reads the floating point registers of a thread, in the layout of a prfpregset_t.
    pub fn float_registers(&mut self, rank: u32, named: i32) -> Result<[u8; FLOAT_LEN], Failure> {
        let thread = self.thread(rank, named)?;
        let (_, area) = self.float_area(rank, thread)?;
        let mut registers = [0; FLOAT_LEN];
        registers.copy_from_slice(&area[..FLOAT_LEN]);
        Ok(registers)
    }

    /// Sets the floating point registers of a thread. The upper parts of vector registers do not
    /// change.
    pub fn set_float_registers(
        &mut self,
        rank: u32,
        named: i32,
        values: &[u8; FLOAT_LEN],
    ) -> Result<(), Failure> {
        let thread = self.thread(rank, named)?;
        let (features, mut area) = self.float_area(rank, thread)?;
        area[..SOFTWARE_BYTES].copy_from_slice(&values[..SOFTWARE_BYTES]);
        // Mark x87 and SSE as in use. Otherwise the kernel would set them to their initial state.
        area[USED_COMPONENTS] |= 0b11;
        let head = FloatRegistersHead { features };
        let registers = FloatRegisters { head, bytes: area.into() };
        self.update(rank, thread, CommandRequest::SetFloatRegisters(registers))
    }

    /// Reads the base of the segment fs or gs of a thread.
    pub fn thread_area(&mut self, rank: u32, named: i32, segment: i32) -> Result<u64, Failure> {
        // <sys/reg.h> numbers the registers of a prgregset_t.
        let base = match segment {
            libc::FS => SpecialRegister::FsBase,
            libc::GS => SpecialRegister::GsBase,
            _ => return Err(Failure::Argument("the segment is neither FS nor GS of <sys/reg.h>")),
        };
        let thread = self.thread(rank, named)?;
        let request = CommandRequest::GetSpecialRegisters(NoData {});
        self.query(rank, thread, request, |answer| match answer {
            CommandAnswer::GetSpecialRegisters(it) => Some(it.values[base.number() as usize]),
            _ => None,
        })
    }

    /// Stops all threads, and waits until they have stopped. A process that has stopped at a notice
    /// is stopped already.
    pub fn stop(&mut self, rank: u32) -> Result<(), Failure> {
        self.update(rank, 0, CommandRequest::SuspendProcess(NoData {}))?;
        let mut stopped = BTreeSet::new();
        loop {
            // A thread that has not stopped yet may create others.
            let mut threads = self.threads(rank)?;
            threads.retain(|thread| !stopped.contains(thread));
            if threads.is_empty() {
                return Ok(());
            }
            for part in threads.chunks(MAX_COMMANDS) {
                let command = |thread: &u32| Command {
                    thread: *thread,
                    request: CommandRequest::GetGeneralRegisters(NoData {}),
                };
                let commands: Vec<Command<'_>> = part.iter().map(command).collect();
                // The service answers when the thread has stopped. It cannot read the registers of
                // a thread that has ended, or that cannot leave the kernel; such a thread executes
                // nothing.
                self.carry_out(rank, CommandSet::Query, &commands)?;
            }
            stopped.extend(threads);
        }
    }

    /// The ids of all threads, as they are in messages.
    pub fn threads(&mut self, rank: u32) -> Result<Vec<u32>, Failure> {
        let request = CommandRequest::GetThreadList(NoData {});
        self.query(rank, 0, request, |answer| match answer {
            CommandAnswer::GetThreadList(threads) => {
                Some(threads.list.iter().map(|entry| entry.tid).collect())
            }
            _ => None,
        })
    }

    /// Holds a thread, and waits until it has stopped.
    pub fn hold(&mut self, rank: u32, named: i32) -> Result<(), Failure> {
        let thread = self.thread(rank, named)?;
        self.update(rank, thread, CommandRequest::HoldThread(NoData {}))?;
        // This command waits until the thread has stopped, and the thread remains stopped.
        self.both_registers(rank, thread).map(drop)
    }

    /// Ends the hold of a thread.
    pub fn release_thread(&mut self, rank: u32, named: i32) -> Result<(), Failure> {
        let thread = self.thread(rank, named)?;
        self.update(rank, thread, CommandRequest::ReleaseThread(NoData {}))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::sys::socket::{
        AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
        send, socket,
    };
    use score_tools::wire::{
        CommandCode, CommandKind, CommandWriter, MAX_MESSAGE_LEN, ToolMessage, encode_results,
    };

    use super::*;
    use crate::failure::PsError;

    #[test]
    fn a_thread_is_named_by_either_id_and_never_mistaken() {
        let ids = [(500, Some(3)), (501, Some(4)), (4, Some(9)), (700, None)];
        assert_eq!(resolve(&ids, 500), Ok(500));
        assert_eq!(resolve(&ids, 3), Ok(500));
        assert_eq!(resolve(&ids, 700), Ok(700));
        // The id 4 could mean two threads.
        assert!(resolve(&ids, 4).is_err_and(|text| text.contains("namespace")));
        assert!(resolve(&ids, 77).is_err_and(|text| text.contains("none")));
        // Without a namespace both ids are the same.
        assert_eq!(resolve(&[(5, Some(5)), (6, Some(6))], 6), Ok(6));
        assert_eq!(inner_id("Name:\tx\nNSpid:\t500\t3\n"), Some(3));
    }

    #[test]
    fn the_registers_have_their_places_of_sys_reg_h() {
        let place =
            |register| PLACES.iter().position(|it| matches!(it, Special(one) if *one == register));
        assert_eq!(place(SpecialRegister::OrigRax), Some(libc::ORIG_RAX as usize));
        assert_eq!(place(SpecialRegister::Rip), Some(libc::RIP as usize));
        assert_eq!(place(SpecialRegister::FsBase), Some(libc::FS_BASE as usize));
        assert_eq!(place(SpecialRegister::Gs), Some(libc::GS as usize));
        let rsp = PLACES.iter().position(|it| matches!(it, General(Rsp)));
        assert_eq!(rsp, Some(libc::RSP as usize));
        let size = size_of::<libc::user_regs_struct>();
        assert_eq!((REGISTERS * 8, FLOAT_LEN), (size, size_of::<libc::user_fpregs_struct>()));
    }

    /// Answers one Query for floating point registers with an area of this length. This simulates a
    /// service on a processor without XSAVE, or a faulty service.
    fn answer_with_area(listener: &OwnedFd, len: usize) {
        let socket = accept(listener.as_raw_fd()).unwrap();
        let mut record = vec![0; MAX_MESSAGE_LEN];
        let received = recv(socket, &mut record, MsgFlags::empty()).unwrap();
        let header = ToolMessage::decode(&record[..received]).unwrap().0;
        let head = FloatRegistersHead { features: 3 };
        let registers = FloatRegisters { head, bytes: vec![0; len].into() };
        let mut writer = CommandWriter::new();
        let number = CommandKind::GetFloatRegisters.number();
        let answer = CommandAnswer::GetFloatRegisters(registers);
        writer.push_result(number, 1, CommandCode::Success, Some(&answer));
        let answer = encode_results(writer, &header, CommandSet::Query);
        send(socket, &answer, MsgFlags::empty()).unwrap();
        nix::unistd::close(socket).unwrap();
    }

    #[test]
    fn an_answer_without_the_registers_is_ps_nofregs() {
        let path = std::env::temp_dir().join(format!("scoretools-{}", std::process::id()));
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let all = USED_COMPONENTS + 64;
        for len in [0, 8, all - 8, all] {
            let area = std::thread::scope(|scope| {
                scope.spawn(|| answer_with_area(&listener, len));
                Connection::connect(&path, 1, 1).unwrap().float_area(0, 1)
            });
            match area {
                Ok((features, area)) => assert_eq!((features, area.len(), len), (3, all, all)),
                Err(failure) => {
                    assert!(len < all, "{len}: {failure}");
                    assert_eq!(failure.ps_error(), PsError::NoFloatRegisters, "{failure}");
                    assert_eq!(failure.number(), -libc::ENODATA);
                    assert!(failure.to_string().starts_with("rank 0: no floating point"));
                }
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}
