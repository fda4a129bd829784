//! Connections of iWARP, by rdma_cm. A thread of its own makes and ends them: the kernel may take
//! seconds over a peer that does not answer, and nobody else is to wait for that.

// UNSAFETY: calls librdmacm on identifiers that it owns, and reads its events.
#![expect(unsafe_code)]

use super::calls::Call;
use super::choice::Chosen;
use super::cm_library::{
    CmEvent, CmId, CmLibrary, ConnParam, EVENT_ADDR_ERROR, EVENT_ADDR_RESOLVED,
    EVENT_CONNECT_ERROR, EVENT_CONNECT_REQUEST, EVENT_DEVICE_REMOVAL, EVENT_DISCONNECTED,
    EVENT_ESTABLISHED, EVENT_REJECTED, EVENT_ROUTE_ERROR, EVENT_ROUTE_RESOLVED, EVENT_UNREACHABLE,
    EventChannel, SPACE_TCP,
};
use super::library::Library;
use super::pair::Pair;
use super::progress::STACK;
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

/// Milliseconds until an address or a route is given up.
const RESOLVE: i32 = 2000;
/// Requests that may wait to be looked at.
const BACKLOG: i32 = 1024;
/// What RoCE and InfiniBand would use.
const RETRIES: u8 = 7;
/// Connections that this side begins have even numbers, the others odd ones.
const OWN: u64 = 2;

/// What the thread is to do.
pub(super) enum Order {
    /// Calls a peer, for an own queue pair.
    Connect { line: u64, to: SocketAddr, pair: u32, call: Call },
    /// Accepts a request that was told of.
    Accept { line: u64, pair: u32 },
    /// Ends a connection, or refuses a request, after its queue pair.
    HangUp { line: Option<u64>, pair: Option<Pair> },
}

/// What has happened.
pub(super) enum News {
    /// A request has come, of this content.
    Called(u64, Call),
    /// Both queue pairs are wired.
    Joined(u64),
    /// It could not be made, or is no more.
    Ended(u64, String),
    /// The adapter has gone.
    Removed,
}

/// The engine's end of it.
pub(super) struct Manager {
    orders: Option<Sender<Order>>,
    news: Receiver<News>,
    /// Wakes the thread.
    wake: Arc<EventFd>,
    /// Wakes who hears the news.
    bell: Arc<EventFd>,
    /// Where it is called.
    pub(super) address: SocketAddr,
    /// Whose each connection is that is under way, made, or asked for.
    nodes: HashMap<u64, u32>,
    next: u64,
}

impl Manager {
    /// Begins to listen at an own address of the adapter, `near` if it is one.
    pub(super) fn start(chosen: &Chosen, reads: u8, near: IpAddr) -> Result<Manager, String> {
        let (listener, address) = listen(chosen, near)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = || EventFd::from_flags(flags).map(Arc::new).map_err(|why| why.to_string());
        let ((wake, bell), (orders, of_orders), (of_news, news)) =
            ((bell()?, bell()?), channel(), channel());
        let desk = Desk {
            lines: HashMap::new(),
            listener,
            orders: of_orders,
            news: of_news,
            wake: wake.clone(),
            bell: bell.clone(),
            near: SocketAddr::new(address.ip(), 0),
            reads,
            next: OWN + 1,
        };
        threads::spawn("score-pm", STACK, move || desk.run())
            .map_err(|why| format!("no thread: {why}"))?;
        let nodes = HashMap::new();
        Ok(Manager { orders: Some(orders), news, wake, bell, address, nodes, next: OWN })
    }

    /// A number for a connection with `node` that this side begins.
    pub(super) fn new_line(&mut self, node: u32) -> u64 {
        let line = self.next;
        self.next += 2;
        self.nodes.insert(line, node);
        line
    }

    /// A request is `node`'s.
    pub(super) fn belongs(&mut self, line: u64, node: u32) {
        self.nodes.insert(line, node);
    }

    pub(super) fn forget(&mut self, line: u64) {
        self.nodes.remove(&line);
    }

    pub(super) fn node(&self, line: u64) -> Option<u32> {
        self.nodes.get(&line).copied()
    }

    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread lives as long as this; a full counter wakes it as well.
            let _ = orders.send(order);
            let _ = self.wake.write(1);
        }
    }

    pub(super) fn next(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Readable when there is news; whoever waits for it reads it.
    pub(super) fn bell(&self) -> Arc<EventFd> {
        self.bell.clone()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // The thread ends; nobody waits for that.
        self.orders = None;
        let _ = self.wake.write(1);
    }
}

/// Where calls would be heard.
///
/// # Errors
/// There is no library, or no address of the adapter.
pub(super) fn probe(chosen: &Chosen, near: IpAddr) -> Result<IpAddr, String> {
    listen(chosen, near).map(|(_, address)| address.ip())
}

/// Names of the adapters that librdmacm has opened in this process: all that an identifier was ever
/// bound to. It closes none.
static OPENED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// How many these are.
pub(super) fn opened() -> u32 {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).len() as u32
}

fn listen(chosen: &Chosen, near: IpAddr) -> Result<(Id, SocketAddr), String> {
    let library = CmLibrary::get().map_err(|lack| lack.to_string())?;
    let verbs = Library::get().map_err(|lack| lack.to_string())?;
    let channel = Arc::new(Channel::new(library)?);
    let all = nix::ifaddrs::getifaddrs().map_err(|errno| format!("own addresses: {errno}"))?;
    let own = all.filter_map(|one| ip(one.address.as_ref()?));
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    for ip in [near].into_iter().chain(own).filter(|ip| !is_link_local(ip)) {
        let id = Id::new(&channel, 0)?;
        let bound = id.bind(ip).ok().and_then(|()| id.adapter(verbs));
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.extend(bound.clone());
        drop(opened);
        // An address of another adapter, or of none, is refused.
        if bound.as_ref() != Some(&chosen.adapter) {
            continue;
        }
        let port = id.listen()?;
        return Ok((id, SocketAddr::new(ip, port)));
    }
    Err(format!("RDMA adapter {}: its link has no IP address", chosen.adapter))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = || address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let six = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
    four().or_else(six)
}

fn failure(what: &str) -> String {
    format!("{what}: {}", io::Error::last_os_error())
}

/// Where events come from.
struct Channel {
    library: &'static CmLibrary,
    channel: NonNull<EventChannel>,
}

// SAFETY: the library's functions may be called by any thread; it is destroyed by its last holder.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(library: &'static CmLibrary) -> Result<Channel, String> {
        // SAFETY: null is checked.
        let made = NonNull::new(unsafe { (library.create_event_channel)() });
        let channel = made.ok_or_else(|| failure("no rdma_cm (module rdma_ucm)"))?;
        let channel = Channel { library, channel };
        let set = fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        set.map(|_| channel).map_err(|errno| errno.to_string())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as it.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`; identifiers hold it, so that none is left.
        unsafe { (self.library.destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// One end of a connection, or of none yet.
struct Id {
    id: NonNull<CmId>,
    channel: Arc<Channel>,
}

// SAFETY: the library's functions may be called by any thread; it is destroyed by its owner alone.
unsafe impl Send for Id {}

impl Id {
    /// `line` comes with its events.
    fn new(channel: &Arc<Channel>, line: u64) -> Result<Id, String> {
        let (mut id, context) = (null_mut(), line as usize as *mut c_void);
        // SAFETY: an open channel; the context is only handed back.
        let error = unsafe {
            let create = channel.library.create_id;
            create(channel.channel.as_ptr(), &raw mut id, context, SPACE_TCP)
        };
        let id = NonNull::new(id).filter(|_| error == 0);
        let id = id.ok_or_else(|| failure("rdma_cm gives no identifier"))?;
        Ok(Id { id, channel: channel.clone() })
    }

    fn call(&self, what: &str, result: i32) -> Result<(), String> {
        if result == 0 { Ok(()) } else { Err(failure(what)) }
    }

    fn bind(&self, ip: IpAddr) -> Result<(), String> {
        let address = SockaddrStorage::from(SocketAddr::new(ip, 0));
        // SAFETY: a socket address, which the library copies.
        let result =
            unsafe { (self.channel.library.bind_addr)(self.id.as_ptr(), address.as_ptr()) };
        self.call("bind", result)
    }

    /// The name of the adapter that it is bound to.
    fn adapter(&self, library: &Library) -> Option<String> {
        // SAFETY: alive; the library has opened what it is bound to.
        unsafe { library.name_of(NonNull::new(self.id.as_ref().verbs)?) }
    }

    /// Answers the port.
    fn listen(&self) -> Result<u16, String> {
        let (library, id) = (self.channel.library, self.id.as_ptr());
        // SAFETY: alive and bound.
        let result = unsafe { (library.listen)(id, BACKLOG) };
        self.call("listen", result)?;
        // SAFETY: as above.
        Ok(u16::from_be(unsafe { (library.get_src_port)(id) }))
    }

    fn resolve_address(&self, from: SocketAddr, to: SocketAddr) -> Result<(), String> {
        let (from, to) = (SockaddrStorage::from(from), SockaddrStorage::from(to));
        let resolve = self.channel.library.resolve_addr;
        // SAFETY: socket addresses, which the library copies.
        let result = unsafe { resolve(self.id.as_ptr(), from.as_ptr(), to.as_ptr(), RESOLVE) };
        self.call("its address", result)
    }

    fn resolve_route(&self) -> Result<(), String> {
        // SAFETY: alive.
        let result = unsafe { (self.channel.library.resolve_route)(self.id.as_ptr(), RESOLVE) };
        self.call("the way to it", result)
    }

    fn connect(&self, pair: u32, reads: u8, call: &Call) -> Result<(), String> {
        let bytes = call.encode();
        let mut param = parameters(pair, reads, &bytes);
        // SAFETY: alive; the library copies the parameters, and what they point to.
        let result = unsafe { (self.channel.library.connect)(self.id.as_ptr(), &raw mut param) };
        self.call("it does not answer", result)
    }

    fn accept(&self, pair: u32, reads: u8) -> Result<(), String> {
        let mut param = parameters(pair, reads, &[]);
        // SAFETY: as `connect`.
        let result = unsafe { (self.channel.library.accept)(self.id.as_ptr(), &raw mut param) };
        self.call("it cannot be accepted", result)
    }

    fn reject(&self) {
        // SAFETY: alive; one that is no request is left as it is.
        unsafe { (self.channel.library.reject)(self.id.as_ptr(), null(), 0) };
    }
}

fn parameters(pair: u32, reads: u8, bytes: &[u8]) -> ConnParam {
    ConnParam {
        private_data: bytes.as_ptr().cast(),
        private_data_len: bytes.len() as u8,
        responder_resources: reads,
        initiator_depth: reads,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 1,
        qp_num: pair,
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made by the library; all its events were acknowledged.
        unsafe { (self.channel.library.destroy_id)(self.id.as_ptr()) };
    }
}

/// A connection, at the thread's end.
struct Line {
    id: Id,
    /// What it is called with, once the way is known.
    call: Option<(u32, Call)>,
    /// A request that nobody has answered.
    is_open: bool,
}

/// The thread's end of it.
struct Desk {
    /// Before the listener, whose channel they use.
    lines: HashMap<u64, Line>,
    listener: Id,
    orders: Receiver<Order>,
    news: Sender<News>,
    wake: Arc<EventFd>,
    bell: Arc<EventFd>,
    /// The own address, with port 0.
    near: SocketAddr,
    reads: u8,
    next: u64,
}

impl Desk {
    fn run(mut self) {
        loop {
            let channel = self.listener.channel.clone();
            let mut fds = [channel.fd(), self.wake.as_fd()];
            let mut fds = fds.each_mut().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            let _ = self.wake.read();
            loop {
                match self.orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            while self.take_event() {}
        }
    }

    fn tell(&self, news: News) {
        let _ = self.news.send(news);
        let _ = self.bell.write(1);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Connect { line, to, pair, call } => {
                let begun = Id::new(&self.listener.channel, line).and_then(|id| {
                    id.resolve_address(self.near, to)?;
                    Ok(Line { id, call: Some((pair, call)), is_open: false })
                });
                match begun {
                    Ok(begun) => drop(self.lines.insert(line, begun)),
                    Err(why) => self.tell(News::Ended(line, why)),
                }
            }
            Order::Accept { line, pair } => {
                let Some(it) = self.lines.get_mut(&line) else { return };
                it.is_open = false;
                if let Err(why) = it.id.accept(pair, self.reads) {
                    self.tell(News::Ended(line, why));
                }
            }
            Order::HangUp { line, pair } => {
                // As the library wants it: the queue pair first.
                drop(pair);
                let line = line.and_then(|line| self.lines.remove(&line));
                if let Some(line) = line.filter(|line| line.is_open) {
                    line.id.reject();
                }
            }
        }
    }

    /// False: there is none.
    fn take_event(&mut self) -> bool {
        let channel = self.listener.channel.clone();
        let (library, mut event) = (channel.library, null_mut());
        // SAFETY: an open channel, whose descriptor does not block.
        if unsafe { (library.get_event)(channel.channel.as_ptr(), &raw mut event) } != 0 {
            return false;
        }
        // SAFETY: just got, and alive until it is acknowledged below.
        let (id, kind, status, call) = unsafe {
            let CmEvent { id, event: kind, status, .. } = *event;
            (id, kind, status, call_of(&*event))
        };
        // SAFETY: its identifier is alive: only this thread destroys any, after their events.
        let line = unsafe { (*id).context } as usize as u64;
        // SAFETY: got above, and nothing of it is kept.
        unsafe { (library.ack_event)(event) };
        match kind {
            EVENT_CONNECT_REQUEST => self.is_asked(id, call),
            EVENT_ADDR_RESOLVED => self.go_on(line, |it, _| it.id.resolve_route()),
            EVENT_ROUTE_RESOLVED => self.go_on(line, |it, reads| match &it.call {
                Some((pair, call)) => it.id.connect(*pair, reads, call),
                None => Ok(()),
            }),
            EVENT_ESTABLISHED => self.tell(News::Joined(line)),
            EVENT_DEVICE_REMOVAL => self.tell(News::Removed),
            EVENT_ADDR_ERROR | EVENT_ROUTE_ERROR | EVENT_CONNECT_ERROR | EVENT_UNREACHABLE
            | EVENT_REJECTED => {
                let why = io::Error::from_raw_os_error(status.abs());
                self.tell(News::Ended(line, format!("is not made ({kind}: {why})")));
            }
            EVENT_DISCONNECTED => self.tell(News::Ended(line, "has ended".into())),
            _ => {}
        }
        true
    }

    fn go_on(&self, line: u64, next: impl Fn(&Line, u8) -> Result<(), String>) {
        let Some(it) = self.lines.get(&line) else { return };
        if let Err(why) = next(it, self.reads) {
            self.tell(News::Ended(line, format!("is not made: {why}")));
        }
    }

    fn is_asked(&mut self, id: *mut CmId, call: Option<Call>) {
        let Some(mut id) = NonNull::new(id) else { return };
        let line = self.next;
        self.next += 2;
        // SAFETY: a new identifier, which is ours; the context is only handed back.
        unsafe { id.as_mut() }.context = line as usize as *mut c_void;
        let id = Id { id, channel: self.listener.channel.clone() };
        match call {
            Some(call) => {
                self.lines.insert(line, Line { id, call: None, is_open: true });
                self.tell(News::Called(line, call));
            }
            None => id.reject(),
        }
    }
}

/// What a request says.
///
/// # Safety
/// An event that is not acknowledged yet.
unsafe fn call_of(event: &CmEvent) -> Option<Call> {
    if event.event != EVENT_CONNECT_REQUEST || event.conn.private_data.is_null() {
        return None;
    }
    let len = usize::from(event.conn.private_data_len);
    // SAFETY: so many bytes come with the event.
    let bytes = unsafe { std::slice::from_raw_parts(event.conn.private_data.cast::<u8>(), len) };
    Call::decode(bytes)
}
