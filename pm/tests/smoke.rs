//! The shortest ways through the library.

#![allow(unsafe_code, missing_docs)]

use score_pm::*;

fn send(context: &Context, to: u32, bytes: &[u8]) -> Result<()> {
    let buffer = context.get_send_buffer(to, bytes.len())?;
    // SAFETY: the buffer has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    context.send()
}

fn receive(context: &Context) -> Result<Vec<u8>> {
    let (at, len) = context.receive()?;
    // SAFETY: what receive answers is readable until release.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) }.to_vec();
    context.release_receive_buffer()?;
    Ok(bytes)
}

#[test]
fn messages_of_all_lengths_arrive_in_order_through_shmem_and_composite() {
    let device = Device::open("shmem", &["-nodes", "2"]).unwrap();
    let opened: Vec<_> = (0..2).map(|k| device.open_context(k).unwrap()).collect();
    let attached: Vec<_> = opened
        .iter()
        .enumerate()
        .map(|(k, context)| {
            context.bind_channel(0, k as u32).unwrap();
            Context::attach("shmem", context.create_attach_fd().unwrap()).unwrap()
        })
        .collect();
    let composite = Device::open("composite", &["-nodes", "2"]).unwrap();
    let ends: Vec<_> = attached
        .iter()
        .enumerate()
        .map(|(k, member)| {
            let end = composite.open_context(k).unwrap();
            end.associate_nodes(member, &[(0, 0), (1, 1)]).unwrap();
            assert_eq!(end.self_node(), Ok(k as u32));
            end
        })
        .collect();
    for round in 0..1000usize {
        let message: Vec<u8> = (0..1 + round * 8191 / 999).map(|i| (i + round) as u8).collect();
        send(&ends[0], 1, &message).unwrap();
        assert_eq!(receive(&ends[1]).unwrap(), message);
        send(&attached[1], 0, &message).unwrap();
        assert_eq!(receive(&attached[0]).unwrap(), message);
    }
    assert_eq!(receive(&ends[1]), Err(Error::NoBuffers));
    assert_eq!(device.counters(0).unwrap().sent, 1000);
    assert_eq!(device.counters(0).unwrap().received, 1000);
}
