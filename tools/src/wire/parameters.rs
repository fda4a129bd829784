//! Parameters of messages and commands that have a fixed set of values.

use super::field::{Field, numbered};

numbered! {
    /// The processes that an Attach or a Detach selects.
    ProcessSelect: u32 {
        /// The process whose rank is in the header.
        0 RankInHeader,
        /// All processes of the host that have not exited. On the socket of a rank, only that rank.
        1 RanksInNode,
    }

    /// Where a dynamically linked program first stops, if authority was given before its start.
    StartNotice: u32 {
        /// At its first instruction, which is in the dynamic loader.
        0 DynamicLoader,
        /// At the entry point of the program.
        1 EntryPoint,
    }

    /// Where a watchpoint stops the thread.
    TrapMode: u32 {
        /// Leave the mode unchanged.
        0 NoChange,
        /// At the instruction that accesses memory. x86-64 does not support this.
        1 OnAccess,
        /// After the instruction that accesses memory. This is the default.
        2 AfterAccess,
    }

    /// Whether new threads inherit the watchpoints of the thread that creates them. Debug registers
    /// that a tool has set directly are not inherited.
    WatchPolicy: u32 {
        /// New threads inherit the watchpoints. This is the default.
        0 Propagate,
        /// New threads do not inherit the watchpoints.
        1 NoPropagate,
    }

    /// The subject of a notice.
    NoticeType: u32 {
        /// A signal, or a trap.
        0 Signal,
        /// The process has exited.
        1 Termination,
        /// Control authority.
        2 Control,
    }

    /// Why a thread has stopped.
    SignalReason: u32 {
        /// A signal from the program or from another process.
        0 Generic,
        /// A breakpoint that a tool has set.
        1 Breakpoint,
        /// A watchpoint that detects reads, and the bytes have not changed.
        2 ReadWatchpoint,
        /// A watchpoint that detects only writes, or a watchpoint whose bytes have changed.
        3 WriteWatchpoint,
        /// The end of Step Thread.
        4 StepCompleted,
    }

    /// The reason of a notice about Control authority.
    ControlReason: u32 {
        /// Another tool has requested authority.
        0 Conflict,
        /// A tool has released authority.
        1 Available,
    }

    /// Whether speculative memory is shown. The parameter has no effect, because x86-64 has only
    /// one view of memory.
    SpeculativeAccess: u32 {
        /// Speculative memory may be shown.
        0 Permitted,
        /// Speculative memory must not be shown.
        1 Forbidden,
    }

    /// Whether Set Memory may write memory that processes share.
    SharedAccess: u32 {
        /// Such a write is an error.
        0 Refused,
        /// Such a write is permitted.
        1 Allowed,
    }

    /// The state of a thread.
    ThreadState: u32 {
        /// The thread runs or is runnable.
        1 Run,
        /// The thread waits in a system call.
        2 Sleep,
        /// The thread waits on a futex.
        3 FutexWait,
        /// Not used on Linux.
        4 Idle,
        /// The service does not use this state: a thread that waits for a file lock sleeps.
        5 FileLock,
    }

    /// The state of a thread with regard to tools.
    ToolState: u32 {
        /// The thread is neither held nor suspended.
        1 Active,
        /// Hold Thread holds the thread.
        2 Hold,
        /// The process is suspended.
        3 Suspend,
        /// The thread is held, and the process is suspended.
        4 HoldSuspend,
    }

    /// A preference of a process.
    Preference: u32 {
        /// Leave the preference unchanged.
        0 NoChange,
        /// Off.
        1 Disable,
        /// On.
        2 Enable,
    }

    /// The accesses that a watchpoint detects.
    WatchType: u32 {
        /// Reads.
        1 Read,
        /// Writes.
        2 Write,
        /// Reads and writes.
        3 ReadWrite,
    }

    /// Whether a tool that releases authority is notified when the next tool releases it.
    ReleaseNotify: u32 {
        /// No.
        0 No,
        /// Yes.
        1 Yes,
    }

    /// The kind of a breakpoint. Both kinds are the byte int3 in memory (ruling O14).
    BreakpointKind: u32 {
        /// The breakpoint always causes a notice.
        0xCC Normal,
        /// If fast breakpoints are enabled, the trap handler of the process gets SIGTRAP instead.
        0xCD03 Fast,
    }

    /// General purpose registers. The number is the index in the array.
    GeneralRegister: u32 {
        /// rax
        0 Rax,
        /// rbx
        1 Rbx,
        /// rcx
        2 Rcx,
        /// rdx
        3 Rdx,
        /// rsi
        4 Rsi,
        /// rdi
        5 Rdi,
        /// rbp
        6 Rbp,
        /// rsp
        7 Rsp,
        /// r8
        8 R8,
        /// r9
        9 R9,
        /// r10
        10 R10,
        /// r11
        11 R11,
        /// r12
        12 R12,
        /// r13
        13 R13,
        /// r14
        14 R14,
        /// r15
        15 R15,
    }

    /// Special registers. The number is the index in the array.
    SpecialRegister: u32 {
        /// The instruction address.
        0 Rip,
        /// The flags register.
        1 Eflags,
        /// The code segment.
        2 Cs,
        /// The stack segment.
        3 Ss,
        /// The data segment.
        4 Ds,
        /// The segment register es.
        5 Es,
        /// The segment register fs.
        6 Fs,
        /// The segment register gs.
        7 Gs,
        /// The base of fs, which is used for thread-local storage.
        8 FsBase,
        /// The base of gs.
        9 GsBase,
        /// The number of the current system call, or -1.
        10 OrigRax,
        /// The control and status register of SSE.
        11 Mxcsr,
        /// The x87 control word.
        12 X87Control,
        /// The x87 status word.
        13 X87Status,
        /// The address of the last fault while the thread is stopped at it, otherwise 0. A Set has
        /// no effect.
        14 FaultAddress,
    }

    /// Debug registers that can be set. The number is the index in the array. Indexes 4 and 5 are
    /// 0.
    DebugRegister: u32 {
        /// Address 0.
        0 Dr0,
        /// Address 1.
        1 Dr1,
        /// Address 2.
        2 Dr2,
        /// Address 3.
        3 Dr3,
        /// Status.
        6 Dr6,
        /// Control.
        7 Dr7,
    }
}

/// The number of general purpose registers.
pub const GENERAL_REGISTERS: usize = 16;
/// The number of special registers.
pub const SPECIAL_REGISTERS: usize = 15;
/// The number of debug registers.
pub const DEBUG_REGISTERS: usize = 8;

/// A floating-point or vector register. Bits 8 to 15 of the number on the wire are the kind: 0 x87,
/// 1 xmm, 2 ymm, 3 zmm, 4 mask. Bits 0 to 7 are the number within the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatRegister {
    /// st(0) to st(7): 10 bytes.
    X87(u8),
    /// xmm0 to xmm31: 16 bytes.
    Xmm(u8),
    /// ymm0 to ymm31: 32 bytes.
    Ymm(u8),
    /// zmm0 to zmm31: 64 bytes.
    Zmm(u8),
    /// k0 to k7: 8 bytes.
    Mask(u8),
}

impl FloatRegister {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        let (kind, number) = match self {
            Self::X87(number) => (0, number),
            Self::Xmm(number) => (1, number),
            Self::Ymm(number) => (2, number),
            Self::Zmm(number) => (3, number),
            Self::Mask(number) => (4, number),
        };
        kind << 8 | number as u32
    }

    /// The register with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        let low = number as u8;
        match (number >> 8, low) {
            (0, 0..8) => Some(Self::X87(low)),
            (1, 0..32) => Some(Self::Xmm(low)),
            (2, 0..32) => Some(Self::Ymm(low)),
            (3, 0..32) => Some(Self::Zmm(low)),
            (4, 0..8) => Some(Self::Mask(low)),
            _ => None,
        }
    }
}

impl Field for FloatRegister {
    const LEN: usize = 4;
    fn put(&self, bytes: &mut [u8]) {
        self.number().put(bytes);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        Self::from_number(u32::get(bytes)?)
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        Self::from_number((random() % 5) as u32 * 256 + (random() % 8) as u32).expect("in range")
    }
}

/// The bytes of a path in a command, NUL included.
pub const PATH_LEN: usize = 128;

/// The path of a file in the job's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFilePath([u8; PATH_LEN]);

impl JobFilePath {
    /// The path with these bytes. `None` if it is longer than 127 bytes or contains a NUL.
    pub fn new(path: &[u8]) -> Option<Self> {
        let mut bytes = [0; PATH_LEN];
        bytes[..PATH_LEN - 1].get_mut(..path.len())?.copy_from_slice(path);
        (!path.contains(&0)).then_some(Self(bytes))
    }

    /// The bytes of the path, without the NUL.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Whether the path itself stays in the directory: it is relative and contains no `..`. The
    /// code that opens the file must check for symbolic links that lead out of the directory.
    pub fn is_inside(&self) -> bool {
        let path = self.as_bytes();
        !path.is_empty()
            && path[0] != b'/'
            && path.split(|byte| *byte == b'/').all(|part| part != b"..")
    }
}

impl Field for JobFilePath {
    const LEN: usize = PATH_LEN;
    fn put(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Self::new(&bytes[..end])
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        Self::new(format!("f{:x}", random()).as_bytes()).expect("short")
    }
}
