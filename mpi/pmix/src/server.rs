//! The PMIx server for the ranks of this host. libpmix serves the ranks, and calls back for
//! requests that concern other hosts or the shepherd.
//!
//! libpmix calls back from its own thread. Code that answers libpmix must not hold a lock that a
//! callback may need.

mod deadlines;
mod direct_modex;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use score_proto::frame;
use score_proto::ids::ElementIndex;
use score_proto::job_control::SubsetFence;
use score_proto::message::OsBytes;
use score_proto::pmix::{PmixNamespace, PmixReport, PmixSetup};

use crate::abi::{
    ERR_BAD_PARAM, ERR_NOT_SUPPORTED, MAX_NAMESPACE_LEN, OpCallback, Proc, RANK_WILDCARD, SUCCESS,
    ServerModule, Status,
};
use crate::callers::Caller;
use crate::facts;
use crate::info_list::info_array;
use crate::library::Functions;
use crate::namespace::{GroupIds, Namespace, Participants};
use deadlines::Deadlines;
use direct_modex::ModexQuestions;

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

/// The number of an element, and a rank of the element.
pub type Key = (ElementIndex, u32);

/// The tag of fences.
pub const FENCE_TAG: u64 = 0;

/// The server. libpmix supports only one in a process.
pub static SERVER: OnceLock<Server> = OnceLock::new();

/// Locks a mutex. It ignores poisoning, because no panic leaves the protected data in an
/// inconsistent state.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts the server with this table of callbacks, and reports the environment variables of
    /// the ranks.
    ///
    /// # Errors
    /// Returns one line for the user.
    pub fn start(
        functions: &'static Functions,
        callbacks: ServerModule,
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
        server.initialize(callbacks, setup)?;
        setup.namespaces.iter().try_for_each(|namespace| server.register(setup, namespace))?;
        Ok(server)
    }

    fn initialize(&self, callbacks: ServerModule, setup: &PmixSetup) -> Result<(), String> {
        let module = Box::leak(Box::new(callbacks));
        let mut infos = info_array(self.functions, &facts::of_server(setup))?;
        let (array, count) = infos.elements();
        // SAFETY: the module lives as long as the process, and the array as long as the call.
        let status = unsafe { (self.functions.server_init)(module, array, count) };
        self.functions.check("PMIx_server_init", status)
    }

    /// Registers a namespace and its ranks on this host, and reports the environment variables of
    /// these ranks.
    fn register(&self, setup: &PmixSetup, namespace: &PmixNamespace) -> Result<(), String> {
        let mut infos = info_array(self.functions, &facts::of_namespace(setup, namespace))?;
        let (array, count) = infos.elements();
        let local_ranks = setup.local_ranks();
        let name = namespace_bytes(&namespace.name)?;
        let local_count = c_int::try_from(local_ranks.len()).unwrap_or(c_int::MAX);
        self.wait_for("PMIx_server_register_nspace", |callback, argument| {
            // SAFETY: the name has that size, and the array lives as long as the process. The
            // argument of the callback lives until the callback has been called.
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
                // SAFETY: the function copies the process. The callback is valid as above.
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

    /// The environment variables by which a rank finds this server.
    fn environment(&self, process: &Proc) -> Result<Vec<OsBytes>, String> {
        let mut variables: *mut *mut c_char = null_mut();
        // SAFETY: the process is valid, and the function makes and extends the array of strings.
        let status = unsafe { (self.functions.setup_fork)(process, &mut variables) };
        self.functions.check("PMIx_server_setup_fork", status)?;
        let mut environment = Vec::new();
        let mut next = variables;
        // SAFETY: the array of strings ends with a null pointer. It is never freed, because there
        // is only one for each rank.
        while !next.is_null() && !unsafe { *next }.is_null() {
            // SAFETY: as above.
            let variable = unsafe { CStr::from_ptr(*next) };
            environment.push(OsBytes(variable.to_bytes().to_vec()));
            // SAFETY: the end of the array is not reached yet.
            next = unsafe { next.add(1) };
        }
        Ok(environment)
    }

    /// Calls a function of libpmix that answers by a callback, and waits for the answer.
    fn wait_for(
        &self,
        name: &str,
        call: impl FnOnce(OpCallback, *mut c_void) -> Status,
    ) -> Result<(), String> {
        let (sender, receiver) = channel::<Status>();
        let argument = Box::into_raw(Box::new(sender));
        let status = call(on_operation_done, argument.cast());
        if status != SUCCESS {
            // SAFETY: libpmix does not call the callback, so nothing else has the pointer.
            drop(unsafe { Box::from_raw(argument) });
            return self.functions.check(name, status);
        }
        let status = receiver.recv().map_err(|_| format!("{name}: no answer"))?;
        self.functions.check(name, status)
    }

    /// Sends a report to the shepherd. Ends the process if the shepherd has closed its end.
    pub fn report(&self, report: &PmixReport) {
        let mut bytes = Vec::new();
        if frame::encode(report, &mut bytes).is_err() {
            // The shepherd has lower limits, and also refuses reports that fit into a frame.
            let reason = format!(
                "the processes of a program on one host have put more than {} bytes for others \
                 into PMIx",
                frame::MAX_BODY
            );
            // A report of one line always fits.
            let _ = frame::encode(&PmixReport::Unavailable(reason), &mut bytes);
        }
        if lock(&self.shepherd).write_all(&bytes).is_err() {
            std::process::exit(1);
        }
    }

    /// Adds the entries that hosts have put before a fence.
    pub fn add_entries(&self, element: ElementIndex, fence: Option<SubsetFence>, entries: &[u8]) {
        self.with_element(element, |namespace| namespace.add_entries(fence, entries));
    }

    /// Ends a fence, because all participating ranks are in it.
    pub fn end_fence(&self, element: ElementIndex, fence: Option<SubsetFence>) {
        let ended = self.with_element(element, |namespace| namespace.end_fence(&fence)).flatten();
        let Some((caller, entries, next_entries)) = ended else { return };
        caller.answer(self.functions, Ok(entries));
        if let Some(entries) = next_entries {
            self.report(&PmixReport::InFence { element, fence, entries });
        }
    }

    /// Starts an operation of these processes, and answers its caller when all of them are in it.
    /// `tag` distinguishes concurrent operations of the same processes.
    pub fn gather(&self, processes: &[Proc], tag: u64, caller: Caller, entries: Vec<u8>) {
        let rank = |process: &Proc| (process.rank != RANK_WILDCARD).then_some(process.rank);
        let mut namespaces = lock(&self.namespaces);
        let namespace = processes[0].name().and_then(|name| namespaces.get_mut(&name));
        // The programs of a pipeline are separate parallel processes, which cannot share an
        // operation.
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

    /// The context id of a group that is constructed. It differs for each group, and is the same on
    /// all hosts of its ranks.
    pub fn context_id(&self, id: &str, processes: &[Proc]) -> usize {
        let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
        ranks.sort_unstable();
        lock(&self.groups).context_id(id, &ranks)
    }

    /// The element of a rank of another host. None: the process is not such a rank.
    pub fn element_of_remote(&self, process: &Proc) -> Option<ElementIndex> {
        let namespaces = lock(&self.namespaces);
        let namespace = namespaces.get(&process.name()?)?;
        namespace.is_remote(process.rank).then_some(namespace.element)
    }

    /// A rank of an element, in the form that libpmix uses.
    pub fn process(&self, element: ElementIndex, rank: u32) -> Option<Proc> {
        let namespaces = lock(&self.namespaces);
        let (name, _) = namespaces.iter().find(|(_, namespace)| namespace.element == element)?;
        Some(Proc { nspace: namespace_bytes(name).ok()?, rank })
    }

    /// Reports from libpmix's thread that this process is alive. A blocked thread would not report.
    pub fn report_alive(&self) {
        self.after_earlier_calls(on_alive, null_mut());
    }

    /// Calls a function from libpmix's thread after that thread has handled all earlier calls.
    pub fn after_earlier_calls(&self, callback: OpCallback, argument: *mut c_void) {
        // No namespace has this name, so nothing is deregistered.
        let nobody = Proc { nspace: [0; MAX_NAMESPACE_LEN + 1], rank: 0 };
        // SAFETY: the function copies the process, and the callback is valid with its argument.
        unsafe { (self.functions.deregister_client)(&nobody, Some(callback), argument) };
    }

    fn with_element<R>(
        &self,
        element: ElementIndex,
        act: impl FnOnce(&mut Namespace<Caller>) -> R,
    ) -> Option<R> {
        let mut namespaces = lock(&self.namespaces);
        namespaces.values_mut().find(|namespace| namespace.element == element).map(act)
    }

    /// The element and the rank of a process, if it belongs to this job.
    pub fn rank_of(&self, process: *const Proc) -> Option<(ElementIndex, u32)> {
        // SAFETY: libpmix passes a process or a null pointer.
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

/// The name of a namespace in the form that libpmix uses.
fn namespace_bytes(name: &str) -> Result<[u8; MAX_NAMESPACE_LEN + 1], String> {
    let mut bytes = [0; MAX_NAMESPACE_LEN + 1];
    match name.len() <= MAX_NAMESPACE_LEN && !name.contains('\0') {
        true => bytes[..name.len()].copy_from_slice(name.as_bytes()),
        false => return Err(format!("'{name}': not a valid name of a namespace")),
    }
    Ok(bytes)
}

extern "C" fn on_alive(_: Status, _: *mut c_void) {
    if let Some(server) = SERVER.get() {
        server.report(&PmixReport::Alive);
    }
}

extern "C" fn on_operation_done(status: Status, argument: *mut c_void) {
    // SAFETY: `Server::wait_for` has made the argument, and libpmix calls this function once.
    let sender = unsafe { Box::from_raw(argument.cast::<Sender<Status>>()) };
    // The send fails only if the caller does not wait any more.
    let _ = sender.send(status);
}
