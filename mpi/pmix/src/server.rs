//! The server of PMIx for the ranks of this host: libpmix does the work, and calls back for what
//! concerns other hosts or the shepherd.
//!
//! libpmix calls back from a thread of its own. Whoever answers it does so without holding a lock
//! that a call back could want.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use score_proto::frame;
use score_proto::message::OsBytes;
use score_proto::pmix::{PmixNamespace, PmixReport, PmixSetup};

use crate::abi::{
    ERR_BAD_PARAM, ERR_NOT_FOUND, ERR_NOT_SUPPORTED, GROUP_CONSTRUCT, Info, InfoCallback,
    MAX_NAMESPACE_LEN, ModexCallback, OPERATION_SUCCEEDED, OpCallback, Proc, RANK_WILDCARD,
    SUCCESS, ServerModule, Status, TYPE_BYTE_OBJECT,
};
use crate::facts;
use crate::info_list::{Facts, InfoArray, Value, info_array};
use crate::library::{Functions, c_text};
use crate::namespace::{GroupIds, Namespace, Participants};

/// A call of libpmix that waits for ranks of other hosts.
#[derive(Debug)]
struct Caller {
    callback: Callback,
    /// What the callback wants: a pointer of libpmix.
    argument: *mut c_void,
}

/// How a call is answered.
#[derive(Debug)]
enum Callback {
    /// A fence: with what its ranks have put.
    Fence(ModexCallback),
    /// A group: with the same, and with facts.
    Group(InfoCallback, GroupFacts),
}

/// What the ranks of a group learn about it.
#[derive(Debug)]
struct GroupFacts {
    context_id: usize,
    members: Vec<Proc>,
}

// SAFETY: libpmix accepts answers from any thread, and the pointer is only given back to it.
unsafe impl Send for Caller {}

/// See the [module](self).
#[derive(Debug)]
pub struct Server {
    functions: &'static Functions,
    shepherd: Mutex<UnixStream>,
    namespaces: Mutex<HashMap<String, Namespace<Caller>>>,
    groups: Mutex<GroupIds>,
}

/// libpmix has one server in a process.
static SERVER: OnceLock<Server> = OnceLock::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts the server, and reports the variables of the ranks.
    ///
    /// # Errors
    /// One line.
    pub fn start(
        functions: &'static Functions,
        shepherd: UnixStream,
        setup: &PmixSetup,
    ) -> Result<&'static Self, String> {
        let namespaces = setup.namespaces.iter().map(|namespace| {
            let state = Namespace::new(namespace.element, setup.rank_count(), setup.local_ranks());
            (namespace.name.clone(), state)
        });
        let namespaces = Mutex::new(namespaces.collect());
        let (shepherd, groups) = (Mutex::new(shepherd), Mutex::default());
        let server = Self { functions, shepherd, namespaces, groups };
        let server = SERVER.get_or_init(|| server);
        server.initialize(setup)?;
        setup.namespaces.iter().try_for_each(|namespace| server.register(setup, namespace))?;
        Ok(server)
    }

    fn initialize(&self, setup: &PmixSetup) -> Result<(), String> {
        let module = Box::leak(Box::new(ServerModule {
            client_connected: None,
            client_finalized: Some(client_finalized),
            abort: Some(abort),
            fence_nb: Some(fence),
            direct_modex: Some(direct_modex),
            not_served: [None; 20],
            group: Some(group),
            fabric: None,
            client_connected2: Some(client_connected),
            later: [None; 32],
        }));
        let mut infos = info_array(self.functions, &facts::of_server(setup))?;
        let (array, count) = infos.elements();
        // SAFETY: the module lives as long as the process, and the array as long as the call.
        let status = unsafe { (self.functions.server_init)(module, array, count) };
        self.functions.check("PMIx_server_init", status)
    }

    /// Registers a namespace with its ranks of this host, and reports the variables of these.
    fn register(&self, setup: &PmixSetup, namespace: &PmixNamespace) -> Result<(), String> {
        let mut infos = info_array(self.functions, &facts::of_namespace(setup, namespace))?;
        let (array, count) = infos.elements();
        let local_ranks = setup.local_ranks();
        let name = namespace_bytes(&namespace.name)?;
        let local_count = c_int::try_from(local_ranks.len()).unwrap_or(c_int::MAX);
        self.wait_for("PMIx_server_register_nspace", |callback, argument| {
            // SAFETY: a name of that size, an array that lives as long as the process, and a
            // callback with its argument, which lives until the callback has been called.
            unsafe {
                (self.functions.register_namespace)(
                    name.as_ptr(),
                    local_count,
                    array,
                    count,
                    Some(callback),
                    argument,
                )
            }
        })?;
        // SAFETY: these functions have no arguments and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        for rank in local_ranks {
            let process = Proc { nspace: name, rank };
            self.wait_for("PMIx_server_register_client", |callback, argument| {
                // SAFETY: a process, which is copied, and a callback as above.
                unsafe {
                    (self.functions.register_client)(
                        &process,
                        uid,
                        gid,
                        null_mut(),
                        Some(callback),
                        argument,
                    )
                }
            })?;
            let environment = self.environment(&process)?;
            self.report(&PmixReport::Ready { element: namespace.element, rank, environment });
        }
        Ok(())
    }

    /// The variables by which a rank finds this server.
    fn environment(&self, process: &Proc) -> Result<Vec<OsBytes>, String> {
        let mut variables: *mut *mut c_char = null_mut();
        // SAFETY: a process, and an array of strings that the function makes and extends.
        let status = unsafe { (self.functions.setup_fork)(process, &mut variables) };
        self.functions.check("PMIx_server_setup_fork", status)?;
        let mut environment = Vec::new();
        let mut next = variables;
        // SAFETY: an array of strings that ends with a null pointer. It is not freed: there is one
        // for each rank.
        while !next.is_null() && !unsafe { *next }.is_null() {
            // SAFETY: as above.
            let variable = unsafe { CStr::from_ptr(*next) };
            environment.push(OsBytes(variable.to_bytes().to_vec()));
            // SAFETY: not the end of the array yet.
            next = unsafe { next.add(1) };
        }
        Ok(environment)
    }

    /// Calls a function of libpmix that answers by a callback, and waits for its answer.
    fn wait_for(
        &self,
        name: &str,
        call: impl FnOnce(OpCallback, *mut c_void) -> Status,
    ) -> Result<(), String> {
        let (sender, receiver) = channel::<Status>();
        let argument = Box::into_raw(Box::new(sender));
        let status = call(on_operation_done, argument.cast());
        if status != SUCCESS {
            // SAFETY: the callback is not called, so that nothing else has the pointer.
            drop(unsafe { Box::from_raw(argument) });
            return self.functions.check(name, status);
        }
        let status = receiver.recv().map_err(|_| format!("{name}: no answer"))?;
        self.functions.check(name, status)
    }

    /// Reports to the shepherd. A process without its shepherd is useless and ends.
    fn report(&self, report: &PmixReport) {
        let mut bytes = Vec::new();
        if frame::encode(report, &mut bytes).is_err() {
            // The shepherd refuses shorter ones than the longest that fit, too.
            let reason = format!(
                "the processes of a program on one host have put more than {} bytes for others \
                 into PMIx",
                frame::MAX_BODY
            );
            // A line always fits.
            let _ = frame::encode(&PmixReport::Unavailable(reason), &mut bytes);
        }
        if lock(&self.shepherd).write_all(&bytes).is_err() {
            std::process::exit(1);
        }
    }

    /// Hosts have put these entries before a fence.
    pub fn add_entries(&self, element: u32, entries: &[u8]) {
        self.with_element(element, |namespace| namespace.add_entries(entries));
    }

    /// All ranks are in the fence.
    pub fn end_fence(&self, element: u32) {
        let ended = self.with_element(element, Namespace::end_fence).flatten();
        let Some((caller, entries, next_entries)) = ended else { return };
        caller.answer(self.functions, Ok(entries));
        if let Some(entries) = next_entries {
            self.report(&PmixReport::InFence { element, entries });
        }
    }

    /// Begins an operation of these processes, and answers its caller when all are in it.
    fn gather(&self, processes: &[Proc], caller: Caller, entries: Vec<u8>) {
        let rank = |process: &Proc| (process.rank != RANK_WILDCARD).then_some(process.rank);
        let mut namespaces = lock(&self.namespaces);
        let namespace = processes[0].name().and_then(|name| namespaces.get_mut(&name));
        // Programs of a pipeline are parallel processes of their own.
        let is_one = processes.iter().all(|process| process.nspace == processes[0].nspace);
        let Some(namespace) = namespace.filter(|_| is_one) else {
            drop(namespaces);
            return caller.answer(self.functions, Err(ERR_NOT_SUPPORTED));
        };
        match namespace.participants(processes.iter().map(rank)) {
            Participants::All => {
                let element = namespace.element;
                let entries = namespace.begin_fence(caller, entries);
                drop(namespaces);
                if let Some(entries) = entries {
                    self.report(&PmixReport::InFence { element, entries });
                }
            }
            Participants::OfThisHost => {
                drop(namespaces);
                caller.answer(self.functions, Ok(entries));
            }
            Participants::OfSeveralHosts => {
                drop(namespaces);
                caller.answer(self.functions, Err(ERR_NOT_SUPPORTED));
            }
        }
    }

    /// The context id of a group that is constructed: another one for each group, and the same one
    /// on all hosts of its ranks.
    fn context_id(&self, id: &str, processes: &[Proc]) -> usize {
        let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
        ranks.sort_unstable();
        lock(&self.groups).context_id(id, &ranks)
    }

    fn with_element<R>(
        &self,
        element: u32,
        act: impl FnOnce(&mut Namespace<Caller>) -> R,
    ) -> Option<R> {
        let mut namespaces = lock(&self.namespaces);
        namespaces.values_mut().find(|namespace| namespace.element == element).map(act)
    }

    /// The parallel process and the rank of a process, if it is one of these.
    fn rank_of(&self, process: *const Proc) -> Option<(u32, u32)> {
        // SAFETY: libpmix passes a process, or a null pointer.
        let process = unsafe { process.as_ref() }?;
        let namespaces = lock(&self.namespaces);
        Some((namespaces.get(&process.name()?)?.element, process.rank))
    }
}

impl Caller {
    fn answer(self, functions: &'static Functions, entries: Result<Vec<u8>, Status>) {
        match (self.callback, entries) {
            (Callback::Fence(callback), entries) => {
                let status = entries.as_ref().err().copied().unwrap_or(SUCCESS);
                answer_fence(callback, self.argument, status, entries.unwrap_or_default());
            }
            (Callback::Group(callback, facts), Ok(entries)) => {
                let mut list = vec![
                    ("pmix.grp.ctxid", Value::Size(facts.context_id)),
                    ("pmix.grp.mbrs", Value::Processes(facts.members)),
                ];
                if !entries.is_empty() {
                    list.push((GROUP_DATA_KEY, Value::Bytes(entries)));
                }
                answer_group(functions, callback, self.argument, &list);
            }
            (Callback::Group(callback, _), Err(status)) => {
                // SAFETY: the callback of a call that waits, with its argument.
                unsafe { callback(status, null_mut(), 0, self.argument, None, null_mut()) };
            }
        }
    }
}

/// The key of what the ranks of a group have put.
const GROUP_DATA_KEY: &str = "pmix.grp.endpt";

/// An answer about a group, until libpmix has read it.
struct GroupAnswer {
    functions: &'static Functions,
    array: InfoArray,
}

fn answer_group(
    functions: &'static Functions,
    callback: InfoCallback,
    argument: *mut c_void,
    facts: &Facts,
) {
    let (status, mut array) = match info_array(functions, facts) {
        Ok(array) => (SUCCESS, array),
        Err(_) => (ERR_BAD_PARAM, InfoArray::empty()),
    };
    let (start, count) = array.elements();
    let answer = Box::into_raw(Box::new(GroupAnswer { functions, array }));
    // SAFETY: the callback of a call that waits, with its argument; an array that lives until
    // libpmix calls `free_group_answer`.
    unsafe { callback(status, start, count, argument, Some(free_group_answer), answer.cast()) };
}

extern "C" fn free_group_answer(answer: *mut c_void) {
    // SAFETY: made by `answer_group`. libpmix calls this once.
    let answer = unsafe { Box::from_raw(answer.cast::<GroupAnswer>()) };
    answer.array.free(answer.functions);
}

/// `entries` are freed when libpmix has read them.
fn answer_fence(callback: ModexCallback, argument: *mut c_void, status: Status, entries: Vec<u8>) {
    let entries = Box::into_raw(Box::new(entries));
    // SAFETY: made by the line above, and freed by `free_entries`.
    let (bytes, len) = unsafe { ((*entries).as_ptr(), (*entries).len()) };
    // SAFETY: the callback and its argument are those of a call that waits, and is answered
    // once, because it has been taken out of its namespace.
    unsafe {
        callback(status, bytes.cast(), len, argument, Some(free_entries), entries.cast());
    }
}

impl Proc {
    fn name(&self) -> Option<String> {
        Some(CStr::from_bytes_until_nul(&self.nspace).ok()?.to_str().ok()?.to_owned())
    }
}

/// A name as libpmix wants it.
fn namespace_bytes(name: &str) -> Result<[u8; MAX_NAMESPACE_LEN + 1], String> {
    let mut bytes = [0; MAX_NAMESPACE_LEN + 1];
    match name.len() <= MAX_NAMESPACE_LEN && !name.contains('\0') {
        true => bytes[..name.len()].copy_from_slice(name.as_bytes()),
        false => return Err(format!("'{name}' is no name of a namespace")),
    }
    Ok(bytes)
}

extern "C" fn free_entries(entries: *mut c_void) {
    // SAFETY: made by `answer_fence`. libpmix calls this once.
    drop(unsafe { Box::from_raw(entries.cast::<Vec<u8>>()) });
}

extern "C" fn on_operation_done(status: Status, argument: *mut c_void) {
    // SAFETY: made by `Server::wait_for`. libpmix calls this once.
    let sender = unsafe { Box::from_raw(argument.cast::<Sender<Status>>()) };
    // Nobody waits any more if this fails.
    let _ = sender.send(status);
}

/// Characters of the text of MPI_Abort that are passed on.
const MAX_ABORT_TEXT_LEN: usize = 1000;

/// Reports what a process has done, by its parallel process and rank.
fn report_of(process: *const Proc, report: impl FnOnce(u32, u32) -> PmixReport) -> Status {
    let Some(server) = SERVER.get() else { return ERR_NOT_SUPPORTED };
    let Some((element, rank)) = server.rank_of(process) else { return ERR_BAD_PARAM };
    server.report(&report(element, rank));
    OPERATION_SUCCEEDED
}

/// The processes that take part in a call, at least one.
///
/// # Safety
/// Null, or an array of so many processes that libpmix keeps during the call.
unsafe fn participants<'a>(processes: *const Proc, count: usize) -> Option<&'a [Proc]> {
    if processes.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as the caller has promised.
    Some(unsafe { &*slice_from_raw_parts(processes, count) })
}

extern "C" fn client_connected(
    process: *const Proc,
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    report_of(process, |element, rank| PmixReport::Connected { element, rank })
}

extern "C" fn client_finalized(
    process: *const Proc,
    _: *mut c_void,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    // The client goes on after this function: the shepherd has the report before its exit.
    report_of(process, |element, rank| PmixReport::Finalized { element, rank })
}

extern "C" fn abort(
    process: *const Proc,
    _: *mut c_void,
    code: c_int,
    text: *const c_char,
    _: *mut Proc,
    _: usize,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    // SAFETY: a string or a null pointer.
    let text = unsafe { c_text(text) }.chars().take(MAX_ABORT_TEXT_LEN).collect();
    report_of(process, |element, rank| PmixReport::Aborted { element, rank, code, text })
}

extern "C" fn fence(
    processes: *const Proc,
    process_count: usize,
    _: *const c_void,
    _: usize,
    data: *mut c_char,
    len: usize,
    callback: Option<ModexCallback>,
    argument: *mut c_void,
) -> Status {
    let entries = take_bytes(data, len);
    // SAFETY: as the header says.
    let processes = unsafe { participants(processes, process_count) };
    let (Some(server), Some(callback), Some(processes)) = (SERVER.get(), callback, processes)
    else {
        return ERR_BAD_PARAM;
    };
    let caller = Caller { callback: Callback::Fence(callback), argument };
    server.gather(processes, caller, entries);
    SUCCESS
}

extern "C" fn group(
    operation: c_int,
    id: *const c_char,
    processes: *const Proc,
    process_count: usize,
    directives: *const Info,
    directive_count: usize,
    callback: Option<InfoCallback>,
    argument: *mut c_void,
) -> Status {
    // SAFETY: as the header says.
    let processes = unsafe { participants(processes, process_count) };
    let (Some(server), Some(callback), Some(processes)) = (SERVER.get(), callback, processes)
    else {
        return ERR_BAD_PARAM;
    };
    // SAFETY: a string or a null pointer.
    let id = unsafe { c_text(id) };
    if operation != GROUP_CONSTRUCT {
        // Nothing is kept of a group. libpmix 5 hangs if it is answered by its callback.
        return OPERATION_SUCCEEDED;
    }
    let context_id = server.context_id(&id, processes);
    let entries = group_data(directives, directive_count);
    let facts = GroupFacts { context_id, members: processes.to_vec() };
    let caller = Caller { callback: Callback::Group(callback, facts), argument };
    // Also a refusal goes through the callback: if this call fails, libpmix 5 answers only one of
    // several ranks.
    server.gather(processes, caller, entries);
    SUCCESS
}

/// What the ranks of this host have put for a group.
fn group_data(directives: *const Info, count: usize) -> Vec<u8> {
    if directives.is_null() {
        return Vec::new();
    }
    // SAFETY: an array of so many elements.
    let directives = unsafe { &*slice_from_raw_parts(directives, count) };
    let is_data = |info: &&Info| {
        let key = CStr::from_bytes_until_nul(&info.key);
        key.is_ok_and(|key| key.to_bytes() == GROUP_DATA_KEY.as_bytes())
            && info.value.kind == TYPE_BYTE_OBJECT
            && !info.value.bytes.bytes.is_null()
    };
    let objects = directives.iter().filter(is_data).map(|info| info.value.bytes);
    // SAFETY: a byte object of libpmix.
    objects
        .flat_map(|object| unsafe { &*slice_from_raw_parts(object.bytes, object.size) })
        .copied()
        .collect()
}

/// Copies what libpmix hands over, and frees it.
fn take_bytes(data: *mut c_char, len: usize) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: an array of so many bytes, which is the server's from now on.
    let bytes = unsafe { &*slice_from_raw_parts(data.cast_const().cast::<u8>(), len) }.to_vec();
    // SAFETY: allocated by malloc(3), and not used any more.
    unsafe { libc::free(data.cast()) };
    bytes
}

/// Each fence collects what all ranks have put, so that what is not there does not exist.
extern "C" fn direct_modex(
    _: *const Proc,
    _: *const c_void,
    _: usize,
    _: Option<ModexCallback>,
    _: *mut c_void,
) -> Status {
    ERR_NOT_FOUND
}
