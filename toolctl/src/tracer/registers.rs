//! The registers of a thread on x86-64.

/// General and special registers, in the layout of the kernel's user_regs_struct.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are those of the processor")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the current system call, or all ones.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// The segment selector of 64-bit code.
const CODE_64_BIT: u64 = 0x33;
/// The results by which the kernel marks a system call that it will restart (ERESTART*).
const RESTART_RANGE: std::ops::RangeInclusive<i64> = -516..=-512;

impl Registers {
    /// Whether the thread sleeps in a system call that a stop has interrupted. The kernel restarts
    /// the call when the thread continues.
    pub fn is_in_interrupted_call(&self) -> bool {
        self.orig_rax.cast_signed() >= 0 && RESTART_RANGE.contains(&self.rax.cast_signed())
    }

    /// Whether the thread executes 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.cs == CODE_64_BIT
    }

    /// Moves the thread to another instruction. Clears the current system call, because otherwise
    /// the kernel could set the address back by the length of a `syscall` instruction.
    pub fn jump(&mut self, address: u64) {
        self.rip = address;
        self.orig_rax = u64::MAX;
    }
}

/// General purpose registers: rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8 to r15.
pub type Gprs = [u64; 16];

impl Registers {
    /// The general purpose registers, in the order of [`Gprs`].
    pub fn general(&self) -> Gprs {
        let r = self;
        [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ]
    }

    /// Sets the general purpose registers.
    pub fn set_general(&mut self, values: &Gprs) {
        for (register, value) in self.general_mut().into_iter().zip(values) {
            *register = *value;
        }
    }

    fn general_mut(&mut self) -> [&mut u64; 16] {
        let r = self;
        [
            &mut r.rax, &mut r.rbx, &mut r.rcx, &mut r.rdx, &mut r.rsi, &mut r.rdi, &mut r.rbp,
            &mut r.rsp, &mut r.r8, &mut r.r9, &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13,
            &mut r.r14, &mut r.r15,
        ]
    }

    /// Sets one general purpose register, given by its index in [`Gprs`]. Returns false if there is
    /// none.
    pub fn set_one_general(&mut self, number: usize, value: u64) -> bool {
        match self.general_mut().into_iter().nth(number) {
            Some(register) => *register = value,
            None => return false,
        }
        true
    }
}

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the processor")]
pub enum SpecialRegister {
    Rip,
    Eflags,
    Cs,
    Ss,
    Ds,
    Es,
    Fs,
    Gs,
    FsBase,
    GsBase,
    OrigRax,
    Mxcsr,
    X87Control,
    X87Status,
}

/// The special registers of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialRegisters {
    /// `rip`, `eflags`, segments and `orig_rax`. Its general purpose registers are not used.
    pub base: Registers,
    /// The control and status register of SSE.
    pub mxcsr: u32,
    /// The x87 control word.
    pub x87_control: u16,
    /// The x87 status word.
    pub x87_status: u16,
    /// The address of the fault at which the thread is stopped. 0, if it is not stopped at a fault.
    pub fault_address: u64,
}

impl Registers {
    /// Sets the special registers to those of `other`. A new `rip` cancels the current system call,
    /// unless `orig_rax` also changes.
    pub fn set_special(&mut self, other: &Self) {
        let general = self.general();
        let (rip, orig_rax) = (self.rip, self.orig_rax);
        *self = *other;
        self.set_general(&general);
        if self.rip != rip && self.orig_rax == orig_rax {
            self.jump(other.rip);
        }
    }

    /// Sets one special register. Returns false if the register is part of the XSAVE area.
    pub fn set_one_special(&mut self, register: SpecialRegister, value: u64) -> bool {
        match register {
            SpecialRegister::Rip => self.jump(value),
            SpecialRegister::Eflags => self.eflags = value,
            SpecialRegister::Cs => self.cs = value,
            SpecialRegister::Ss => self.ss = value,
            SpecialRegister::Ds => self.ds = value,
            SpecialRegister::Es => self.es = value,
            SpecialRegister::Fs => self.fs = value,
            SpecialRegister::Gs => self.gs = value,
            SpecialRegister::FsBase => self.fs_base = value,
            SpecialRegister::GsBase => self.gs_base = value,
            SpecialRegister::OrigRax => self.orig_rax = value,
            SpecialRegister::Mxcsr | SpecialRegister::X87Control | SpecialRegister::X87Status => {
                return false;
            }
        }
        true
    }
}

/// The debug registers DR0 to DR3, DR6 and DR7. DR4 and DR5 do not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DebugRegisters {
    /// DR0 to DR3.
    pub addresses: [u64; 4],
    /// DR6.
    pub status: u64,
    /// DR7.
    pub control: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_and_special_registers_do_not_disturb_each_other() {
        let values: Gprs = std::array::from_fn(|index| index as u64 + 1);
        let mut registers =
            Registers { rip: 7, orig_rax: 202, rax: (-512_i64) as u64, ..Registers::default() };
        assert!(registers.is_in_interrupted_call());
        registers.set_general(&values);
        assert_eq!((registers.general(), registers.rip), (values, 7));
        let special =
            Registers { rip: 9, orig_rax: 202, rax: 99, fs_base: 5, ..Registers::default() };
        registers.set_special(&special);
        assert_eq!((registers.general(), registers.rip, registers.fs_base), (values, 9, 5));
        assert_eq!(registers.orig_rax, u64::MAX, "a new rip ends the call");
        assert!(registers.set_one_general(15, 77) && registers.r15 == 77);
        assert!(!registers.set_one_general(16, 1));
        assert!(!registers.set_one_special(SpecialRegister::Mxcsr, 1));
        assert!(!registers.is_in_interrupted_call());
    }
}
