//! The kernel's information about a signal (siginfo_t).

/// The kernel's siginfo_t as bytes, for any signal and any sender.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct SigInfo {
    bytes: [u8; 128],
}

impl Default for SigInfo {
    fn default() -> Self {
        Self { bytes: [0; 128] }
    }
}

impl std::fmt::Debug for SigInfo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SigInfo {{ signal: {}, code: {} }}", self.signal(), self.code())
    }
}

impl SigInfo {
    /// A siginfo with this signal number and this code.
    pub fn new(signal: i32, code: i32) -> Self {
        let mut info = Self::default();
        info.bytes[..4].copy_from_slice(&signal.to_ne_bytes());
        info.bytes[8..12].copy_from_slice(&code.to_ne_bytes());
        info
    }

    fn number(&self, offset: usize) -> i32 {
        let bytes = self.bytes[offset..offset + 4].try_into();
        bytes.map_or(0, i32::from_ne_bytes)
    }

    /// `si_signo`.
    pub fn signal(&self) -> i32 {
        self.number(0)
    }

    /// `si_code`. It is positive if the kernel has sent the signal because of an instruction.
    pub fn code(&self) -> i32 {
        self.number(8)
    }

    /// `si_addr`: the address of a fault. 0 for other signals, which have other data in this field.
    pub fn fault_address(&self) -> u64 {
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
        let is_fault = faults.contains(&self.signal()) && self.code() > 0;
        // With the code SI_KERNEL, the kernel reports no address.
        if !is_fault || self.code() == SI_KERNEL {
            return 0;
        }
        self.bytes[16..24].try_into().map_or(0, u64::from_ne_bytes)
    }
}

/// The code for int3, and for faults without a known address.
pub const SI_KERNEL: i32 = 0x80;
/// The code for a single step over a system call, or for the instruction int1.
pub const TRAP_BRKPT: i32 = 1;
/// The code for a single step.
pub const TRAP_TRACE: i32 = 2;
/// The code for a hit of a debug register.
pub const TRAP_HWBKPT: i32 = 4;
/// The code for a single step that ends when the frame of a signal handler is complete.
pub const TRAP_HANDLER: i32 = libc::SIGTRAP;
