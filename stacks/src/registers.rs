//! The registers of a thread, by their DWARF numbers.

use libc::user_regs_struct;

/// Number of registers that unwinding uses: the 16 general registers and the return address `rip`.
pub const REGISTER_COUNT: usize = 17;

/// The DWARF number of `rdi` on x86-64.
pub const RDI: u16 = 5;
/// The DWARF number of `rbp` on x86-64.
pub const RBP: u16 = 6;
/// The DWARF number of `rsp` on x86-64.
pub const RSP: u16 = 7;
/// The DWARF number of `rip`, the column of the return address, on x86-64.
pub const RIP: u16 = 16;

/// The known registers of one frame. `rip` and `rsp` are always known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    values: [u64; REGISTER_COUNT],
    /// One bit for each known register.
    known: u32,
}

impl Registers {
    /// A frame of which only the instruction pointer and the stack pointer are known.
    pub fn new(rip: u64, rsp: u64) -> Self {
        let mut registers = Self { values: [0; REGISTER_COUNT], known: 0 };
        registers.set(RIP, rip);
        registers.set(RSP, rsp);
        registers
    }

    /// The instruction pointer.
    pub fn rip(&self) -> u64 {
        self.values[usize::from(RIP)]
    }

    /// The stack pointer.
    pub fn rsp(&self) -> u64 {
        self.values[usize::from(RSP)]
    }

    /// The value of the register with this DWARF number, if it is known.
    pub fn get(&self, number: u16) -> Option<u64> {
        let value = self.values.get(usize::from(number))?;
        (self.known >> number & 1 == 1).then_some(*value)
    }

    /// Sets a register. Numbers that unwinding does not use are ignored.
    pub fn set(&mut self, number: u16, value: u64) {
        if let Some(slot) = self.values.get_mut(usize::from(number)) {
            *slot = value;
            self.known |= 1 << number;
        }
    }

    /// Marks a register as unknown. `rip` and `rsp` always stay known.
    pub fn forget(&mut self, number: u16) {
        if usize::from(number) < REGISTER_COUNT && number != RIP && number != RSP {
            self.known &= !(1 << number);
        }
    }
}

impl From<&user_regs_struct> for Registers {
    fn from(regs: &user_regs_struct) -> Self {
        let in_order = [
            regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.rip,
        ];
        Self { values: in_order, known: (1 << REGISTER_COUNT) - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_has_a_value_only_after_it_is_set_and_until_it_is_cleared() {
        let mut registers = Registers::new(1, 2);
        assert_eq!((registers.rip(), registers.rsp()), (1, 2));
        assert_eq!(registers.get(RBP), None);
        registers.set(RBP, 3);
        assert_eq!(registers.get(RBP), Some(3));
        registers.forget(RBP);
        assert_eq!(registers.get(RBP), None);
        registers.forget(RSP);
        assert_eq!(registers.get(RSP), Some(2));
        registers.set(40, 1);
        assert_eq!(registers.get(40), None);
    }
}
