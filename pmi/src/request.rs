//! The request in a message. Both versions have the same requests under different names. The
//! answers differ in the same way.

use crate::wire::{Message, WireVersion, encode};

/// A request of a process to its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first message: the version that the process uses.
    Init(WireVersion),
    /// Version 2: the process requests its rank. In version 1 the environment contains the rank.
    FullInit,
    /// The limits of names, keys and values.
    Maxes,
    /// The number of the program among those of the job.
    AppNumber,
    /// The number of processes that the job could have.
    UniverseSize,
    /// The name of the key-value space.
    SpaceName,
    /// Add an entry.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// The value of a key. The key may belong to another space, which the launcher does not have.
    Get {
        /// The name of the space. None means the space of the job.
        space: Option<String>,
        /// The key.
        key: String,
    },
    /// Version 2: a fact about the job. In version 1 such facts are entries of the space.
    JobAttribute(String),
    /// Version 2: set an attribute of the node, for the other processes of the node.
    PutNodeAttribute {
        /// The name.
        key: String,
        /// The value.
        value: String,
    },
    /// Version 2: get an attribute of the node.
    NodeAttribute {
        /// The name.
        key: String,
        /// Wait with the answer until there is a value.
        wait: bool,
    },
    /// Answered when all processes of the job have sent it. Then all entries are known.
    Fence,
    /// A command that is not supported, with the name of its answer.
    Unsupported(&'static str),
    /// The process will send no further requests.
    Finalize,
    /// End the job.
    Abort {
        /// The exit code.
        code: i32,
        /// The reason, if there is one.
        text: String,
    },
}

/// A message without a known request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// This version has no such command.
    #[error("the PMI command '{0}' is unknown")]
    UnknownCommand(String),
    /// A field is missing or invalid.
    #[error("the PMI command '{command}' has no valid field '{field}'")]
    Field {
        /// The command.
        command: String,
        /// The field.
        field: &'static str,
    },
    /// The version is not supported.
    #[error("PMI version '{0}' is not supported (supported: 1, 2)")]
    Version(String),
}

impl Request {
    /// Parses the request in a message.
    ///
    /// # Errors
    /// If the message contains no known request.
    pub fn parse(message: &Message) -> Result<Self, RequestError> {
        let missing = |field| RequestError::Field { command: message.command.clone(), field };
        let text = |field| message.field(field).map(str::to_owned).ok_or_else(|| missing(field));
        let entry = || Ok(Self::Put { key: text("key")?, value: text("value")? });
        let abort = || {
            let code = message.field("exitcode").map_or(Ok(1), str::parse);
            let text = message.field("message").unwrap_or_default().to_owned();
            Ok(Self::Abort { code: code.map_err(|_| missing("exitcode"))?, text })
        };
        match (message.version, message.command.as_str()) {
            (WireVersion::One, "init") => match text("pmi_version")?.as_str() {
                "1" => Ok(Self::Init(WireVersion::One)),
                "2" => Ok(Self::Init(WireVersion::Two)),
                other => Err(RequestError::Version(other.to_owned())),
            },
            (WireVersion::One, "get_maxes") => Ok(Self::Maxes),
            (WireVersion::One, "get_appnum") => Ok(Self::AppNumber),
            (WireVersion::One, "get_universe_size") => Ok(Self::UniverseSize),
            (WireVersion::One, "get_my_kvsname") | (WireVersion::Two, "job-getid") => {
                Ok(Self::SpaceName)
            }
            (WireVersion::One, "put") | (WireVersion::Two, "kvs-put") => entry(),
            (WireVersion::One, "get") => {
                Ok(Self::Get { space: text("kvsname").ok(), key: text("key")? })
            }
            (WireVersion::Two, "kvs-get") => {
                Ok(Self::Get { space: text("jobid").ok(), key: text("key")? })
            }
            (WireVersion::One, "barrier_in") | (WireVersion::Two, "kvs-fence") => Ok(Self::Fence),
            (_, "finalize") => Ok(Self::Finalize),
            (_, "abort") => abort(),
            (WireVersion::Two, "fullinit") => Ok(Self::FullInit),
            (WireVersion::Two, "info-getjobattr") => Ok(Self::JobAttribute(text("key")?)),
            (WireVersion::Two, "info-putnodeattr") => {
                Ok(Self::PutNodeAttribute { key: text("key")?, value: text("value")? })
            }
            (WireVersion::Two, "info-getnodeattr") => {
                let wait = message.field("wait").is_some_and(|word| word == "TRUE");
                Ok(Self::NodeAttribute { key: text("key")?, wait })
            }
            (version, command) => match unsupported_answer(version, command) {
                Some(answer) => Ok(Self::Unsupported(answer)),
                None => Err(RequestError::UnknownCommand(command.to_owned())),
            },
        }
    }
}

/// The name of the answer to a command that is known but not supported.
fn unsupported_answer(version: WireVersion, command: &str) -> Option<&'static str> {
    const NAMES: [(WireVersion, &str, &str); 10] = [
        (WireVersion::One, "publish_name", "publish_result"),
        (WireVersion::One, "unpublish_name", "unpublish_result"),
        (WireVersion::One, "lookup_name", "lookup_result"),
        (WireVersion::One, "spawn", "spawn_result"),
        (WireVersion::Two, "name-publish", "name-publish-response"),
        (WireVersion::Two, "name-unpublish", "name-unpublish-response"),
        (WireVersion::Two, "name-lookup", "name-lookup-response"),
        (WireVersion::Two, "spawn", "spawn-response"),
        (WireVersion::Two, "job-connect", "job-connect-response"),
        (WireVersion::Two, "job-disconnect", "job-disconnect-response"),
    ];
    let found = NAMES.iter().find(|(known, name, _)| (*known, *name) == (version, command));
    found.map(|(_, _, answer)| *answer)
}

/// Encodes answers in the format of the request.
#[derive(Debug, Clone, Copy)]
pub struct Answerer<'a> {
    /// The format of the request.
    pub version: WireVersion,
    /// Version 2: the client's name of the thread that has sent the request.
    pub thread: Option<&'a str>,
}

impl Answerer<'_> {
    /// The answer to a successful request, with these results.
    pub fn done(self, names: [&str; 2], results: &[(&str, &str)]) -> Vec<u8> {
        match self.version {
            WireVersion::One => encode(
                self.version,
                names[0],
                &[&[("rc", "0"), ("msg", "success")], results].concat(),
            ),
            WireVersion::Two => self.second(names[1], &[results, &[("rc", "0")]].concat()),
        }
    }

    /// The answer to a failed request, with this reason.
    pub fn failed(self, names: [&str; 2], reason: &str) -> Vec<u8> {
        match self.version {
            WireVersion::One => encode(self.version, names[0], &[("rc", "-1"), ("msg", reason)]),
            WireVersion::Two => self.second(names[1], &[("rc", "1"), ("errmsg", reason)]),
        }
    }

    /// The answer to a query for a value that may not exist.
    pub fn value(self, names: [&str; 2], value: Option<&str>) -> Vec<u8> {
        match (self.version, value) {
            (_, Some(value)) => self.done(names, &[("found", "TRUE"), ("value", value)]),
            (WireVersion::One, None) => {
                let fields = [("rc", "-1"), ("msg", "key_not_found"), ("value", "unknown")];
                encode(self.version, names[0], &fields)
            }
            (WireVersion::Two, None) => self.second(names[1], &[("found", "FALSE"), ("rc", "0")]),
        }
    }

    fn second(self, name: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        let thread: Vec<_> = self.thread.iter().map(|thread| ("thrid", *thread)).collect();
        encode(WireVersion::Two, name, &[&thread, fields].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Decoder;

    fn parse(bytes: &[u8]) -> Result<Request, RequestError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        Request::parse(&decoder.next_message().unwrap().unwrap())
    }

    fn second(text: &str) -> Vec<u8> {
        format!("{:>6}{text}", text.len()).into_bytes()
    }

    #[test]
    fn both_versions_encode_the_same_requests() {
        let (key, value) = ("a".to_owned(), "b".to_owned());
        for (first, other, request) in [
            ("cmd=get_my_kvsname\n", "cmd=job-getid;", Request::SpaceName),
            (
                "cmd=put kvsname=k key=a value=b\n",
                "cmd=kvs-put;key=a;value=b;",
                Request::Put { key: key.clone(), value },
            ),
            (
                "cmd=get kvsname=k key=a\n",
                "cmd=kvs-get;jobid=k;srcid=1;key=a;",
                Request::Get { space: Some("k".into()), key },
            ),
            ("cmd=barrier_in\n", "cmd=kvs-fence;", Request::Fence),
            ("cmd=finalize\n", "cmd=finalize;", Request::Finalize),
            (
                "cmd=abort exitcode=7 message=no\n",
                "cmd=abort;exitcode=7;message=no;",
                Request::Abort { code: 7, text: "no".into() },
            ),
            ("cmd=abort\n", "cmd=abort;", Request::Abort { code: 1, text: String::new() }),
        ] {
            assert_eq!(parse(first.as_bytes()), Ok(request.clone()), "{first}");
            assert_eq!(parse(&second(other)), Ok(request), "{other}");
        }
    }

    #[test]
    fn commands_of_the_other_version_and_missing_fields_are_named() {
        for (bytes, expected) in [
            (b"cmd=kvs-put key=a value=b\n".to_vec(), "the PMI command 'kvs-put' is unknown"),
            (second("cmd=barrier_in;"), "the PMI command 'barrier_in' is unknown"),
            (b"cmd=put key=a\n".to_vec(), "the PMI command 'put' has no valid field 'value'"),
            (
                b"cmd=abort exitcode=x\n".to_vec(),
                "the PMI command 'abort' has no valid field 'exitcode'",
            ),
            (
                b"cmd=init pmi_version=3\n".to_vec(),
                "PMI version '3' is not supported (supported: 1, 2)",
            ),
        ] {
            assert_eq!(parse(&bytes).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn an_unsupported_request_gets_an_answer() {
        assert_eq!(
            parse(b"mcmd=spawn\nnprocs=2\nendcmd\n"),
            Ok(Request::Unsupported("spawn_result"))
        );
        assert_eq!(
            parse(&second("cmd=name-publish;name=a;port=b;")),
            Ok(Request::Unsupported("name-publish-response"))
        );
    }

    #[test]
    fn answers_have_the_form_of_their_version() {
        let names = ["get_result", "kvs-get-response"];
        let one = Answerer { version: WireVersion::One, thread: None };
        let two = Answerer { version: WireVersion::Two, thread: Some("0x1") };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(one.value(names, Some("v w"))),
            "cmd=get_result rc=0 msg=success found=TRUE value=v\\ w\n"
        );
        assert_eq!(
            text(one.value(names, None)),
            "cmd=get_result rc=-1 msg=key_not_found value=unknown\n"
        );
        assert_eq!(
            text(two.value(names, Some("v"))),
            "    63cmd=kvs-get-response;thrid=0x1;found=TRUE;value=v;rc=0;".replace(
                "63",
                &format!("{}", "cmd=kvs-get-response;thrid=0x1;found=TRUE;value=v;rc=0;".len())
            )
        );
        assert!(
            text(two.value(names, None))
                .ends_with("cmd=kvs-get-response;thrid=0x1;found=FALSE;rc=0;")
        );
        assert!(text(two.failed(names, "why")).ends_with("thrid=0x1;rc=1;errmsg=why;"));
        assert_eq!(text(one.failed(names, "why")), "cmd=get_result rc=-1 msg=why\n");
    }
}
