use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn header() -> Header {
    Header::new(0x1122_3344_5566_7788, 3, 9, 0xAABB_CCDD)
}

/// Random numbers from a seed.
fn random_from(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 27)
    }
}

/// A command whose parameters are valid.
fn valid_command<'a>(kind: CommandKind, random: &mut dyn FnMut() -> u64) -> Command<'a> {
    let mut request = CommandRequest::sample(kind, random);
    match &mut request {
        CommandRequest::GetMemory(range) => range.length = 1 + range.length % MAX_MEMORY_LEN,
        CommandRequest::CopyMemory(copy) => copy.length |= 1,
        CommandRequest::GetFileContents(range) => range.number = 1 + range.number % 65_024,
        CommandRequest::SendSignal(number)
        | CommandRequest::SendSignalToProcess(number)
        | CommandRequest::SetContinuationSignal(number) => number.signal = 1 + number.signal % 64,
        CommandRequest::SetPreferences(preferences) => preferences.trap_mode = TrapMode::NoChange,
        CommandRequest::SetWatchpoint(watch) => {
            watch.length = 1 << (watch.length % 6);
            watch.address &= !31;
        }
        _ => {}
    }
    Command { thread: random() as u32, request }
}

fn query(commands: &[Command]) -> Vec<u8> {
    ToolRequest::Query(commands).encode(&header()).unwrap()
}

fn update(commands: &[Command]) -> Vec<u8> {
    ToolRequest::Update(commands).encode(&header()).unwrap()
}

fn simple(request: CommandRequest) -> Command {
    Command { thread: 0, request }
}

fn get_memory(address: u64, length: u32) -> Command<'static> {
    let access = SpeculativeAccess::Permitted;
    simple(CommandRequest::GetMemory(MemoryRange { address, length, access }))
}

fn fault_of(record: &[u8]) -> Fault {
    ToolMessage::decode(record).unwrap_err().fault
}

/// The error codes of the commands of a message. `None` for a command that can be carried out.
fn codes_of(record: &[u8]) -> Vec<Option<CommandCode>> {
    match ToolMessage::decode(record).unwrap().1 {
        ToolMessage::Query(list) | ToolMessage::Update(list) => {
            list.into_iter().map(|command| command.request.err()).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Overwrites bytes of a message.
fn patched(mut record: Vec<u8>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    record[offset..offset + bytes.len()].copy_from_slice(bytes);
    record
}

fn resized(mut record: Vec<u8>, len: usize) -> Vec<u8> {
    record.resize(len, 0);
    patched(record, 20, &(len as u32).to_ne_bytes())
}

proptest! {
    #[test]
    fn every_command_is_decoded_unchanged(seed in any::<u64>()) {
        let mut random = random_from(seed);
        for kind in CommandKind::ALL {
            let commands = [valid_command(*kind, &mut random)];
            let record = match kind.set() {
                CommandSet::Query => query(&commands),
                CommandSet::Update => update(&commands),
            };
            let (read_header, message) = ToolMessage::decode(&record).unwrap();
            prop_assert_eq!(read_header.job, header().job);
            let (ToolMessage::Query(list) | ToolMessage::Update(list)) = message else {
                panic!("{kind:?}");
            };
            let [Command { thread, request }] = commands;
            let number = kind.number();
            let expected = [ReceivedCommand { number, thread, request: Ok(request) }];
            prop_assert_eq!(&list, &expected);
            fuzz(&record);
        }
    }

    #[test]
    fn every_answer_is_decoded_unchanged(seed in any::<u64>()) {
        let mut random = random_from(seed);
        for kinds in CommandKind::ALL.chunks(MAX_COMMANDS) {
            let mut writer = CommandWriter::new();
            let mut expected = Vec::new();
            for kind in kinds {
                let answer = CommandAnswer::sample(*kind, &mut random);
                let thread = random() as u32;
                writer.push_outcome(kind.number(), thread, Ok(&answer));
                let answer = Some(answer);
                expected.push(CommandResult { kind: Some(*kind), thread, return_code: 0, answer });
            }
            let record = encode_results(writer, &header(), CommandSet::Update);
            let (_, message) = ServiceMessage::decode(&record).unwrap();
            prop_assert_eq!(message, ServiceMessage::UpdateAck(expected));
            fuzz(&record);
        }
    }

    #[test]
    fn bodies_are_decoded_unchanged(seed in any::<u64>()) {
        use super::field::Record;
        let mut random = random_from(seed);
        let body = Control::sample_fields(&mut random);
        let record = ToolRequest::Control(body).encode(&header()).unwrap();
        prop_assert_eq!(ToolMessage::decode(&record).unwrap().1, ToolMessage::Control(body));
        let body = Attach::sample_fields(&mut random);
        let record = ToolRequest::Attach(body).encode(&header()).unwrap();
        prop_assert_eq!(ToolMessage::decode(&record).unwrap().1, ToolMessage::Attach(body));
        let body = Detach::sample_fields(&mut random);
        let record = ToolRequest::Detach(body).encode(&header()).unwrap();
        prop_assert_eq!(ToolMessage::decode(&record).unwrap().1, ToolMessage::Detach(body));
        let ranks: Vec<u32> = (0..random() % 300).map(|_| random() as u32).collect();
        let messages = [
            ServiceMessage::ErrorAck,
            ServiceMessage::AttachAck(ranks.clone()),
            ServiceMessage::DetachAck(ranks),
            ServiceMessage::ControlAck(ControlAck::sample_fields(&mut random)),
            ServiceMessage::Notify(Notice::Signal(SignalNotice::sample_fields(&mut random))),
            ServiceMessage::Notify(Notice::Exit(ExitNotice::sample_fields(&mut random))),
            ServiceMessage::Notify(Notice::Control(ControlNotice::sample_fields(&mut random))),
        ];
        for message in messages {
            let record = message.encode(&header());
            prop_assert_eq!(ServiceMessage::decode(&record).unwrap().1, message);
        }
    }

    #[test]
    fn damaged_messages_are_read_or_refused(seed in any::<u64>(), cuts in 0usize..400) {
        let mut random = random_from(seed);
        let commands: Vec<Command> = (0..1 + random() % 16)
            .map(|_| {
                let kind = CommandKind::ALL[random() as usize % CommandKind::ALL.len()];
                valid_command(kind, &mut random)
            })
            .collect();
        let mut record = update(&commands);
        for _ in 0..random() % 12 {
            // Most changes are in the first bytes, which contain numbers, offsets and lengths.
            let limit = if random().is_multiple_of(4) { record.len() } else { DATA_OFFSET + 100 };
            let place = random() as usize % limit.min(record.len());
            record[place] = random() as u8;
        }
        fuzz(&record);
        let cut = record.len().saturating_sub(cuts);
        fuzz(&resized(record, cut.max(40)));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz(&bytes);
        let mut bytes = resized(bytes, 600);
        bytes[..2].copy_from_slice(&[5, 7]);
        let kind = 5000 + u16::from(bytes[50] % 16);
        bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[41] = 0;
        fuzz(&bytes);
    }
}

#[test]
fn a_header_has_its_fields_at_the_listed_offsets() {
    let record =
        ToolRequest::NotifyAck.encode(&Header { return_code: 51, error_code: 7, ..header() });
    let record = record.unwrap();
    let mut expected = vec![5, 7];
    expected.extend(5012u16.to_ne_bytes());
    for word in [3, 0xAABB_CCDD, 51, 7, 40u32] {
        expected.extend(word.to_ne_bytes());
    }
    expected.extend(0x1122_3344_5566_7788u64.to_ne_bytes());
    expected.extend(9u32.to_ne_bytes());
    expected.extend([0; 4]);
    assert_eq!(record, expected);
}

#[test]
fn bodies_have_their_fields_at_the_listed_offsets() {
    let body = Attach { tag: *b"snapshot", priority: 10, select: ProcessSelect::RanksInNode };
    let record = ToolRequest::Attach(body).encode(&header()).unwrap();
    assert_eq!(record.len(), 56);
    assert_eq!(&record[40..], b"snapshot\x0a\0\0\0\x01\0\0\0");

    let body = Control {
        notify_set: 1 << 4,
        signal: 5,
        start_notice: StartNotice::EntryPoint,
        trap_mode: TrapMode::AfterAccess,
        watch_policy: WatchPolicy::NoPropagate,
    };
    let record = ToolRequest::Control(body).encode(&header()).unwrap();
    assert_eq!(
        record[40..],
        [16, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]
    );

    let body = ServiceMessage::ControlAck(ControlAck::new(0x8000_0102, *b"debugger", 90));
    assert_eq!(body.encode(&header())[40..], *b"\x02\x01debugger\x5a\0\x02\x01\0\x80");

    let body = ServiceMessage::DetachAck(vec![3, 0x0102_0304]);
    assert_eq!(body.encode(&header())[40..], [2, 0, 0, 0, 3, 0, 0, 0, 4, 3, 2, 1]);

    let body = ServiceMessage::ShareMemoryAck(SharedLength { length: 0x0102_0304 });
    assert_eq!(body.encode(&header())[40..], [4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(ToolRequest::ShareMemory.encode(&header()).unwrap().len(), 40);

    let notice = ControlNotice {
        tool: 9,
        tag: *b"debugger",
        priority: 90,
        reason: ControlReason::Available,
    };
    let record = ServiceMessage::Notify(Notice::Control(notice)).encode(&header());
    assert_eq!(
        record[40..72],
        *b"\x02\0\0\0\0\0\0\0\x09\0\0\0debugger\x5a\0\0\0\x01\0\0\0\0\0\0\0"
    );

    let notice = SignalNotice {
        signal: 11,
        thread: 0x0203,
        instruction: 0x1111,
        access: 0x2222,
        reason: SignalReason::StepCompleted,
        execute_mode: 0,
        restart: [0, 0x33, 0, 0x44],
    };
    let record = ServiceMessage::Notify(Notice::Signal(notice)).encode(&header());
    let at = |offset: usize| u64::from_ne_bytes(record[offset..offset + 8].try_into().unwrap());
    assert_eq!(record.len(), 112);
    assert_eq!(
        [at(40), at(48), at(56), at(64), at(72), at(88), at(104)],
        [0, 0x203 << 32 | 11, 0x1111, 0x2222, 4, 0x33, 0x44]
    );
}

#[test]
fn commands_follow_sixteen_descriptors_at_the_listed_offsets() {
    let head = SetMemoryHead {
        address: 0x4000,
        access: SpeculativeAccess::Forbidden,
        shared: SharedAccess::Allowed,
    };
    let set = WithBytes { head, bytes: b"abc"[..].into() };
    let commands = [
        Command { thread: 77, request: CommandRequest::SetMemory(set) },
        Command { thread: 78, request: CommandRequest::StepThread(NoData {}) },
    ];
    let record = update(&commands);
    let word = |offset: usize| u32::from_ne_bytes(record[offset..offset + 4].try_into().unwrap());
    assert_eq!(record[40..44], [2, 0, 0, 0]);
    assert_eq!([44, 48, 52, 56].map(word), [207, 304, 31, 0]);
    assert_eq!([60, 64, 68, 72].map(word), [221, 336, 4, 0]);
    assert!(record[76..304].iter().all(|byte| *byte == 0));
    assert_eq!([304, 312, 316, 320, 324, 328].map(word), [77, 0x4000, 0, 3, 1, 1]);
    assert_eq!(record[332..335], *b"abc");
    assert_eq!((word(336), record.len()), (78, 340));
}

#[test]
fn answers_have_their_lists_at_the_listed_offsets() {
    let answers = [
        CommandAnswer::GetThreadList(ThreadList {
            head: ThreadListHead {},
            list: vec![ThreadEntry { tid: 5, flags: COMMUNICATION_THREAD }],
        }),
        CommandAnswer::GetAuxVectors(AuxVector { head: AuxVectorHead {}, list: vec![6] }),
        CommandAnswer::GetFileNames(FileNames { names: vec![b"exe".to_vec()] }),
    ];
    let mut writer = CommandWriter::new();
    for answer in &answers {
        writer.push_outcome(answer.kind().number(), 1, Ok(answer));
    }
    let record = encode_results(writer, &header(), CommandSet::Query);
    let word = |offset: usize| u32::from_ne_bytes(record[offset..offset + 4].try_into().unwrap());
    // Threads: number at 8, entries from 12. Aux vector: number at 8, words from 16.
    assert_eq!([44, 48, 52].map(word), [112, 304, 20]);
    assert_eq!([304, 312, 316, 320].map(word), [1, 1, 5, 1]);
    assert_eq!([60, 64, 68].map(word), [114, 328, 24]);
    assert_eq!([336, 344].map(word), [1, 6]);
    // Names: number at 8, names from 12.
    assert_eq!([76, 80, 84].map(word), [122, 352, 16]);
    assert_eq!((word(360), &record[364..368]), (1, &b"exe\0"[..]));
}

#[test]
fn query_and_update_commands_have_the_listed_numbers() {
    let numbers = |set| -> Vec<u16> {
        CommandKind::ALL.iter().filter(|kind| kind.set() == set).map(|kind| kind.number()).collect()
    };
    assert_eq!(
        numbers(CommandSet::Query),
        // Copy Memory, 127, is not a command of CDTI.
        [101, 103, 105, 107, 109, 111, 113, 115, 117, 121, 123, 125, 127]
    );
    let update = numbers(CommandSet::Update);
    // Suspend Process, 255, is not a command of CDTI.
    assert_eq!(update.len(), 26 + 1);
    let all: BTreeSet<u16> = update.into_iter().collect();
    let listed = (201..=255).step_by(2).filter(|number| *number != 231);
    assert_eq!(all, listed.collect());
    let actions: Vec<u16> =
        CommandKind::ALL.iter().filter(|kind| kind.is_action()).map(|kind| kind.number()).collect();
    assert_eq!(actions, [219, 221, 249, 255]);
}

#[test]
fn codes_have_the_listed_numbers() {
    let messages: Vec<u32> = ReturnCode::ALL.iter().map(|code| code.number()).collect();
    let listed =
        [0, 1, 2, 3, 4, 5, 9, 27, 28, 29, 30, 31, 32, 33, 35, 36, 37, 44, 45, 51, 53, 54, 55, 57];
    assert_eq!(messages, listed);
    let types: Vec<u16> = MessageType::ALL.iter().map(|kind| kind.number()).collect();
    let listed = (5000..=5014).filter(|n| ![5009, 5010].contains(n));
    // ShareMemory and its answer are not messages of CDTI.
    assert_eq!(types, listed.chain([5101, 5102]).collect::<Vec<u16>>());
    let commands: Vec<u32> = CommandCode::ALL.iter().map(|code| code.number()).collect();
    assert_eq!(commands, (0..=16).collect::<Vec<u32>>());
}

#[test]
fn a_malformed_message_gets_the_listed_code() {
    let good = query(&[get_memory(0, 1)]);
    let service = patched(good.clone(), 0, &[4]);
    let old = patched(good.clone(), 1, &[6]);
    let setup = patched(good.clone(), 2, &5009u16.to_ne_bytes());
    let ack = patched(good.clone(), 2, &5006u16.to_ne_bytes());
    let select = patched(
        ToolRequest::Detach(Detach { select: ProcessSelect::RankInHeader })
            .encode(&header())
            .unwrap(),
        40,
        &[2],
    );
    let release =
        || simple(CommandRequest::ReleaseControl(ReleaseOption { notify: ReleaseNotify::No }));
    let cases: Vec<(Vec<u8>, ReturnCode, bool)> = vec![
        (vec![5; 39], ReturnCode::RequestIncomplete, false),
        (resized(good.clone(), 65_537), ReturnCode::RequestFailed, true),
        (service, ReturnCode::WrongService, false),
        (patched(good.clone(), 1, &[0]), ReturnCode::VersionMismatch, false),
        (old, ReturnCode::VersionMismatch, false),
        (patched(good.clone(), 20, &[1]), ReturnCode::RequestIncomplete, false),
        (setup, ReturnCode::UnsupportedType, false),
        (ack, ReturnCode::UnsupportedType, false),
        (resized(good.clone(), 299), ReturnCode::RequestIncomplete, true),
        (select, ReturnCode::RequestFailed, true),
        (patched(good.clone(), 40, &[0]), ReturnCode::RequestIncomplete, true),
        (patched(good.clone(), 40, &[17]), ReturnCode::ToolNumberOfCmdsExceeded, true),
        (update(&[release(), release()]), ReturnCode::ToolConflictingCmds, true),
    ];
    for (number, (record, code, is_typed)) in cases.into_iter().enumerate() {
        let refusal = ToolMessage::decode(&record).unwrap_err();
        assert!(!refusal.to_string().is_empty());
        let answer = refusal.answer();
        let (read, message) = ServiceMessage::decode(&answer).unwrap();
        assert_eq!(read.code(), Some(code), "case {number}: {refusal}");
        assert_eq!(message != ServiceMessage::ErrorAck, is_typed, "case {number}: {message:?}");
        if record.len() >= 40 {
            assert_eq!((read.sequence, read.job), (header().sequence, header().job));
        }
    }
}

#[test]
fn data_of_commands_follow_the_list_and_are_aligned_separate_and_in_the_message() {
    let good = query(&[get_memory(0, 1), get_memory(8, 1)]);
    assert_eq!(codes_of(&good), [None, None]);
    let moved = |command: usize, offset: u32, length: u32| {
        let place = DESCRIPTORS_OFFSET + command * 16;
        let record = patched(good.clone(), place + 4, &offset.to_ne_bytes());
        patched(record, place + 8, &length.to_ne_bytes())
    };
    let end = good.len() as u32;
    for (offset, length) in [
        (0, 24),
        (40, 24),
        (296, 24),
        (300, 24),
        (306, 20),
        (312, end),
        (end, 8),
        (304, u32::MAX),
        (u32::MAX - 7, 24),
        (u32::MAX, u32::MAX),
    ] {
        let fault = fault_of(&moved(0, offset, length));
        assert_eq!(fault, Fault::DataRange { command: 1, offset, length });
        assert_eq!(fault.codes(), (ReturnCode::RequestFailed, errno::EBADMSG));
    }
    assert_eq!(fault_of(&moved(1, 304, 24)), Fault::DataOverlap { first: 1, second: 2 });
    // The data of the second command start at 328.
    assert_eq!(codes_of(&moved(0, 304, 24)), [None, None]);
    assert_eq!(fault_of(&moved(0, 304, 25)), Fault::DataOverlap { first: 1, second: 2 });
}

#[test]
fn a_malformed_command_gets_a_code_and_other_commands_are_executed() {
    let good = query(&[get_memory(0, 1), get_memory(8, 1)]);
    let number = |number: u16| codes_of(&patched(good.clone(), 44, &number.to_ne_bytes()));
    let invalid = [Some(CommandCode::CommandInvalid), None];
    // Unknown, not supported (ruling O8), an answer, and a command of the other message.
    for unknown in [0, 100, 119, 110, 207, u16::MAX] {
        assert_eq!(number(unknown), invalid, "{unknown}");
    }
    let step = patched(update(&[simple(CommandRequest::StepThread(NoData {}))]), 44, &[109]);
    assert_eq!(codes_of(&step), [Some(CommandCode::CommandInvalid)]);
    for short in [0, 3, 23] {
        let record = patched(good.clone(), 52, &[short]);
        assert_eq!(codes_of(&record), [Some(CommandCode::LengthError), None]);
    }
    let access = patched(good.clone(), 304 + 20, &[2]);
    assert_eq!(codes_of(&access), [Some(CommandCode::ParameterError), None]);
}

#[test]
fn parameters_are_checked_before_any_action() {
    use CommandCode::{
        AddressError, FileNotFound, HardwareUnavailable, LengthError, ParameterError,
    };
    let code = |request: CommandRequest| {
        let kind = request.kind();
        let list = [simple(request)];
        let record = if kind.set() == CommandSet::Query { query(&list) } else { update(&list) };
        codes_of(&record)[0]
    };
    assert_eq!(codes_of(&query(&[get_memory(0, 0)])), [Some(LengthError)]);
    assert_eq!(codes_of(&query(&[get_memory(0, MAX_MEMORY_LEN)])), [None]);
    assert_eq!(codes_of(&query(&[get_memory(0, MAX_MEMORY_LEN + 1)])), [Some(LengthError)]);

    let signal = |signal| SignalNumber { signal };
    assert_eq!(code(CommandRequest::SendSignal(signal(0))), Some(ParameterError));
    assert_eq!(code(CommandRequest::SendSignal(signal(64))), None);
    assert_eq!(code(CommandRequest::SendSignalToProcess(signal(65))), Some(ParameterError));
    assert_eq!(code(CommandRequest::SetContinuationSignal(signal(0))), None);
    assert_eq!(code(CommandRequest::SetContinuationSignal(signal(65))), Some(ParameterError));

    let watch = |address, length| {
        code(CommandRequest::SetWatchpoint(NewWatchpoint {
            address,
            length,
            kind: WatchType::Write,
        }))
    };
    assert_eq!(watch(0x1000, 32), None);
    assert_eq!(watch(0x1000, 3), Some(LengthError));
    assert_eq!(watch(0x1000, 0), Some(LengthError));
    assert_eq!(watch(0x1004, 8), Some(AddressError));
    assert_eq!(watch(0x1000, 64), Some(HardwareUnavailable));

    let preferences = Preferences {
        fast_breakpoints: Preference::Enable,
        fast_watchpoints: Preference::NoChange,
        trap_mode: TrapMode::OnAccess,
    };
    assert_eq!(code(CommandRequest::SetPreferences(preferences)), Some(ParameterError));

    for (path, expected) in [
        ("tools/protocol", None),
        ("a/..b/c", None),
        ("/etc/passwd", Some(FileNotFound)),
        ("tools/../../x", Some(FileNotFound)),
        ("..", Some(FileNotFound)),
        ("", Some(FileNotFound)),
    ] {
        let path = JobFilePath::new(path.as_bytes()).unwrap();
        assert_eq!(code(CommandRequest::GetFileStat(FileStatPath { path })), expected, "{path:?}");
    }
    let path = JobFilePath::new(&[b'x'; 127]).unwrap();
    let record = query(&[simple(CommandRequest::GetFileStat(FileStatPath { path }))]);
    let endless = patched(record, 304 + 8 + 127, b"x");
    assert_eq!(codes_of(&endless), [Some(ParameterError)]);
    assert_eq!(JobFilePath::new(&[b'x'; 128]), None);
}

#[test]
fn registers_that_x86_64_lacks_are_parameter_errors() {
    let set = |request: CommandRequest, register: u32| {
        let record = update(&[simple(request)]);
        codes_of(&patched(record, 304 + 8, &register.to_ne_bytes()))[0]
    };
    let general = || {
        CommandRequest::SetGeneralRegister(SetGeneral { selection: GeneralRegister::Rax, value: 1 })
    };
    let debug =
        || CommandRequest::SetDebugRegister(SetDebug { selection: DebugRegister::Dr0, value: 1 });
    let special = || {
        CommandRequest::SetSpecialRegister(SetSpecial { selection: SpecialRegister::Rip, value: 1 })
    };
    let float = || {
        CommandRequest::SetFloatRegister(SetFloat {
            selection: FloatRegister::X87(0),
            value: [0; 64],
        })
    };
    let wrong = Some(CommandCode::ParameterError);
    assert_eq!([15, 16, 31].map(|number| set(general(), number)), [None, wrong, wrong]);
    assert_eq!(
        [3, 4, 5, 6, 7, 8].map(|number| set(debug(), number)),
        [None, wrong, wrong, None, None, wrong]
    );
    assert_eq!([14, 15].map(|number| set(special(), number)), [None, wrong]);
    assert_eq!(
        [0x7, 0x8, 0x11F, 0x120, 0x31F, 0x407, 0x408, 0x500].map(|number| set(float(), number)),
        [None, wrong, None, wrong, None, None, wrong, wrong]
    );
}

#[test]
fn an_action_that_is_not_the_last_command_stops_all_from_it_on() {
    let hold = || simple(CommandRequest::HoldThread(NoData {}));
    let go_on = || simple(CommandRequest::ContinueProcess(NoData {}));
    let conflict = Some(CommandCode::Conflict);
    assert_eq!(codes_of(&update(&[hold(), go_on()])), [None, None]);
    assert_eq!(
        codes_of(&update(&[hold(), go_on(), hold(), hold()])),
        [None, conflict, conflict, conflict]
    );
    let several = update(&[go_on(), hold(), go_on()]);
    assert_eq!(fault_of(&several), Fault::SeveralActions { actions: 2 });
    // Commands that are not actions may occur twice.
    assert_eq!(codes_of(&update(&[hold(), hold()])), [None, None]);
}

#[test]
fn a_later_version_may_be_longer() {
    let body = Attach { tag: [1; 8], priority: 3, select: ProcessSelect::RankInHeader };
    let record = ToolRequest::Attach(body).encode(&header()).unwrap();
    let later = patched(resized(record, 200), 1, &[VERSION + 1]);
    assert_eq!(ToolMessage::decode(&later).unwrap().1, ToolMessage::Attach(body));

    // The data of a command may also be longer.
    let record = resized(query(&[get_memory(5, 1)]), 400);
    let later = patched(patched(record, 1, &[255]), 52, &96u32.to_ne_bytes());
    assert_eq!(codes_of(&later), [None]);

    let message = ServiceMessage::AttachAck(vec![1, 2]);
    let later = patched(resized(message.encode(&header()), 500), 1, &[VERSION + 1]);
    assert_eq!(ServiceMessage::decode(&later).unwrap().1, message);
}

#[test]
fn data_that_exceed_an_acknowledgement_are_an_allocation_error() {
    let mut writer = CommandWriter::new();
    let range = |length| MemoryRange { address: 1, length, access: SpeculativeAccess::Permitted };
    let fill = |bytes: &mut [u8]| {
        bytes.fill(9);
        Ok(())
    };
    writer.push_memory(7, &range(8), |_| Err(CommandCode::AddressError));
    writer.push_memory(7, &range(MAX_MEMORY_LEN), fill);
    writer.push_memory(7, &range(MAX_MEMORY_LEN), fill);
    writer.push_memory(7, &range(16), fill);
    let record = encode_results(writer, &header(), CommandSet::Query);
    assert!(record.len() <= MAX_MESSAGE_LEN);
    let ServiceMessage::QueryAck(results) = ServiceMessage::decode(&record).unwrap().1 else {
        panic!("a QueryAck");
    };
    let codes: Vec<u32> = results.iter().map(|result| result.return_code).collect();
    assert_eq!(codes, [7, 0, 4, 0]);
    let lens: Vec<usize> = results
        .iter()
        .map(|result| match &result.answer {
            Some(CommandAnswer::GetMemory(memory)) => memory.bytes.len(),
            _ => 0,
        })
        .collect();
    assert_eq!(lens, [0, 65_024, 0, 16]);
    assert_eq!(results[1].thread, 7);
}

#[test]
fn data_of_an_acknowledgement_are_found_by_their_offset() {
    let mut writer = CommandWriter::new();
    for thread in [1, 2] {
        let answer = CommandAnswer::HoldThread(NoData {});
        writer.push_outcome(CommandKind::HoldThread.number(), thread, Ok(&answer));
    }
    let record = encode_results(writer, &header(), CommandSet::Update);
    let (first, second) = (record[48..52].to_vec(), record[64..68].to_vec());
    let swapped = patched(patched(record, 48, &second), 64, &first);
    let ServiceMessage::UpdateAck(results) = ServiceMessage::decode(&swapped).unwrap().1 else {
        panic!("an UpdateAck");
    };
    assert_eq!([results[0].thread, results[1].thread], [2, 1]);
}

#[test]
fn a_tool_cannot_write_more_than_a_message_holds() {
    let commands = vec![get_memory(0, 1); 17];
    assert_eq!(ToolRequest::Query(&commands).encode(&header()), Err(MessageFull));
    assert!(ToolRequest::Query(&commands[1..]).encode(&header()).is_ok());
    let head = SetMemoryHead {
        address: 0,
        access: SpeculativeAccess::Permitted,
        shared: SharedAccess::Refused,
    };
    let set =
        |len| simple(CommandRequest::SetMemory(WithBytes { head, bytes: vec![0; len].into() }));
    assert!(ToolRequest::Update(&[set(65_024)]).encode(&header()).is_ok());
    assert_eq!(ToolRequest::Update(&[set(65_024), set(400)]).encode(&header()), Err(MessageFull));
}

#[test]
fn the_largest_number_of_ranks_fits() {
    let ranks: Vec<u32> = (0..MAX_RANKS as u32 + 5).collect();
    let record = ServiceMessage::AttachAck(ranks.clone()).encode(&header());
    assert!(record.len() <= MAX_MESSAGE_LEN);
    let read = ServiceMessage::decode(&record).unwrap().1;
    assert_eq!(read, ServiceMessage::AttachAck(ranks[..MAX_RANKS].to_vec()));
}

#[test]
fn each_record_has_one_layout() {
    let names: BTreeSet<&str> = layouts().iter().map(|layout| layout.name).collect();
    assert_eq!(names.len(), layouts().len());
}

#[test]
fn a_refused_attach_has_its_reason_after_an_empty_list_of_ranks() {
    let refused = Header { return_code: ReturnCode::RequestFailed.number(), ..header() };
    let reason = "process 7 is traced by process 8 (gdb)";
    let record = ServiceMessage::AttachRefused(reason.to_owned()).encode(&refused);
    // A tool that only decodes ranks finds none.
    assert_eq!((&record[40..44], &record[44..]), (&[0; 4][..], reason.as_bytes()));
    let (read, message) = ServiceMessage::decode(&record).unwrap();
    assert_eq!(read.length as usize, record.len());
    assert_eq!(message, ServiceMessage::AttachRefused(reason.to_owned()));
    let long = "\u{e9}".repeat(MAX_REASON_LEN);
    let record = ServiceMessage::AttachRefused(long).encode(&refused);
    let expected = "\u{e9}".repeat(MAX_REASON_LEN / 2);
    let (_, message) = ServiceMessage::decode(&record).unwrap();
    assert_eq!(message, ServiceMessage::AttachRefused(expected));
    let silent = ServiceMessage::AttachAck(Vec::new());
    assert_eq!(ServiceMessage::decode(&silent.encode(&refused)).unwrap().1, silent);
}
