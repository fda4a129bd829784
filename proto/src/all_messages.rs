//! Every kind of message that crosses a socket between two parties, for tests of the decoders.

use serde::{Serialize, de::DeserializeOwned};

use crate::client_session::JobMessage;
use crate::frame::{self, Decoder};
use crate::job_control::{
    HopOrder, HopReport, ShepherdOrder, ShepherdReport, SwitchOrder, SwitchReport,
};
use crate::message::{Call, Greeting, JobRequest, Login, Reply, SingleUserRequest, UserRequest};
use crate::observation::MonitorMessage;
use crate::peer_message::PeerMessage;
use crate::server_message::{ServerMessage, SessionAnswer};

/// Fuzzing entry: decodes any bytes as a message of each kind of peer, in one piece and in two.
///
/// # Panics
/// If an accepted message differs after it has been encoded and decoded again.
pub fn fuzz(bytes: &[u8]) {
    check_stream::<Greeting>(bytes);
    check_stream::<SessionAnswer>(bytes);
    check_stream::<JobMessage<SingleUserRequest>>(bytes);
    check_stream::<JobMessage<Login>>(bytes);
    check_stream::<JobMessage<UserRequest>>(bytes);
    check_stream::<JobMessage<JobRequest>>(bytes);
    check_stream::<ServerMessage>(bytes);
    check_stream::<MonitorMessage>(bytes);
    check_stream::<ShepherdOrder>(bytes);
    check_stream::<ShepherdReport>(bytes);
    check_stream::<SwitchOrder>(bytes);
    check_stream::<SwitchReport>(bytes);
    check_datagram::<PeerMessage>(bytes);
    check_datagram::<HopOrder>(bytes);
    check_datagram::<HopReport>(bytes);
    check_datagram::<Call>(bytes);
    check_datagram::<Reply>(bytes);
}

fn check_stream<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let read = |chunks: [&[u8]; 2]| {
        let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
        for chunk in chunks {
            decoder.push(chunk);
            while let Ok(Some(message)) = decoder.next::<M>() {
                messages.push(message);
            }
        }
        messages
    };
    let expected = read([bytes, &[]]);
    let (left, right) = bytes.split_at(bytes.len() / 2);
    assert_eq!(read([left, right]), expected);
    for message in expected {
        let mut out = Vec::new();
        frame::encode(&message, &mut out).expect("it came in a frame");
        assert_eq!(read([&out, &[]]), [message]);
    }
}

fn check_datagram<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = frame::decode_datagram::<M>(bytes) {
        let encoded = frame::encode_datagram(&message).expect("it came in a datagram");
        assert_eq!(frame::decode_datagram::<M>(&encoded), Ok(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serializer};

    /// A message that is encoded as another message.
    #[derive(Debug, PartialEq, Deserialize)]
    struct UnstableMessage(u8);

    impl Serialize for UnstableMessage {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_u8(self.0 + 1)
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_message_of_a_stream_that_is_encoded_as_another_message_is_found() {
        check_stream::<UnstableMessage>(&[1, 0, 0, 0, 7]);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_datagram_that_is_encoded_as_another_datagram_is_found() {
        check_datagram::<UnstableMessage>(&[7]);
    }
}
