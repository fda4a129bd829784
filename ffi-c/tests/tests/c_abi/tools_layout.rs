//! The messages of tool control are the same in score_tools.h and in Rust: offsets and lengths of
//! all members, numbers of all commands, codes and parameters.

use std::process::Command;

use score_c_tests::{TempDir, compilers, include, run_ok, stdout};
use score_tools::authority::{FIRST_OWN_TOOL, MAX_PRIORITY, MAX_TOOLS};
use score_tools::wire;

/// Converts `GetMemory` to `get_memory`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    let mut before = '_';
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && before.is_ascii_alphanumeric() && !before.is_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
        before = letter;
    }
    snake
}

/// C expressions, and the values that they must have.
fn facts() -> Vec<(String, usize)> {
    let mut facts = Vec::new();
    for layout in wire::layouts() {
        let structure = format!("struct score_tools_{}", snake(layout.name));
        for field in layout.fields {
            let name = field.name;
            facts.push((format!("offsetof({structure}, {name})"), field.offset));
            facts.push((format!("sizeof((({structure} *)0)->{name})"), field.len));
        }
    }
    for (name, count, tail) in wire::tails() {
        let name = snake(name);
        facts.push((format!("offsetof(struct score_tools_{name}, count)"), count));
        facts.push((format!("SCORE_TOOLS_{}_TAIL", name.to_uppercase()), tail));
    }
    for (kind, value, number) in wire::numbers() {
        let name = format!("SCORE_TOOLS_{}_{}", snake(kind), snake(value)).to_uppercase();
        facts.push((name, number as usize));
    }
    for (name, number) in [
        ("SERVICE", wire::TOOL_CONTROL_SERVICE as usize),
        ("VERSION", wire::VERSION as usize),
        ("MAX_MESSAGE", wire::MAX_MESSAGE_LEN),
        ("COMMANDS", wire::BODY_OFFSET),
        ("DESCRIPTORS", wire::DESCRIPTORS_OFFSET),
        ("DATA", wire::DATA_OFFSET),
        ("MAX_COMMANDS", wire::MAX_COMMANDS),
        ("MAX_MEMORY", wire::MAX_MEMORY_LEN as usize),
        ("MAX_SHARED", wire::MAX_SHARED_LEN as usize),
        ("PATH_LEN", wire::PATH_LEN),
        ("MAX_PRIORITY", MAX_PRIORITY as usize),
        ("MAX_TOOLS", MAX_TOOLS),
        ("FIRST_OWN_TOOL", FIRST_OWN_TOOL as usize),
        ("COMMUNICATION_THREAD", wire::COMMUNICATION_THREAD as usize),
        ("GENERAL_REGISTERS", wire::GENERAL_REGISTERS),
        ("SPECIAL_REGISTERS", wire::SPECIAL_REGISTERS),
        ("DEBUG_REGISTERS", wire::DEBUG_REGISTERS),
        ("X87_REGISTER(7)", wire::FloatRegister::X87(7).number() as usize),
        ("XMM_REGISTER(1)", wire::FloatRegister::Xmm(1).number() as usize),
        ("YMM_REGISTER(2)", wire::FloatRegister::Ymm(2).number() as usize),
        ("ZMM_REGISTER(31)", wire::FloatRegister::Zmm(31).number() as usize),
        ("MASK_REGISTER(3)", wire::FloatRegister::Mask(3).number() as usize),
    ] {
        facts.push((format!("SCORE_TOOLS_{name}"), number));
    }
    facts
}

#[test]
fn score_tools_h_has_the_offsets_and_numbers_of_rust() {
    let facts = facts();
    assert!(facts.len() > 400, "{} facts", facts.len());
    let mut text = String::from("#include <score_tools.h>\n#include <stdio.h>\n");
    text += "int main(void) {\n";
    for (expression, _) in &facts {
        text += &format!("    printf(\"%zu\\n\", (size_t)({expression}));\n");
    }
    text += "    return 0;\n}\n";
    for compiler in compilers(false) {
        let scratch = TempDir::new(&format!("tools-layout-{compiler}"));
        let (source, program) = (scratch.file("layout.c"), scratch.file("layout"));
        std::fs::write(&source, &text).expect("the directory is writable");
        let mut command = Command::new(compiler);
        run_ok(command.arg("-I").arg(include()).arg(&source).arg("-o").arg(&program));
        let output = stdout(&mut Command::new(&program));
        let numbers: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers.len(), facts.len());
        for ((expression, expected), number) in facts.iter().zip(numbers) {
            assert_eq!(number, *expected, "{compiler}: {expression}");
        }
    }
}

/// A tool in C writes a message with only the header, and Rust reads it.
#[test]
fn a_message_that_c_writes_is_read_by_rust() {
    let text = r#"
        #include <score_tools.h>
        #include <stdio.h>
        #include <string.h>
        int main(void) {
            unsigned char message[328] = {0};
            struct score_tools_header header = {SCORE_TOOLS_SERVICE, SCORE_TOOLS_VERSION,
                SCORE_TOOLS_MSG_QUERY, 3, 42, 0, 0, sizeof message, 17, 9};
            uint16_t count = 1;
            struct score_tools_memory_range range = {77, 0, 0x1234, 8,
                SCORE_TOOLS_SPECULATIVE_ACCESS_FORBIDDEN};
            struct score_tools_command_descriptor descriptor = {SCORE_TOOLS_CMD_GET_MEMORY, 0,
                304, sizeof range, 0};
            memcpy(message, &header, sizeof header);
            memcpy(message + SCORE_TOOLS_COMMANDS, &count, sizeof count);
            memcpy(message + SCORE_TOOLS_DESCRIPTORS, &descriptor, sizeof descriptor);
            memcpy(message + 304, &range, sizeof range);
            return fwrite(message, sizeof message, 1, stdout) != 1;
        }
    "#;
    for compiler in compilers(false) {
        let scratch = TempDir::new(&format!("tools-message-{compiler}"));
        let (source, program) = (scratch.file("message.c"), scratch.file("message"));
        std::fs::write(&source, text).expect("the directory is writable");
        let mut command = Command::new(compiler);
        run_ok(command.arg("-I").arg(include()).arg(&source).arg("-o").arg(&program));
        let record = run_ok(&mut Command::new(&program)).stdout;
        let (header, message) = wire::ToolMessage::decode(&record).expect("C writes it as Rust");
        assert_eq!((header.rank, header.sequence, header.job, header.tool), (3, 42, 17, 9));
        let range = wire::MemoryRange {
            address: 0x1234,
            length: 8,
            access: wire::SpeculativeAccess::Forbidden,
        };
        let command = wire::ReceivedCommand {
            number: 109,
            thread: 77,
            request: Ok(wire::CommandRequest::GetMemory(range)),
        };
        assert_eq!(message, wire::ToolMessage::Query(vec![command]));
    }
}

/// The library asserts the offsets of the structure in score_toolctl.h, and the sizes of the
/// messages that it copies. Here C checks the same numbers.
#[test]
fn score_toolctl_h_has_the_layout_of_the_library() {
    let text = "
        #include <score_toolctl.h>
        #define AT(member, place) \\
            _Static_assert(offsetof(struct score_toolctl_command, member) == place, #member)
        AT(kind, 0);
        AT(return_code, 4);
        AT(request, 8);
        AT(request_len, 16);
        AT(answer, 24);
        AT(answer_len, 32);
        _Static_assert(sizeof(struct score_toolctl_command) == 40, \"size\");
        _Static_assert(sizeof(struct score_tools_control) == 64, \"size\");
        _Static_assert(sizeof(struct score_tools_control_ack) == 56, \"size\");
    ";
    for compiler in compilers(false) {
        let scratch = TempDir::new(&format!("toolctl-layout-{compiler}"));
        let source = scratch.file("layout.c");
        std::fs::write(&source, text).expect("the directory is writable");
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-fsyntax-only", "-I"]).arg(include()).arg(&source);
        run_ok(&mut command);
    }
}
