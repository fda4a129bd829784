//! The commands of Query and Update (docs/dev/tools.md, groups Q and U). The table at the end has a
//! line for each command: number, name, message, scope, data of the request, data of the answer.
//! Offsets are relative to the start of the command's data, which is the thread id.

use super::codes::CommandCode;
use super::field::{ReadError, Record, RecordLayout, numbered, part, put_at, record};
use super::parameters::{
    BreakpointKind, DEBUG_REGISTERS, DebugRegister, FloatRegister, GENERAL_REGISTERS,
    GeneralRegister, JobFilePath, Preference, ReleaseNotify, SPECIAL_REGISTERS, SharedAccess,
    SpecialRegister, SpeculativeAccess, ThreadState, ToolState, TrapMode, WatchType,
};
use super::payload::{Counted, Payload, WithBytes, WithList};

/// The most bytes of memory or of a file that a command can read or write.
pub const MAX_MEMORY_LEN: u32 = 65_024;
/// The most bytes of memory that a tool can share with the service.
pub const MAX_SHARED_LEN: u32 = 4 << 20;
/// The highest signal number.
pub const MAX_SIGNAL: u32 = 64;
/// The longest range of a watchpoint in bytes: four debug registers of 8 bytes.
pub const MAX_WATCH_LEN: u32 = 32;

record! {
    /// No data after the thread id.
    NoData[4] {}

    /// The special registers.
    SpecialRegisters[128] {
        /// Indexed by the number of [`SpecialRegister`].
        8 values: [u64; SPECIAL_REGISTERS],
    }

    /// The general purpose registers.
    GeneralRegisters[136] {
        /// Indexed by the number of [`GeneralRegister`].
        8 values: [u64; GENERAL_REGISTERS],
    }

    /// The debug registers.
    DebugRegisters[72] {
        /// DR0 to DR7. DR4 and DR5 are 0.
        8 values: [u64; DEBUG_REGISTERS],
    }

    /// The record before the XSAVE area. The length of the area is at 16, and the area starts at
    /// 24.
    FloatRegistersHead[24] {
        /// The state components in the area (XCR0).
        8 features: u64,
    }

    /// A new value of a general purpose register.
    SetGeneral[24] {
        /// The register.
        8 selection: GeneralRegister,
        /// The value.
        16 value: u64,
    }

    /// A new value of a special register.
    SetSpecial[24] {
        /// The register.
        8 selection: SpecialRegister,
        /// The value.
        16 value: u64,
    }

    /// A new value of a debug register.
    SetDebug[24] {
        /// The register.
        8 selection: DebugRegister,
        /// The value.
        16 value: u64,
    }

    /// A new value of a floating point register.
    SetFloat[80] {
        /// The register.
        8 selection: FloatRegister,
        /// The value. Only as many bytes are used as the register has.
        16 value: [u8; 64],
    }

    /// The memory that Get Memory reads.
    MemoryRange[24] {
        /// The address of the first byte.
        8 address: u64,
        /// The number of bytes, 1 to 65,024.
        16 length: u32,
        /// The service ignores this field.
        20 access: SpeculativeAccess,
    }

    /// The record before the bytes of memory. Their number is at 16, and they start at 20.
    MemoryHead[20] {
        /// The address of the first byte.
        8 address: u64,
    }

    /// The memory that Copy Memory copies to the shared memory. In the answer, the memory that it
    /// has copied.
    MemoryCopy[24] {
        /// The address of the first byte.
        8 address: u64,
        /// The number of bytes. The answer may have a lower number, if a page after these bytes
        /// cannot be read.
        16 length: u32,
        /// The offset of the first byte in the shared memory.
        20 offset: u32,
    }

    /// The record before the new bytes of memory. Their number is at 16, and they start at 28.
    SetMemoryHead[28] {
        /// The address of the first byte.
        8 address: u64,
        /// The service ignores this field.
        20 access: SpeculativeAccess,
        /// Whether shared memory may be written.
        24 shared: SharedAccess,
    }

    /// The memory that Set Memory has written.
    WrittenMemory[20] {
        /// The address of the first byte.
        8 address: u64,
        /// The number of bytes.
        16 length: u32,
    }

    /// The record before the threads. Their number is at 8, and the entries start at 12.
    ThreadListHead[12] {}

    /// A thread of the process.
    ThreadEntry[8] {
        /// Its id in the host's PID namespace.
        0 tid: u32,
        /// [`COMMUNICATION_THREAD`], or 0.
        4 flags: u32,
    }

    /// The record before the words of the aux vector. Their number is at 8, and the words start at
    /// 16.
    AuxVectorHead[16] {}

    /// Information about a process.
    ProcessData[128] {
        /// Its rank.
        8 rank: u32,
        /// Its thread group id.
        12 tgid: u32,
        /// The coordinates A, B, C, D, E and T. A is the number of the host in the job. B to E are
        /// 0. T is the number of the process among those of its element on the host.
        16 coordinates: [u32; 6],
        /// The start and end of shared memory.
        40 shared_memory: [u64; 2],
        /// 0, because Linux has no persistent memory.
        56 persistent_memory: [u64; 2],
        /// The start and end of the heap.
        72 heap: [u64; 2],
        /// The end of the used part of the heap.
        88 heap_break: u64,
        /// The addresses of the lowest and the highest mapping.
        96 mappings: [u64; 2],
        /// The seconds that the job has been running.
        112 job_seconds: i64,
        /// The microseconds in addition to the seconds.
        120 job_microseconds: i64,
    }

    /// The record before the stack frames of a thread. Their number is at 64, and the entries start
    /// at 72.
    ThreadDataHead[72] {
        /// The core on which the thread runs or last ran.
        8 core: i32,
        /// The hardware thread in the core.
        12 core_thread: i32,
        /// The state of the thread.
        16 state: ThreadState,
        /// The state of the thread with regard to tools.
        20 tool_state: ToolState,
        /// Always 0.
        24 speculative_state: u32,
        /// The start and end of the guard page of its stack.
        32 guard: [u64; 2],
        /// The start of its stack.
        48 stack_start: u64,
        /// Its stack pointer.
        56 stack_current: u64,
    }

    /// A frame of a stack trace.
    FrameEntry[16] {
        /// The address of the frame.
        0 frame: u64,
        /// The return address.
        8 return_address: u64,
    }

    /// The record before the file names. Their number is at 8, and the names start at 12.
    FileNamesHead[12] {}

    /// The file for Get File Stat Data.
    FileStatPath[136] {
        /// Its path in the job's directory.
        8 path: JobFilePath,
    }

    /// The struct stat of x86-64.
    FileStat[152] {
        /// The device of the file system.
        8 device: u64,
        /// The inode.
        16 inode: u64,
        /// The number of links.
        24 links: u64,
        /// Type and permissions.
        32 mode: u32,
        /// Owner.
        36 uid: u32,
        /// Group.
        40 gid: u32,
        /// The device number, if the file is a device.
        48 special_device: u64,
        /// The size in bytes.
        56 size: i64,
        /// The size of a block in bytes.
        64 block_size: i64,
        /// The number of blocks of 512 bytes.
        72 blocks: i64,
        /// The last access: seconds, nanoseconds.
        80 accessed: [i64; 2],
        /// The last change of the contents: seconds, nanoseconds.
        96 modified: [i64; 2],
        /// The last change of the inode: seconds, nanoseconds.
        112 changed: [i64; 2],
    }

    /// The part of a file that Get File Contents reads.
    FileRange[152] {
        /// Its path in the job's directory.
        8 path: JobFilePath,
        /// The offset of the first byte.
        136 offset: u64,
        /// The number of bytes, 1 to 65,024.
        144 number: u64,
    }

    /// The record before the bytes of a file. Their number is at 8, and they start at 16.
    FileContentsHead[16] {}

    /// The SIGTRAP handler of the process.
    TrapHandler[16] {
        /// The address of its code.
        8 address: u64,
    }

    /// The size of memory to allocate.
    AllocationSize[16] {
        /// The number of bytes.
        8 size: u64,
    }

    /// Memory that Allocate Memory has allocated.
    AllocatedMemory[16] {
        /// Its address.
        8 address: u64,
    }

    /// Memory that Free Memory frees.
    FreedMemory[24] {
        /// Its address.
        8 address: u64,
        /// The number of bytes.
        16 size: u64,
    }

    /// A signal.
    SignalNumber[12] {
        /// The signal, 1 to 64. 0 in Set Continuation Signal means no signal.
        8 signal: u32,
    }

    /// Preferences of a process.
    Preferences[20] {
        /// Whether fast breakpoints are enabled.
        8 fast_breakpoints: Preference,
        /// Whether fast watchpoints are enabled.
        12 fast_watchpoints: Preference,
        /// Where a watchpoint stops the thread.
        16 trap_mode: TrapMode,
    }

    /// A new breakpoint.
    NewBreakpoint[20] {
        /// The address of the instruction.
        8 address: u64,
        /// Its kind.
        16 kind: BreakpointKind,
    }

    /// A breakpoint to remove.
    OldBreakpoint[20] {
        /// The address of the instruction.
        8 address: u64,
        /// The four bytes of the original instruction.
        16 instruction: u32,
    }

    /// A new watchpoint.
    NewWatchpoint[24] {
        /// The address of the first byte, aligned to the length.
        8 address: u64,
        /// The number of bytes, which is a power of two.
        16 length: u32,
        /// The accesses that it detects.
        20 kind: WatchType,
    }

    /// A watchpoint to remove.
    OldWatchpoint[16] {
        /// The address of its first byte.
        8 address: u64,
    }

    /// The options of a release of authority.
    ReleaseOption[12] {
        /// Whether the tool is notified when the next tool releases authority.
        8 notify: ReleaseNotify,
    }
}

/// A bit of [`ThreadEntry::flags`]: a communication thread of libpm.
pub const COMMUNICATION_THREAD: u32 = 1;

macro_rules! counted {
    ($($name:ident: $count:literal, $tail:literal;)*) => {$(
        impl Counted for $name {
            const COUNT_OFFSET: usize = $count;
            const TAIL_OFFSET: usize = $tail;
        }
    )*
        /// For each record with a variable part: its name, the offset of the number of entries, and
        /// the offset of the entries.
        pub(super) const TAILS: &[(&str, usize, usize)] =
            &[$((stringify!($name), $count, $tail),)*];
    };
}
counted! {
    FloatRegistersHead: 16, 24;
    MemoryHead: 16, 20;
    SetMemoryHead: 16, 28;
    ThreadListHead: 8, 12;
    AuxVectorHead: 8, 16;
    ThreadDataHead: 64, 72;
    FileContentsHead: 8, 16;
}

/// The XSAVE area of a thread.
pub type FloatRegisters<'a> = WithBytes<'a, FloatRegistersHead>;
/// Bytes of memory.
pub type MemoryContents<'a> = WithBytes<'a, MemoryHead>;
/// New bytes of memory.
pub type SetMemory<'a> = WithBytes<'a, SetMemoryHead>;
/// The threads of a process.
pub type ThreadList = WithList<ThreadListHead, ThreadEntry>;
/// The aux vector.
pub type AuxVector = WithList<AuxVectorHead, u64>;
/// A thread and its stack trace.
pub type ThreadData = WithList<ThreadDataHead, FrameEntry>;
/// Bytes of a file.
pub type FileContents<'a> = WithBytes<'a, FileContentsHead>;

/// The answer of Get File Names: the number of names at offset 8, and NUL-terminated names from
/// offset 12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNames {
    /// The names. No name contains a NUL.
    pub names: Vec<Vec<u8>>,
}

/// The offset of the names.
pub(super) const NAMES_OFFSET: usize = 12;

impl Payload<'_> for FileNames {
    const FIXED: RecordLayout = FileNamesHead::LAYOUT;
    fn payload_len(&self) -> usize {
        NAMES_OFFSET + self.names.iter().map(|name| name.len() + 1).sum::<usize>()
    }
    fn write(&self, bytes: &mut [u8]) {
        put_at(bytes, 8, &(self.names.len() as u32));
        let mut offset = NAMES_OFFSET;
        for name in &self.names {
            bytes[offset..offset + name.len()].copy_from_slice(name);
            offset += name.len() + 1;
        }
    }
    fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let count: u32 = part(bytes, 8).ok_or(ReadError::Short)?;
        let mut rest = bytes.get(NAMES_OFFSET..).ok_or(ReadError::Short)?;
        let mut names = Vec::new();
        // Each name takes at least one byte, so a false count ends the loop early.
        for _ in 0..count {
            let end = rest.iter().position(|byte| *byte == 0).ok_or(ReadError::Short)?;
            names.push(rest[..end].to_vec());
            rest = &rest[end + 1..];
        }
        Ok(Self { names })
    }
    #[cfg(test)]
    fn sample_payload(random: &mut dyn FnMut() -> u64) -> Self {
        let names = (0..random() % 5).map(|_| format!("{:x}", random()).into_bytes());
        Self { names: names.collect() }
    }
}

/// The message that a command belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandSet {
    /// A Query.
    Query,
    /// An Update.
    Update,
}

/// The object that a command acts on (CDTI table 4-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandScope {
    /// The thread that the command names.
    Thread,
    /// The process of that thread.
    Process,
    /// The job's directory on the host. The command needs no thread.
    Host,
}

macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident ($set:ident, $scope:ident) $request:ty => $answer:ty;
    )*) => {
        numbered! {
            /// The commands, with the numbers of their requests. The number of the answer is one
            /// higher.
            CommandKind: u16 { $($(#[$doc])* $number $name,)* }
        }

        impl CommandKind {
            /// The message that the command belongs to.
            pub const fn set(self) -> CommandSet {
                match self { $(Self::$name => CommandSet::$set,)* }
            }

            /// The object that the command acts on.
            pub const fn scope(self) -> CommandScope {
                match self { $(Self::$name => CommandScope::$scope,)* }
            }
        }

        /// The data of a command's request.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CommandRequest<'a> { $($(#[$doc])* $name($request),)* }

        /// The data of a command's answer.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum CommandAnswer<'a> { $($(#[$doc])* $name($answer),)* }

        commands!(@data CommandRequest, $($name $request;)*);
        commands!(@data CommandAnswer, $($name $answer;)*);
    };
    (@data $data:ident, $($name:ident $payload:ty;)*) => {
        impl<'a> $data<'a> {
            /// The command.
            pub fn kind(&self) -> CommandKind {
                match self { $(Self::$name(_) => CommandKind::$name,)* }
            }

            /// The layout of the fixed part of this command's data.
            fn layout(kind: CommandKind) -> RecordLayout {
                match kind { $(CommandKind::$name => <$payload as Payload<'a>>::FIXED,)* }
            }

            /// The length of the data in a message, thread id included.
            pub(super) fn data_len(&self) -> usize {
                match self { $(Self::$name(payload) => payload.payload_len(),)* }
            }

            /// Encodes the data into `bytes`. The slice must have this length and contain only
            /// zeros.
            pub(super) fn write(&self, bytes: &mut [u8]) {
                match self { $(Self::$name(payload) => payload.write(bytes),)* }
            }

            /// Decodes the data of this command, which start with the thread id.
            pub fn read(kind: CommandKind, bytes: &'a [u8]) -> Result<Self, ReadError> {
                Ok(match kind { $(CommandKind::$name => Self::$name(Payload::read(bytes)?),)* })
            }

            /// Random data of this command, for tests.
            #[cfg(test)]
            pub(super) fn sample(kind: CommandKind, random: &mut dyn FnMut() -> u64) -> Self {
                match kind {
                    $(CommandKind::$name => Self::$name(Payload::sample_payload(random)),)*
                }
            }
        }
    };
}

commands! {
    /// Get Special Purpose Registers.
    101 GetSpecialRegisters (Query, Thread) NoData => SpecialRegisters;
    /// Get General Purpose Registers.
    103 GetGeneralRegisters (Query, Thread) NoData => GeneralRegisters;
    /// Get Floating Point Registers.
    105 GetFloatRegisters (Query, Thread) NoData => FloatRegisters<'a>;
    /// Get Debug Registers.
    107 GetDebugRegisters (Query, Thread) NoData => DebugRegisters;
    /// Get Memory.
    109 GetMemory (Query, Process) MemoryRange => MemoryContents<'a>;
    /// Get Thread List.
    111 GetThreadList (Query, Process) NoData => ThreadList;
    /// Get Aux Vectors.
    113 GetAuxVectors (Query, Process) NoData => AuxVector;
    /// Get Process Data.
    115 GetProcessData (Query, Process) NoData => ProcessData;
    /// Get Thread Data.
    117 GetThreadData (Query, Thread) NoData => ThreadData;
    /// Get File Names.
    121 GetFileNames (Query, Host) NoData => FileNames;
    /// Get File Stat Data.
    123 GetFileStat (Query, Host) FileStatPath => FileStat;
    /// Get File Contents.
    125 GetFileContents (Query, Host) FileRange => FileContents<'a>;
    /// Copy Memory: like Get Memory, but to the memory that the tool shares with the service.
    127 CopyMemory (Query, Process) MemoryCopy => MemoryCopy;

    /// Set General Purpose Register.
    201 SetGeneralRegister (Update, Thread) SetGeneral => NoData;
    /// Set Floating Point Register.
    203 SetFloatRegister (Update, Thread) SetFloat => NoData;
    /// Set Debug Register.
    205 SetDebugRegister (Update, Thread) SetDebug => NoData;
    /// Set Memory.
    207 SetMemory (Update, Process) SetMemory<'a> => WrittenMemory;
    /// Hold Thread.
    209 HoldThread (Update, Thread) NoData => NoData;
    /// Release Thread.
    211 ReleaseThread (Update, Thread) NoData => NoData;
    /// Install Trap Handler.
    213 InstallTrapHandler (Update, Process) TrapHandler => NoData;
    /// Allocate Memory.
    215 AllocateMemory (Update, Process) AllocationSize => AllocatedMemory;
    /// Send Signal.
    217 SendSignal (Update, Thread) SignalNumber => NoData;
    /// Continue Process. This is an action.
    219 ContinueProcess (Update, Process) NoData => NoData;
    /// Step Thread. This is an action.
    221 StepThread (Update, Thread) NoData => NoData;
    /// Set Breakpoint.
    223 SetBreakpoint (Update, Process) NewBreakpoint => NoData;
    /// Reset Breakpoint.
    225 ResetBreakpoint (Update, Process) OldBreakpoint => NoData;
    /// Set Watchpoint.
    227 SetWatchpoint (Update, Thread) NewWatchpoint => NoData;
    /// Reset Watchpoint.
    229 ResetWatchpoint (Update, Thread) OldWatchpoint => NoData;
    /// Remove Trap Handler.
    233 RemoveTrapHandler (Update, Process) TrapHandler => NoData;
    /// Set Preferences.
    235 SetPreferences (Update, Thread) Preferences => NoData;
    /// Free Memory.
    237 FreeMemory (Update, Process) FreedMemory => NoData;
    /// Set Special Purpose Register.
    239 SetSpecialRegister (Update, Thread) SetSpecial => NoData;
    /// Set General Purpose Registers.
    241 SetGeneralRegisters (Update, Thread) GeneralRegisters => NoData;
    /// Set Floating Point Registers.
    243 SetFloatRegisters (Update, Thread) FloatRegisters<'a> => NoData;
    /// Set Debug Registers.
    245 SetDebugRegisters (Update, Thread) DebugRegisters => NoData;
    /// Set Special Purpose Registers.
    247 SetSpecialRegisters (Update, Thread) SpecialRegisters => NoData;
    /// Release Control. This is an action.
    249 ReleaseControl (Update, Process) ReleaseOption => NoData;
    /// Set Continuation Signal.
    251 SetContinuationSignal (Update, Process) SignalNumber => NoData;
    /// Send Signal To Process.
    253 SendSignalToProcess (Update, Process) SignalNumber => NoData;
    /// Suspend Process: stop all threads until Continue Process. This is an action.
    255 SuspendProcess (Update, Process) NoData => NoData;
}

impl CommandKind {
    /// Whether the command is an action. A message can have only one action, as its last command.
    pub const fn is_action(self) -> bool {
        matches!(
            self,
            Self::ContinueProcess | Self::StepThread | Self::ReleaseControl | Self::SuspendProcess
        )
    }
}

impl CommandRequest<'_> {
    /// Checks the parameters that can be checked without access to the process.
    pub(super) fn check(&self) -> Result<(), CommandCode> {
        let holds = |condition, code| if condition { Ok(()) } else { Err(code) };
        let path = |path: &JobFilePath| holds(path.is_inside(), CommandCode::FileNotFound);
        let memory =
            |len: u64| holds((1..=MAX_MEMORY_LEN.into()).contains(&len), CommandCode::LengthError);
        match self {
            Self::GetMemory(range) => memory(range.length.into()),
            Self::SetMemory(contents) => memory(contents.bytes.len() as u64),
            Self::CopyMemory(copy) => holds(copy.length > 0, CommandCode::LengthError),
            Self::GetFileStat(file) => path(&file.path),
            Self::GetFileContents(range) => path(&range.path).and(memory(range.number)),
            Self::SendSignal(number) | Self::SendSignalToProcess(number) => {
                holds((1..=MAX_SIGNAL).contains(&number.signal), CommandCode::ParameterError)
            }
            Self::SetContinuationSignal(number) => {
                holds(number.signal <= MAX_SIGNAL, CommandCode::ParameterError)
            }
            Self::SetPreferences(preferences) => {
                holds(preferences.trap_mode != TrapMode::OnAccess, CommandCode::ParameterError)
            }
            Self::SetWatchpoint(watch) => {
                holds(watch.length.is_power_of_two(), CommandCode::LengthError)?;
                let is_aligned = watch.address.is_multiple_of(watch.length.into());
                holds(is_aligned, CommandCode::AddressError)?;
                holds(watch.length <= MAX_WATCH_LEN, CommandCode::HardwareUnavailable)
            }
            _ => Ok(()),
        }
    }
}

/// The layouts of all records in commands, each once.
pub(super) fn command_layouts() -> Vec<RecordLayout> {
    let mut layouts = vec![ThreadEntry::LAYOUT, FrameEntry::LAYOUT];
    let of_kind =
        |kind: &CommandKind| [CommandRequest::layout(*kind), CommandAnswer::layout(*kind)];
    for layout in CommandKind::ALL.iter().flat_map(of_kind) {
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}
