//! The server of PMIx for the ranks of this host: libpmix does the work, and calls back for what
//! concerns other hosts or the shepherd.
//!
//! libpmix calls back from a thread of its own. Whoever answers it does so without holding a lock
//! that a call back could want.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use score_proto::frame;
use score_proto::job_control::SubsetFence;
use score_proto::message::OsBytes;
use score_proto::pmix::{PmixNamespace, PmixReport, PmixSetup};

use crate::abi::{
    ERR_BAD_PARAM, ERR_NOT_SUPPORTED, MAX_NAMESPACE_LEN, OpCallback, Proc, RANK_WILDCARD, SUCCESS,
    Status,
};
use crate::callbacks;
use crate::callers::Caller;
use crate::deadlines::Deadlines;
use crate::direct_modex::ModexQuestions;
use crate::facts;
use crate::info_list::info_array;
use crate::library::Functions;
use crate::namespace::{GroupIds, Namespace, Participants};

/// See the [module](self).
#[derive(Debug)]
pub struct Server {
    pub(crate) functions: &'static Functions,
    shepherd: Mutex<UnixStream>,
    namespaces: Mutex<HashMap<String, Namespace<Caller>>>,
    groups: Mutex<GroupIds>,
    pub(crate) direct_modex: Mutex<ModexQuestions>,
    pub(crate) deadlines: Deadlines,
}

/// The tag of fences.
pub const FENCE_TAG: u64 = 0;

/// libpmix has one server in a process.
pub static SERVER: OnceLock<Server> = OnceLock::new();

/// Locks a mutex. No panic leaves what it protects half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let (direct_modex, deadlines) = (Mutex::default(), Deadlines::default());
        let server = Self { functions, shepherd, namespaces, groups, direct_modex, deadlines };
        let server = SERVER.get_or_init(|| server);
        server.initialize(setup)?;
        setup.namespaces.iter().try_for_each(|namespace| server.register(setup, namespace))?;
        Ok(server)
    }

    fn initialize(&self, setup: &PmixSetup) -> Result<(), String> {
        let module = Box::leak(Box::new(callbacks::MODULE));
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
    pub fn report(&self, report: &PmixReport) {
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
    pub fn add_entries(&self, element: u32, fence: Option<SubsetFence>, entries: &[u8]) {
        self.with_element(element, |namespace| namespace.add_entries(fence, entries));
    }

    /// All ranks that take part are in the fence.
    pub fn end_fence(&self, element: u32, fence: Option<SubsetFence>) {
        let ended = self.with_element(element, |namespace| namespace.end_fence(&fence)).flatten();
        let Some((caller, entries, next_entries)) = ended else { return };
        caller.answer(self.functions, Ok(entries));
        if let Some(entries) = next_entries {
            self.report(&PmixReport::InFence { element, fence, entries });
        }
    }

    /// Begins an operation of these processes, and answers its caller when all are in it. `tag`:
    /// tells operations of the same processes apart, which may be under way at once.
    pub fn gather(&self, processes: &[Proc], tag: u64, caller: Caller, entries: Vec<u8>) {
        let rank = |process: &Proc| (process.rank != RANK_WILDCARD).then_some(process.rank);
        let mut namespaces = lock(&self.namespaces);
        let namespace = processes[0].name().and_then(|name| namespaces.get_mut(&name));
        // Programs of a pipeline are parallel processes of their own.
        let is_one = processes.iter().all(|process| process.nspace == processes[0].nspace);
        let Some(namespace) = namespace.filter(|_| is_one) else {
            drop(namespaces);
            return caller.answer(self.functions, Err(ERR_NOT_SUPPORTED));
        };
        let fence = match namespace.participants(processes.iter().map(rank)) {
            Participants::All if tag == FENCE_TAG => None,
            Participants::All => Some(SubsetFence { members: namespace.all_ranks(), tag }),
            Participants::OfSeveralHosts(members) => Some(SubsetFence { members, tag }),
            Participants::OfThisHost => {
                drop(namespaces);
                return caller.answer(self.functions, Ok(entries));
            }
            Participants::Unknown => {
                drop(namespaces);
                return caller.answer(self.functions, Err(ERR_BAD_PARAM));
            }
        };
        let element = namespace.element;
        let entries = namespace.begin_fence(fence.clone(), caller, entries);
        drop(namespaces);
        if let Some(entries) = entries {
            self.report(&PmixReport::InFence { element, fence, entries });
        }
    }

    /// The context id of a group that is constructed: another one for each group, and the same one
    /// on all hosts of its ranks.
    pub fn context_id(&self, id: &str, processes: &[Proc]) -> usize {
        let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
        ranks.sort_unstable();
        lock(&self.groups).context_id(id, &ranks)
    }

    /// The parallel process of a rank of another host.
    pub fn element_of_remote(&self, process: &Proc) -> Option<u32> {
        let namespaces = lock(&self.namespaces);
        let namespace = namespaces.get(&process.name()?)?;
        namespace.is_remote(process.rank).then_some(namespace.element)
    }

    /// A rank of a parallel process, as libpmix names it.
    pub fn process(&self, element: u32, rank: u32) -> Option<Proc> {
        let namespaces = lock(&self.namespaces);
        let (name, _) = namespaces.iter().find(|(_, namespace)| namespace.element == element)?;
        Some(Proc { nspace: namespace_bytes(name).ok()?, rank })
    }

    /// Has libpmix's thread report that this process is alive.
    pub fn report_alive(&self) {
        self.after_earlier_calls(on_alive, null_mut());
    }

    /// Has libpmix's thread call a function after it has handled all earlier calls.
    pub fn after_earlier_calls(&self, callback: OpCallback, argument: *mut c_void) {
        // No namespace has this name, so that nothing is deregistered.
        let nobody = Proc { nspace: [0; MAX_NAMESPACE_LEN + 1], rank: 0 };
        // SAFETY: a process, which is copied, and a callback with its argument.
        unsafe { (self.functions.deregister_client)(&nobody, Some(callback), argument) };
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
    pub fn rank_of(&self, process: *const Proc) -> Option<(u32, u32)> {
        // SAFETY: libpmix passes a process, or a null pointer.
        let process = unsafe { process.as_ref() }?;
        let namespaces = lock(&self.namespaces);
        Some((namespaces.get(&process.name()?)?.element, process.rank))
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

extern "C" fn on_alive(_: Status, _: *mut c_void) {
    if let Some(server) = SERVER.get() {
        server.report(&PmixReport::Alive);
    }
}

extern "C" fn on_operation_done(status: Status, argument: *mut c_void) {
    // SAFETY: made by `Server::wait_for`. libpmix calls this once.
    let sender = unsafe { Box::from_raw(argument.cast::<Sender<Status>>()) };
    // Nobody waits any more if this fails.
    let _ = sender.send(status);
}
