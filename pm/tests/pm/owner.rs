//! Tests of an owner's devices and contexts and of composites: permissions, states and return
//! codes.

use crate::testbed::*;
use score_pm::*;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

fn shmem(nodes: usize) -> Device {
    Device::open(ShmemOptions::new(nodes)).unwrap()
}

#[test]
fn only_known_types_and_options_open() {
    let adapter = Device::open(VerbsOptions::new(NetworkOptions::on_one_host(2))).is_ok();
    assert_eq!(type_list(), if adapter { &DEVICE_TYPES[..] } else { &DEVICE_TYPES[..3] });
    for unknown in ["myrinet", "sci", "ib-ts", "infiniband-fj", "ethernet-hxb", "x", ""] {
        assert_eq!(DeviceOptions::parse(unknown, &[]).err(), Some(Error::NoDevice), "{unknown}");
    }
    assert_eq!(Device::open(ShmemOptions::new(0)).err(), Some(Error::Invalid));
    assert_eq!(DeviceOptions::parse("composite", &["-channels", "2"]).err(), Some(Error::Invalid));
    let agent = Device::open(DeviceOptions::parse("agent-udp", &["-nodes", "2"]).unwrap()).unwrap();
    assert_eq!(agent.config().unwrap().kind, "ethernet");
}

#[test]
fn a_device_closes_when_its_contexts_are_closed() {
    let device = shmem(2);
    let context = device.open_context(1).unwrap();
    assert_eq!(device.open_context(1).err(), Some(Error::Busy));
    assert_eq!(device.open_context(2).err(), Some(Error::Invalid));
    assert_eq!(device.close(), Err(Error::Busy));
    context.close().unwrap();
    assert_eq!(context.close(), Err(Error::Invalid));
    assert_eq!(context.config().err(), Some(Error::Invalid));
    drop(device.open_context(1).unwrap());
    device.close().unwrap();
    assert_eq!(device.close(), Err(Error::Invalid));
    assert_eq!(device.open_context(0).err(), Some(Error::Invalid));
}

#[test]
fn contexts_of_one_channel_reach_each_other_and_no_other_channel() {
    let device = Device::open(ShmemOptions { channels: 2, ..ShmemOptions::new(2) }).unwrap();
    let contexts: Vec<_> = (0..4).map(|k| device.open_context(k).unwrap()).collect();
    assert_eq!(contexts[0].self_node(), Err(Error::Invalid));
    assert_eq!(contexts[0].get_send_buffer(1, 1), Err(Error::Invalid));
    assert_eq!(contexts[0].receive(), Err(Error::NoBuffers));
    assert_eq!(contexts[0].unbind_channel(), Err(Error::Invalid));
    assert_eq!(contexts[0].bind_channel(2, 0), Err(Error::Invalid));
    assert_eq!(contexts[0].bind_channel(0, 2), Err(Error::Invalid));
    for (k, context) in contexts.iter().enumerate() {
        context.bind_channel(k as u32 / 2, k as u32 % 2).unwrap();
    }
    assert_eq!(contexts[0].bind_channel(1, 0), Err(Error::Busy));
    send(&contexts[0], 1, b"zero").unwrap();
    send(&contexts[2], 1, b"one").unwrap();
    assert_eq!(receive(&contexts[1]).unwrap(), b"zero");
    assert_eq!(receive(&contexts[3]).unwrap(), b"one");
    contexts[1].unbind_channel().unwrap();
    contexts[3].unbind_channel().unwrap();
    contexts[3].bind_channel(0, 1).unwrap();
    assert_eq!(contexts[1].bind_channel(0, 1), Err(Error::Busy));
    send(&contexts[0], 1, b"moved").unwrap();
    assert_eq!(receive(&contexts[3]).unwrap(), b"moved");
    assert_eq!(device.counters(0).unwrap().sent, 3);
}

#[test]
fn a_context_that_was_handed_over_is_busy_until_it_is_unbound() {
    let device = shmem(2);
    let context = device.open_context(0).unwrap();
    assert_eq!(context.create_attach_fd().err(), Some(Error::Invalid));
    context.bind_channel(0, 0).unwrap();
    let fd = context.create_attach_fd().unwrap();
    assert_eq!(context.get_send_buffer(1, 8), Err(Error::Busy));
    assert_eq!(context.receive(), Err(Error::Busy));
    assert_eq!(context.send(), Err(Error::Io));
    assert_eq!(context.reset(), Err(Error::Busy));
    let attached = Context::attach("shmem", fd).unwrap();
    assert!(context.create_attach_fd().is_ok());
    attached.detach().unwrap();
    assert_eq!(attached.detach(), Err(Error::Invalid));
    context.unbind_channel().unwrap();
    assert_eq!(context.get_send_buffer(1, 8), Err(Error::Invalid));
    context.bind_channel(0, 0).unwrap();
    assert!(context.get_send_buffer(1, 8).is_ok());
}

#[test]
fn an_internode_context_that_was_used_is_not_handed_over() {
    let device =
        Device::open(EthernetOptions::udp(NetworkOptions::on_one_host(2), Vec::new())).unwrap();
    let contexts: Vec<_> = (0..2).map(|k| device.open_context(k).unwrap()).collect();
    for (node, context) in contexts.iter().enumerate() {
        context.bind_channel(0, node as u32).unwrap();
        // These calls do not count as use of the context.
        assert_eq!(
            (context.config().unwrap().nodes, context.self_node().unwrap()),
            (2, node as u32)
        );
        context.dump(&mut Vec::new()).unwrap();
    }
    send(&contexts[0], 1, b"used").unwrap();
    assert_eq!(contexts[0].create_attach_fd().err(), Some(Error::Busy));
    let attached = Context::attach("ethernet", contexts[1].create_attach_fd().unwrap()).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while attached.receive().is_err() {
        assert!(Instant::now() < end);
    }
    assert!(contexts[1].create_attach_fd().is_ok(), "a second descriptor of a handed-over context");
}

#[test]
fn privileged_functions_are_refused_on_an_attached_context() {
    let bed = TestBed::new("shmem", 2);
    let context = &bed.attached[0];
    let denied = Some(Error::Permission);
    assert_eq!(context.close().err(), denied);
    assert_eq!(context.bind_channel(0, 0).err(), denied);
    assert_eq!(context.unbind_channel().err(), denied);
    assert_eq!(context.create_attach_fd().err(), denied);
    assert_eq!(context.control_send(1, b"x").err(), denied);
    assert_eq!(context.is_send_stable().err(), denied);
    assert_eq!(context.save(&mut []).err(), denied);
    assert_eq!(context.restore(&[]).err(), denied);
    assert_eq!(bed.opened[0].detach(), Err(Error::Invalid));
    assert_eq!(bed.opened[0].is_send_stable(), Ok(()));
    send(&bed.attached[0], 1, b"x").unwrap();
    assert_eq!(receive(&bed.attached[1]).unwrap(), b"x");
}

#[test]
fn attaching_any_other_descriptor_is_einval() {
    let bed = TestBed::new("shmem", 2);
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert_eq!(Context::attach("shmem", file).err(), Some(Error::Invalid));
    let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
    a.send(&[7; 64]).unwrap();
    assert_eq!(Context::attach("shmem", b.into()).err(), Some(Error::Invalid));
    let fd = bed.opened[0].create_attach_fd().unwrap();
    let duplicate = fd.try_clone().unwrap();
    assert_eq!(Context::attach("nothing", fd.try_clone().unwrap()).err(), Some(Error::NoDevice));
    assert_eq!(Context::attach("composite", fd.try_clone().unwrap()).err(), Some(Error::Invalid));
    assert!(Context::attach("shmem", fd).is_ok());
    assert_eq!(Context::attach("shmem", duplicate).err(), Some(Error::Invalid), "single use");
}

#[test]
fn only_composites_have_members() {
    let bed = TestBed::new("shmem", 2);
    let context = &bed.contexts[0];
    assert_eq!(context.add_node(0, &bed.contexts[1], 1), Err(Error::NoSys));
    assert_eq!(context.remove_node(0), Err(Error::NoSys));
    assert_eq!(context.extract_node(0).err(), Some(Error::NoSys));
    assert_eq!(context.associate_nodes(&bed.contexts[1], &[(0, 1)]), Err(Error::NoSys));
    let composite = bed.composite.open_context(5).unwrap();
    assert_eq!(composite.create_attach_fd().err(), Some(Error::NoSys));
    assert_eq!(bed.composite.counters(0).err(), Some(Error::NoSys));
    assert_eq!(bed.composite.is_reachable(0), Ok(false));
}

#[test]
fn nodes_are_added_extracted_and_removed() {
    let bed = TestBed::new("shmem", 3);
    let composites = Device::open(CompositeOptions::new(3)).unwrap();
    let c = composites.open_context(0).unwrap();
    let other = composites.open_context(1).unwrap();
    let member = &bed.attached[0];
    assert_eq!(c.self_node(), Err(Error::Invalid));
    assert_eq!(c.config().unwrap().mtu, 0);
    assert_eq!(c.get_send_buffer(1, 8), Err(Error::Invalid));
    assert_eq!(c.add_node(3, member, 1), Err(Error::Invalid));
    assert_eq!(c.add_node(1, member, 3), Err(Error::Invalid));
    assert_eq!(c.add_node(1, &other, 1), Err(Error::Invalid), "a composite in a composite");
    c.add_node(0, member, 0).unwrap();
    assert_eq!(c.self_node(), Ok(0));
    c.add_node(1, member, 2).unwrap();
    assert_eq!(c.add_node(1, member, 1), Err(Error::Busy), "taken");
    assert_eq!(other.add_node(1, member, 1), Err(Error::Busy), "another's member");
    assert_eq!(member.detach(), Err(Error::Busy));
    let (found, node) = c.extract_node(1).unwrap();
    assert!(found.is_same(member) && node == 2);
    assert_eq!(c.extract_node(2).err(), Some(Error::Invalid));
    send(&c, 1, b"two").unwrap();
    assert_eq!(receive(&bed.attached[2]).unwrap(), b"two");
    assert_eq!(c.associate_nodes(member, &[(2, 1), (1, 1)]), Err(Error::Busy));
    assert_eq!(c.extract_node(2).err(), Some(Error::Invalid), "all or nothing");
    assert_eq!(c.associate_nodes(member, &[(2, 1), (2, 1)]), Err(Error::Invalid));
    c.remove_node(1).unwrap();
    assert_eq!(c.remove_node(1), Err(Error::Invalid));
    assert_eq!(c.remove_node(7), Err(Error::Invalid));
    c.remove_node(0).unwrap();
    assert_eq!(c.self_node(), Err(Error::Invalid));
    other.associate_nodes(member, &[(0, 0), (2, 1)]).unwrap();
    send(&other, 2, b"again").unwrap();
    assert_eq!(receive(&bed.attached[1]).unwrap(), b"again");
    other.close().unwrap();
    send(member, 1, b"alone").unwrap();
    assert_eq!(receive(&bed.attached[1]).unwrap(), b"alone");
    member.detach().unwrap();
}

#[test]
fn a_composite_and_its_member_exclude_each_other() {
    let bed = TestBed::new("composite", 2);
    let (end, member) = (&bed.contexts[0], &bed.attached[0]);
    end.get_send_buffer(1, 8).unwrap();
    assert_eq!(member.get_send_buffer(1, 8), Err(Error::Busy));
    assert_eq!(member.send(), Err(Error::Io), "the buffer is the composite's");
    end.send().unwrap();
    member.get_send_buffer(1, 8).unwrap();
    assert_eq!(end.get_send_buffer(1, 8), Err(Error::Busy));
    assert_eq!(end.send(), Err(Error::Io));
    assert_eq!(end.remove_node(1), Err(Error::Busy));
    member.send().unwrap();
    assert_eq!(end.close(), Ok(()));
}

#[test]
fn a_composite_of_two_members_receives_from_both_in_turn() {
    let _dog = Watchdog::new(300);
    let one = TestBed::new("shmem", 2);
    let two = TestBed::new("shmem", 2);
    let composites = Device::open(CompositeOptions::new(3)).unwrap();
    let c = composites.open_context(0).unwrap();
    c.associate_nodes(&one.attached[0], &[(0, 0), (1, 1)]).unwrap();
    c.add_node(2, &two.attached[0], 1).unwrap();
    send(&c, 1, b"one").unwrap();
    send(&c, 2, b"two").unwrap();
    assert_eq!(receive(&one.attached[1]).unwrap(), b"one");
    assert_eq!(receive(&two.attached[1]).unwrap(), b"two");
    fill(c.get_multicast_buffer(&[2, 1], 4).unwrap(), b"both");
    c.send().unwrap();
    assert_eq!(receive(&one.attached[1]).unwrap(), b"both");
    assert_eq!(receive(&two.attached[1]).unwrap(), b"both");
    while send(&one.attached[1], 0, b"flood").is_ok() {}
    send(&two.attached[1], 0, b"quiet").unwrap();
    let messages_before = (0..).find(|_| {
        let message = receive_surely(&c);
        let _ = send(&one.attached[1], 0, b"flood");
        message == b"quiet"
    });
    assert!(messages_before.unwrap() <= 64, "{messages_before:?} messages arrived first");
    c.before_select().unwrap();
    while receive(&c).is_ok() {}
    send(&two.attached[1], 0, b"ring").unwrap();
    assert_eq!(receive(&c).unwrap(), b"ring");
    c.after_select().unwrap();
}

#[test]
fn a_node_that_is_bound_again_starts_with_empty_queues() {
    let device = shmem(2);
    let a = device.open_context(0).unwrap();
    let b = device.open_context(1).unwrap();
    a.bind_channel(0, 0).unwrap();
    b.bind_channel(0, 1).unwrap();
    send(&a, 1, b"old binding").unwrap();
    b.unbind_channel().unwrap();
    device.mark_exited(1).unwrap();
    send(&a, 1, b"dropped").unwrap();
    b.bind_channel(0, 1).unwrap();
    assert_eq!(receive(&b), Err(Error::NoBuffers));
    send(&a, 1, b"new binding").unwrap();
    assert_eq!(receive(&b).unwrap(), b"new binding");
}

extern "C" fn on_idle_send() {
    IDLE_SENDS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}
static IDLE_SENDS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[test]
fn a_send_while_threads_are_idle_invokes_the_callback() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static IDLE: AtomicU32 = AtomicU32::new(0);
    let bed = TestBed::new("composite", 2);
    // SAFETY: the word is a static.
    unsafe { set_idle_word(&IDLE, on_idle_send) };
    send(&bed.contexts[0], 1, b"busy").unwrap();
    let before = IDLE_SENDS.load(Ordering::SeqCst);
    IDLE.store(1, Ordering::SeqCst);
    send(&bed.contexts[0], 1, b"idle").unwrap();
    IDLE.store(0, Ordering::SeqCst);
    assert!(IDLE_SENDS.load(Ordering::SeqCst) > before);
    // SAFETY: this removes the word.
    unsafe { set_idle_word(std::ptr::null(), on_idle_send) };
}
