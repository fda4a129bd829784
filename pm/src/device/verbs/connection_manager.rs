//! iWARP connections by rdma_cm. A separate thread makes and ends them, because the kernel may take
//! seconds if a peer does not respond.

// UNSAFETY: calls librdmacm on identifiers that it owns, and reads its events.
#![expect(unsafe_code)]

use super::cm_request::ConnectRequest;
use super::ibverbs_library::Library;
use super::port_selection::SelectedPort;
use super::progress::STACK;
use super::queue_pair::QueuePair;
use super::rdmacm_library::{
    CmEvent, CmId, CmLibrary, ConnParam, EVENT_ADDR_ERROR, EVENT_ADDR_RESOLVED,
    EVENT_CONNECT_ERROR, EVENT_CONNECT_REQUEST, EVENT_DEVICE_REMOVAL, EVENT_DISCONNECTED,
    EVENT_ESTABLISHED, EVENT_REJECTED, EVENT_ROUTE_ERROR, EVENT_ROUTE_RESOLVED, EVENT_UNREACHABLE,
    EventChannel, RDMA_PS_TCP,
};
use crate::threads;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The time-out for the resolution of an address or a route, in milliseconds.
const RESOLVE_TIMEOUT_MS: i32 = 2000;
/// The largest number of pending connect requests.
const BACKLOG: i32 = 1024;
/// The retry counts in connection parameters: the value that RoCE and InfiniBand would use.
const RETRIES: u8 = 7;
/// Connections that this side starts have even numbers, the others odd ones.
const FIRST_OUTGOING_ID: u64 = 2;

/// Commands to the thread.
pub(super) enum CmCommand {
    /// Sends a connect request for a local queue pair.
    Connect { connection_id: u64, to: SocketAddr, qp_number: u32, request: ConnectRequest },
    /// Accepts a connect request that was reported.
    Accept { connection_id: u64, qp_number: u32 },
    /// Destroys the queue pair, then ends its connection or rejects the request.
    Disconnect { connection_id: Option<u64>, pair: Option<QueuePair> },
}

/// Notifications of the thread.
pub(super) enum CmNotification {
    /// A connect request with this content has arrived.
    ConnectRequest(u64, ConnectRequest),
    /// Both queue pairs are connected.
    Established(u64),
    /// The connection could not be made, or has ended.
    Disconnected(u64, String),
    /// The adapter was removed.
    DeviceRemoved,
}

/// The engine's side of the connection manager.
pub(super) struct ConnectionManager {
    commands: Option<Sender<CmCommand>>,
    notifications: Receiver<CmNotification>,
    /// Wakes the thread.
    wakeup_fd: Arc<EventFd>,
    /// Wakes the thread that handles the notifications.
    notify_fd: Arc<EventFd>,
    /// The listening address.
    pub(super) listen_addr: SocketAddr,
    /// The node of each connection that is established, in progress or requested.
    connection_nodes: HashMap<u64, u32>,
    next_id: u64,
}

impl ConnectionManager {
    /// Starts to listen at a local address of the adapter, if possible at `preferred_ip`.
    pub(super) fn start(
        chosen: &SelectedPort,
        max_reads: u8,
        preferred_ip: IpAddr,
    ) -> Result<ConnectionManager, String> {
        let (listener, listen_addr) = listen(chosen, preferred_ip)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let new_eventfd =
            || EventFd::from_flags(flags).map(Arc::new).map_err(|why| why.to_string());
        let (
            (wakeup_fd, notify_fd),
            (commands, command_receiver),
            (notification_sender, notifications),
        ) = ((new_eventfd()?, new_eventfd()?), channel(), channel());
        let cm_thread = CmThread {
            connections: HashMap::new(),
            listener,
            commands: command_receiver,
            notifications: notification_sender,
            wakeup_fd: wakeup_fd.clone(),
            notify_fd: notify_fd.clone(),
            local_addr: SocketAddr::new(listen_addr.ip(), 0),
            max_reads,
            next_id: FIRST_OUTGOING_ID + 1,
        };
        threads::spawn("score-pm", STACK, move || cm_thread.run())
            .map_err(|why| format!("cannot start a thread: {why}"))?;
        let connection_nodes = HashMap::new();
        Ok(ConnectionManager {
            commands: Some(commands),
            notifications,
            wakeup_fd,
            notify_fd,
            listen_addr,
            connection_nodes,
            next_id: FIRST_OUTGOING_ID,
        })
    }

    /// A new number for a connection with `node` that this side starts.
    pub(super) fn new_connection_id(&mut self, node: u32) -> u64 {
        let connection_id = self.next_id;
        self.next_id += 2;
        self.connection_nodes.insert(connection_id, node);
        connection_id
    }

    /// Records that a connect request is from `node`.
    pub(super) fn set_node(&mut self, connection_id: u64, node: u32) {
        self.connection_nodes.insert(connection_id, node);
    }

    pub(super) fn forget(&mut self, connection_id: u64) {
        self.connection_nodes.remove(&connection_id);
    }

    pub(super) fn node_of(&self, connection_id: u64) -> Option<u32> {
        self.connection_nodes.get(&connection_id).copied()
    }

    pub(super) fn send_command(&self, command: CmCommand) {
        if let Some(commands) = &self.commands {
            // The thread lives as long as `self`. A write to a full counter fails, but the thread
            // is then woken anyway.
            let _ = commands.send(command);
            let _ = self.wakeup_fd.write(1);
        }
    }

    pub(super) fn next_notification(&mut self) -> Option<CmNotification> {
        self.notifications.try_recv().ok()
    }

    /// Readable if there are notifications. The waiting thread reads it.
    pub(super) fn notify_fd(&self) -> Arc<EventFd> {
        self.notify_fd.clone()
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        // This ends the thread. No thread waits for its end.
        self.commands = None;
        let _ = self.wakeup_fd.write(1);
    }
}

/// The address where connect requests would be accepted.
///
/// # Errors
/// The library is missing, or the adapter has no address.
pub(super) fn probe(chosen: &SelectedPort, preferred_ip: IpAddr) -> Result<IpAddr, String> {
    listen(chosen, preferred_ip).map(|(_, address)| address.ip())
}

/// The names of the adapters that librdmacm has opened in this process. It opens each adapter to
/// which an identifier is bound, and never closes it.
static OPENED_ADAPTERS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Number of adapters that librdmacm has opened.
pub(super) fn opened_count() -> u32 {
    OPENED_ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner).len() as u32
}

fn listen(chosen: &SelectedPort, preferred_ip: IpAddr) -> Result<(OwnedCmId, SocketAddr), String> {
    let library = CmLibrary::get().map_err(|unavailable| unavailable.to_string())?;
    let verbs = Library::get().map_err(|unavailable| unavailable.to_string())?;
    let channel = Arc::new(CmEventChannel::new(library)?);
    let interfaces =
        nix::ifaddrs::getifaddrs().map_err(|errno| format!("local addresses: {errno}"))?;
    let local_ips = interfaces.filter_map(|interface| ip(interface.address.as_ref()?));
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    for ip in [preferred_ip].into_iter().chain(local_ips).filter(|ip| !is_link_local(ip)) {
        let id = OwnedCmId::new(&channel, 0)?;
        let bound_adapter = id.bind(ip).ok().and_then(|()| id.adapter(verbs));
        let mut opened = OPENED_ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner);
        opened.extend(bound_adapter.clone());
        drop(opened);
        // An address of another adapter, or of none, is refused.
        if bound_adapter.as_ref() != Some(&chosen.adapter) {
            continue;
        }
        let port = id.listen()?;
        return Ok((id, SocketAddr::new(ip, port)));
    }
    Err(format!("RDMA adapter {}: its link has no IP address", chosen.adapter))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let ipv4 = || address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let ipv6 = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
    ipv4().or_else(ipv6)
}

fn last_os_error_text(problem: &str) -> String {
    format!("{problem}: {}", io::Error::last_os_error())
}

/// The source of rdma_cm events.
struct CmEventChannel {
    library: &'static CmLibrary,
    raw: NonNull<EventChannel>,
}

// SAFETY: any thread may call the library's functions; the last holder destroys the channel.
unsafe impl Send for CmEventChannel {}
// SAFETY: as above.
unsafe impl Sync for CmEventChannel {}

impl CmEventChannel {
    fn new(library: &'static CmLibrary) -> Result<CmEventChannel, String> {
        // SAFETY: null is checked.
        let created = NonNull::new(unsafe { (library.create_event_channel)() });
        let raw = created.ok_or_else(|| last_os_error_text("no rdma_cm (module rdma_ucm)"))?;
        let channel = CmEventChannel { library, raw };
        let nonblocking = fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        nonblocking.map(|_| channel).map_err(|errno| errno.to_string())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, which is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for CmEventChannel {
    fn drop(&mut self) {
        // SAFETY: created in `new`; identifiers hold the channel, so that none is left.
        unsafe { (self.library.destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An rdma_cm identifier, connected or not.
struct OwnedCmId {
    raw: NonNull<CmId>,
    channel: Arc<CmEventChannel>,
}

// SAFETY: any thread may call the library's functions; only the owner destroys the identifier.
unsafe impl Send for OwnedCmId {}

impl OwnedCmId {
    /// Its events carry `connection_id`.
    fn new(channel: &Arc<CmEventChannel>, connection_id: u64) -> Result<OwnedCmId, String> {
        let (mut raw_id, context) = (null_mut(), connection_id as usize as *mut c_void);
        // SAFETY: an open channel; the library only hands the context back.
        let error = unsafe {
            let create = channel.library.create_id;
            create(channel.raw.as_ptr(), &raw mut raw_id, context, RDMA_PS_TCP)
        };
        let id = NonNull::new(raw_id).filter(|_| error == 0);
        let id = id.ok_or_else(|| last_os_error_text("cannot create an rdma_cm identifier"))?;
        Ok(OwnedCmId { raw: id, channel: channel.clone() })
    }

    fn check_result(&self, problem: &str, result: i32) -> Result<(), String> {
        if result == 0 { Ok(()) } else { Err(last_os_error_text(problem)) }
    }

    fn bind(&self, ip: IpAddr) -> Result<(), String> {
        let address = SockaddrStorage::from(SocketAddr::new(ip, 0));
        // SAFETY: a socket address, which the library copies.
        let result =
            unsafe { (self.channel.library.bind_addr)(self.raw.as_ptr(), address.as_ptr()) };
        self.check_result("bind", result)
    }

    /// The name of the adapter that the identifier is bound to.
    fn adapter(&self, library: &Library) -> Option<String> {
        // SAFETY: the identifier is alive; the library has opened the adapter that it is bound to.
        unsafe { library.device_name(NonNull::new(self.raw.as_ref().verbs)?) }
    }

    /// Listens, and returns the port.
    fn listen(&self) -> Result<u16, String> {
        let (library, id) = (self.channel.library, self.raw.as_ptr());
        // SAFETY: alive and bound.
        let result = unsafe { (library.listen)(id, BACKLOG) };
        self.check_result("listen", result)?;
        // SAFETY: as above.
        Ok(u16::from_be(unsafe { (library.get_src_port)(id) }))
    }

    fn resolve_address(&self, from: SocketAddr, to: SocketAddr) -> Result<(), String> {
        let (from, to) = (SockaddrStorage::from(from), SockaddrStorage::from(to));
        let resolve = self.channel.library.resolve_addr;
        // SAFETY: socket addresses, which the library copies.
        let result =
            unsafe { resolve(self.raw.as_ptr(), from.as_ptr(), to.as_ptr(), RESOLVE_TIMEOUT_MS) };
        self.check_result("resolving the address", result)
    }

    fn resolve_route(&self) -> Result<(), String> {
        // SAFETY: alive.
        let result =
            unsafe { (self.channel.library.resolve_route)(self.raw.as_ptr(), RESOLVE_TIMEOUT_MS) };
        self.check_result("resolving the route", result)
    }

    fn connect(
        &self,
        qp_number: u32,
        max_reads: u8,
        request: &ConnectRequest,
    ) -> Result<(), String> {
        let bytes = request.encode();
        let mut param = connect_parameters(qp_number, max_reads, &bytes);
        // SAFETY: alive; the library copies the parameters, and what they point to.
        let result = unsafe { (self.channel.library.connect)(self.raw.as_ptr(), &raw mut param) };
        self.check_result("connect request", result)
    }

    fn accept(&self, qp_number: u32, max_reads: u8) -> Result<(), String> {
        let mut param = connect_parameters(qp_number, max_reads, &[]);
        // SAFETY: as `connect`.
        let result = unsafe { (self.channel.library.accept)(self.raw.as_ptr(), &raw mut param) };
        self.check_result("cannot accept the connection", result)
    }

    fn reject(&self) {
        // SAFETY: alive; the library ignores an identifier that is not a connect request.
        unsafe { (self.channel.library.reject)(self.raw.as_ptr(), null(), 0) };
    }
}

fn connect_parameters(qp_number: u32, max_reads: u8, bytes: &[u8]) -> ConnParam {
    ConnParam {
        private_data: bytes.as_ptr().cast(),
        private_data_len: bytes.len() as u8,
        responder_resources: max_reads,
        initiator_depth: max_reads,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 1,
        qp_num: qp_number,
    }
}

impl Drop for OwnedCmId {
    fn drop(&mut self) {
        // SAFETY: created by the library; all its events were acknowledged.
        unsafe { (self.channel.library.destroy_id)(self.raw.as_ptr()) };
    }
}

/// A connection, on the thread's side.
struct CmConnection {
    id: OwnedCmId,
    /// The connect request to send when the route is known.
    request: Option<(u32, ConnectRequest)>,
    /// It is a connect request that was neither accepted nor rejected yet.
    is_unanswered: bool,
}

/// The thread's side of the connection manager.
struct CmThread {
    /// The connections are dropped before the listener, whose channel they use.
    connections: HashMap<u64, CmConnection>,
    listener: OwnedCmId,
    commands: Receiver<CmCommand>,
    notifications: Sender<CmNotification>,
    wakeup_fd: Arc<EventFd>,
    notify_fd: Arc<EventFd>,
    /// The local address, with port 0.
    local_addr: SocketAddr,
    max_reads: u8,
    next_id: u64,
}

impl CmThread {
    fn run(mut self) {
        loop {
            let channel = self.listener.channel.clone();
            let mut fds = [channel.fd(), self.wakeup_fd.as_fd()];
            let mut fds = fds.each_mut().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            let _ = self.wakeup_fd.read();
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.execute(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            while self.handle_event() {}
        }
    }

    fn notify(&self, notification: CmNotification) {
        let _ = self.notifications.send(notification);
        let _ = self.notify_fd.write(1);
    }

    fn execute(&mut self, command: CmCommand) {
        match command {
            CmCommand::Connect { connection_id, to, qp_number, request } => {
                let connection =
                    OwnedCmId::new(&self.listener.channel, connection_id).and_then(|id| {
                        id.resolve_address(self.local_addr, to)?;
                        Ok(CmConnection {
                            id,
                            request: Some((qp_number, request)),
                            is_unanswered: false,
                        })
                    });
                match connection {
                    Ok(connection) => drop(self.connections.insert(connection_id, connection)),
                    Err(why) => self.notify(CmNotification::Disconnected(connection_id, why)),
                }
            }
            CmCommand::Accept { connection_id, qp_number } => {
                let Some(connection) = self.connections.get_mut(&connection_id) else { return };
                connection.is_unanswered = false;
                if let Err(why) = connection.id.accept(qp_number, self.max_reads) {
                    self.notify(CmNotification::Disconnected(connection_id, why));
                }
            }
            CmCommand::Disconnect { connection_id, pair: queue_pair } => {
                // The library requires this order: the queue pair first.
                drop(queue_pair);
                let connection =
                    connection_id.and_then(|connection_id| self.connections.remove(&connection_id));
                if let Some(connection) = connection.filter(|connection| connection.is_unanswered) {
                    connection.id.reject();
                }
            }
        }
    }

    /// Handles one event. False: there is none.
    fn handle_event(&mut self) -> bool {
        let channel = self.listener.channel.clone();
        let (library, mut event) = (channel.library, null_mut());
        // SAFETY: an open channel, whose descriptor does not block.
        if unsafe { (library.get_event)(channel.raw.as_ptr(), &raw mut event) } != 0 {
            return false;
        }
        // SAFETY: just received, and alive until it is acknowledged below.
        let (id, kind, status, request) = unsafe {
            let CmEvent { id, event: kind, status, .. } = *event;
            (id, kind, status, request_of(&*event))
        };
        // SAFETY: its identifier is alive: only this thread destroys identifiers, after their
        // events.
        let connection_id = unsafe { (*id).context } as usize as u64;
        // SAFETY: received above, and nothing keeps a part of it.
        unsafe { (library.ack_event)(event) };
        match kind {
            EVENT_CONNECT_REQUEST => self.on_connect_request(id, request),
            EVENT_ADDR_RESOLVED => {
                self.continue_connect(connection_id, |connection, _| connection.id.resolve_route())
            }
            EVENT_ROUTE_RESOLVED => {
                self.continue_connect(connection_id, |connection, max_reads| {
                    match &connection.request {
                        Some((qp_number, request)) => {
                            connection.id.connect(*qp_number, max_reads, request)
                        }
                        None => Ok(()),
                    }
                })
            }
            EVENT_ESTABLISHED => self.notify(CmNotification::Established(connection_id)),
            EVENT_DEVICE_REMOVAL => self.notify(CmNotification::DeviceRemoved),
            EVENT_ADDR_ERROR | EVENT_ROUTE_ERROR | EVENT_CONNECT_ERROR | EVENT_UNREACHABLE
            | EVENT_REJECTED => {
                let why = io::Error::from_raw_os_error(status.abs());
                self.notify(CmNotification::Disconnected(
                    connection_id,
                    format!("cannot connect (event {kind}): {why}"),
                ));
            }
            EVENT_DISCONNECTED => self.notify(CmNotification::Disconnected(
                connection_id,
                "the peer has disconnected".into(),
            )),
            _ => {}
        }
        true
    }

    fn continue_connect(
        &self,
        connection_id: u64,
        step: impl Fn(&CmConnection, u8) -> Result<(), String>,
    ) {
        let Some(connection) = self.connections.get(&connection_id) else { return };
        if let Err(why) = step(connection, self.max_reads) {
            self.notify(CmNotification::Disconnected(
                connection_id,
                format!("cannot connect: {why}"),
            ));
        }
    }

    fn on_connect_request(&mut self, id: *mut CmId, request: Option<ConnectRequest>) {
        let Some(mut id) = NonNull::new(id) else { return };
        let connection_id = self.next_id;
        self.next_id += 2;
        // SAFETY: a new identifier, which this thread owns; the library only hands the context
        // back.
        unsafe { id.as_mut() }.context = connection_id as usize as *mut c_void;
        let id = OwnedCmId { raw: id, channel: self.listener.channel.clone() };
        match request {
            Some(request) => {
                self.connections
                    .insert(connection_id, CmConnection { id, request: None, is_unanswered: true });
                self.notify(CmNotification::ConnectRequest(connection_id, request));
            }
            None => id.reject(),
        }
    }
}

/// The connect request in an event.
///
/// # Safety
/// The event is not acknowledged yet.
unsafe fn request_of(event: &CmEvent) -> Option<ConnectRequest> {
    if event.event != EVENT_CONNECT_REQUEST || event.conn.private_data.is_null() {
        return None;
    }
    let len = usize::from(event.conn.private_data_len);
    // SAFETY: the event has this many bytes of private data.
    let bytes = unsafe { std::slice::from_raw_parts(event.conn.private_data.cast::<u8>(), len) };
    ConnectRequest::decode(bytes)
}
