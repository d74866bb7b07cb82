//! A small assembler for the kernel's eBPF: named registers, operations and labels, and the text of what was assembled.
//!
//! It knows the instructions that a filter of packets needs and no others. Jumps go forward alone, so that every program ends;
//! the kernel's verifier checks the rest.

use core::fmt;

/// A register. R1 holds the context when a program begins and, with R2 to R5, what a helper is called with; R0 is what a
/// helper or the program returns. A call spoils R0 to R5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);

/// How much is loaded; the rest of the register becomes zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// 8 bits.
    Byte = 0x10,
    /// 16 bits.
    Half = 0x08,
    /// 32 bits.
    Word = 0x00,
}

/// When a jump is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum If {
    /// Both are the same.
    Equal = 0x10,
    /// The first is greater, without sign.
    Greater = 0x20,
    /// They have a bit in common.
    Common = 0x40,
    /// They differ.
    Differs = 0x50,
    /// The first is less, without sign.
    Less = 0xa0,
}

// Classes of instructions.
const LOAD_IMMEDIATE: u8 = 0x18;
const LOAD_MEMORY: u8 = 0x61;
const JUMP_64: u8 = 0x05;
const JUMP_32: u8 = 0x06;
const ARITHMETIC_64: u8 = 0x07;
/// Added to a class: the second operand is a register.
const FROM_REGISTER: u8 = 0x08;
// Operations of the arithmetic class.
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const SHIFT_LEFT: u8 = 0x60;
const MOVE: u8 = 0xb0;
// Operations of the jump class.
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// The source of an immediate load: the number is a map's file descriptor.
const MAP_DESCRIPTOR: u8 = 1;

/// One instruction, as the kernel takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instruction {
    opcode: u8,
    to: u8,
    from: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// Its eight bytes.
    pub(crate) fn bytes(self) -> [u8; 8] {
        // The kernel's structure has two bit fields, whose order follows that of the bytes.
        let registers =
            if cfg!(target_endian = "little") { self.to | self.from << 4 } else { self.to << 4 | self.from };
        let (offset, immediate) = (self.offset.to_ne_bytes(), self.immediate.to_ne_bytes());
        let [a, b, c, d] = immediate;
        [self.opcode, registers, offset[0], offset[1], a, b, c, d]
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { opcode, to, from, offset, immediate } = *self;
        let (class, register) = (opcode & 0x07, opcode & FROM_REGISTER != 0);
        let second = if register { format!("r{from}") } else { format!("{immediate:#x}") };
        match (class, opcode & 0xf0) {
            (_, 0x10) if opcode == LOAD_IMMEDIATE => write!(f, "r{to} = map"),
            (0x00, _) => write!(f, "(second half)"),
            (0x01, _) => {
                let bits = match opcode & 0x18 {
                    0x10 => 8,
                    0x08 => 16,
                    _ => 32,
                };
                write!(f, "r{to} = *(u{bits} *)(r{from} + {offset})")
            }
            (ARITHMETIC_64, ADD) => write!(f, "r{to} += {second}"),
            (ARITHMETIC_64, AND) => write!(f, "r{to} &= {second}"),
            (ARITHMETIC_64, SHIFT_LEFT) => write!(f, "r{to} <<= {second}"),
            (ARITHMETIC_64, MOVE) => write!(f, "r{to} = {second}"),
            (JUMP_64, CALL) => write!(f, "call {immediate}"),
            (JUMP_64, EXIT) => write!(f, "exit"),
            (_, 0x00) => write!(f, "goto +{offset}"),
            (_, condition) => {
                let sign = match condition {
                    0x10 => "==",
                    0x20 => ">",
                    0x40 => "&",
                    0x50 => "!=",
                    _ => "<",
                };
                write!(f, "if r{to} {sign} {second} goto +{offset}")
            }
        }
    }
}

/// A place that jumps lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Why a program cannot be assembled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A label was never placed.
    Nowhere,
    /// A jump leads backward, or to itself.
    Backward,
    /// A jump is longer than its field.
    TooFar,
}

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, opcode: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { opcode, to: to.0, from, offset, immediate });
    }

    /// A label, to be placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label is here.
    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// `to = number`
    pub(crate) fn set(&mut self, to: Register, number: i32) {
        self.push(ARITHMETIC_64 | MOVE, to, 0, 0, number);
    }

    /// `to = from`
    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.push(ARITHMETIC_64 | MOVE | FROM_REGISTER, to, from.0, 0, 0);
    }

    /// `to += number`
    pub(crate) fn add(&mut self, to: Register, number: i32) {
        self.push(ARITHMETIC_64 | ADD, to, 0, 0, number);
    }

    /// `to += from`
    pub(crate) fn add_register(&mut self, to: Register, from: Register) {
        self.push(ARITHMETIC_64 | ADD | FROM_REGISTER, to, from.0, 0, 0);
    }

    /// `to &= number`
    pub(crate) fn and(&mut self, to: Register, number: i32) {
        self.push(ARITHMETIC_64 | AND, to, 0, 0, number);
    }

    /// `to <<= bits`
    pub(crate) fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(ARITHMETIC_64 | SHIFT_LEFT, to, 0, 0, bits);
    }

    /// `to = *(from + offset)`
    pub(crate) fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.push(LOAD_MEMORY | size as u8, to, from.0, offset, 0);
    }

    /// `to = map`, by the map's file descriptor. Two instructions long.
    pub(crate) fn load_map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_IMMEDIATE, to, MAP_DESCRIPTOR, 0, descriptor);
        self.push(0, R0, 0, 0, 0);
    }

    /// Jumps if the lower 32 bits of `first` and `number` are so.
    pub(crate) fn jump_if(&mut self, first: Register, condition: If, number: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_32 | condition as u8, first, 0, 0, number);
    }

    /// Jumps if all 64 bits of two registers are so: for pointers.
    pub(crate) fn jump_if_register(&mut self, first: Register, condition: If, second: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_64 | condition as u8 | FROM_REGISTER, first, second.0, 0, 0);
    }

    /// Jumps.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP_64, R0, 0, 0, 0);
    }

    /// Calls a helper of the kernel's by its number.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(JUMP_64 | CALL, R0, 0, 0, helper);
    }

    /// Ends the program; R0 is its result.
    pub(crate) fn exit(&mut self) {
        self.push(JUMP_64 | EXIT, R0, 0, 0, 0);
    }

    /// The program, with its jumps filled in.
    pub(crate) fn assemble(mut self) -> Result<Vec<Instruction>, Fault> {
        for (at, label) in self.jumps {
            let target = self.places[label.0].ok_or(Fault::Nowhere)?;
            let distance = target.checked_sub(at + 1).ok_or(Fault::Backward)?;
            self.code[at].offset = i16::try_from(distance).map_err(|_| Fault::TooFar)?;
        }
        Ok(self.code)
    }
}

/// The text of a program, an instruction a line.
#[cfg(test)]
pub(crate) fn listing(program: &[Instruction]) -> String {
    program.iter().enumerate().map(|(at, instruction)| format!("{at:3}: {instruction}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_bytes_of_the_kernels_interface() {
        let mut asm = Assembler::default();
        asm.load(Size::Word, R2, R1, 16);
        asm.load(Size::Half, R8, R6, 12);
        asm.load(Size::Byte, R0, R5, -1);
        asm.load_map(R1, 9);
        asm.set(R3, 2);
        asm.copy(R9, R1);
        asm.add(R0, 14);
        asm.add_register(R5, R0);
        asm.and(R0, 15);
        asm.shift_left(R0, 2);
        asm.call(51);
        asm.exit();
        let bytes: Vec<[u8; 8]> = asm.assemble().unwrap().into_iter().map(Instruction::bytes).collect();
        let expected: [[u8; 8]; 13] = [
            [0x61, 0x12, 16, 0, 0, 0, 0, 0],
            [0x69, 0x68, 12, 0, 0, 0, 0, 0],
            [0x71, 0x50, 0xff, 0xff, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 9, 0, 0, 0],
            [0; 8],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0xbf, 0x19, 0, 0, 0, 0, 0, 0],
            [0x07, 0x00, 0, 0, 14, 0, 0, 0],
            [0x0f, 0x05, 0, 0, 0, 0, 0, 0],
            [0x57, 0x00, 0, 0, 15, 0, 0, 0],
            [0x67, 0x00, 0, 0, 2, 0, 0, 0],
            [0x85, 0x00, 0, 0, 51, 0, 0, 0],
            [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn jumps_lead_to_their_labels() {
        let mut asm = Assembler::default();
        let (near, far) = (asm.label(), asm.label());
        asm.jump_if(R1, If::Differs, 7, far);
        asm.jump_if_register(R0, If::Greater, R7, near);
        asm.jump(far);
        asm.place(near);
        asm.set(R0, 1);
        asm.place(far);
        asm.exit();
        let program = asm.assemble().unwrap();
        let offsets: Vec<i16> = program.iter().map(|instruction| instruction.offset).collect();
        let opcodes: Vec<u8> = program.iter().map(|instruction| instruction.opcode).collect();
        assert_eq!(offsets, [3, 1, 1, 0, 0]);
        assert_eq!(opcodes, [0x56, 0x2d, 0x05, 0xb7, 0x95]);
        assert_eq!(
            listing(&program),
            "  0: if r1 != 0x7 goto +3\n  1: if r0 > r7 goto +1\n  2: goto +1\n  3: r0 = 0x1\n  4: exit\n"
        );
    }

    #[test]
    fn jumps_to_nowhere_backward_or_too_far_are_faults() {
        let mut asm = Assembler::default();
        let label = asm.label();
        asm.jump(label);
        assert_eq!(asm.assemble(), Err(Fault::Nowhere));

        let mut asm = Assembler::default();
        let label = asm.label();
        asm.place(label);
        asm.jump(label);
        assert_eq!(asm.assemble(), Err(Fault::Backward));

        let mut asm = Assembler::default();
        let label = asm.label();
        asm.jump(label);
        (0..40_000).for_each(|_| asm.exit());
        asm.place(label);
        assert_eq!(asm.assemble(), Err(Fault::TooFar));
    }
}
