//! The declarations of libpmix, versions 4.2 to 5, that a server needs. `tests/layout.rs` compares
//! them with the headers of libpmix.

use std::ffi::{c_char, c_int, c_void};

/// pmix_status_t.
pub type Status = c_int;
/// pmix_data_type_t.
pub type DataType = u16;

/// PMIX_MAX_NSLEN, without the NUL byte.
pub const MAX_NAMESPACE_LEN: usize = 255;

/// PMIX_SUCCESS.
pub const SUCCESS: Status = 0;
/// PMIX_ERR_TIMEOUT.
pub const ERR_TIMEOUT: Status = -24;
/// PMIX_ERR_NOT_FOUND.
pub const ERR_NOT_FOUND: Status = -46;
/// PMIX_ERR_NOT_SUPPORTED.
pub const ERR_NOT_SUPPORTED: Status = -47;
/// PMIX_ERR_BAD_PARAM.
pub const ERR_BAD_PARAM: Status = -27;
/// PMIX_OPERATION_SUCCEEDED: the operation is done, and the callback will not be called.
pub const OPERATION_SUCCEEDED: Status = -157;

/// PMIX_RANK_WILDCARD: all ranks.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;

/// PMIX_BOOL.
pub const TYPE_BOOL: DataType = 1;
/// PMIX_STRING.
pub const TYPE_STRING: DataType = 3;
/// PMIX_SIZE.
pub const TYPE_SIZE: DataType = 4;
/// PMIX_INT.
pub const TYPE_INT: DataType = 6;
/// PMIX_INT32.
pub const TYPE_INT32: DataType = 9;
/// PMIX_UINT.
pub const TYPE_UINT: DataType = 11;
/// PMIX_UINT16.
pub const TYPE_UINT16: DataType = 13;
/// PMIX_UINT32.
pub const TYPE_UINT32: DataType = 14;
/// PMIX_PROC.
pub const TYPE_PROC: DataType = 22;
/// PMIX_BYTE_OBJECT.
pub const TYPE_BYTE_OBJECT: DataType = 27;
/// PMIX_DATA_ARRAY.
pub const TYPE_DATA_ARRAY: DataType = 39;
/// PMIX_PROC_RANK.
pub const TYPE_PROC_RANK: DataType = 40;
/// PMIX_REGEX.
pub const TYPE_REGEX: DataType = 49;

/// pmix_proc_t.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Proc {
    /// Name of the namespace, with a NUL byte at its end.
    pub nspace: [u8; MAX_NAMESPACE_LEN + 1],
    /// Rank.
    pub rank: u32,
}

/// pmix_data_array_t.
#[derive(Debug)]
#[repr(C)]
pub struct DataArray {
    /// Type of the elements.
    pub kind: DataType,
    /// Number of elements.
    pub size: usize,
    /// The elements.
    pub array: *mut c_void,
}

/// pmix_byte_object_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ByteObject {
    /// The first byte.
    pub bytes: *const u8,
    /// Number of bytes.
    pub size: usize,
}

/// PMIX_MAX_KEYLEN, without the NUL byte.
pub const MAX_KEY_LEN: usize = 511;

/// The part of pmix_value_t that this program reads.
#[repr(C)]
pub struct InfoValue {
    /// Type of the value.
    pub kind: DataType,
    /// The value.
    pub data: InfoData,
}

/// The part of the union in pmix_value_t that this program reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub union InfoData {
    /// PMIX_INT, PMIX_INT32, PMIX_UINT and PMIX_UINT32.
    pub integer: u32,
    /// PMIX_BYTE_OBJECT.
    pub bytes: ByteObject,
    /// PMIX_STRING.
    pub text: *const c_char,
    /// Reserves the size of the union, three words.
    pub room: [usize; 3],
}

/// pmix_info_t.
#[repr(C)]
pub struct Info {
    /// Key, with a NUL byte at its end.
    pub key: [u8; MAX_KEY_LEN + 1],
    /// Directives.
    pub flags: u32,
    /// Value.
    pub value: InfoValue,
}

/// pmix_op_cbfunc_t.
pub type OpCallback = extern "C" fn(Status, *mut c_void);
/// pmix_release_cbfunc_t.
pub type ReleaseCallback = extern "C" fn(*mut c_void);
/// pmix_modex_cbfunc_t.
pub type ModexCallback = unsafe extern "C" fn(
    Status,
    *const c_char,
    usize,
    *mut c_void,
    Option<ReleaseCallback>,
    *mut c_void,
);

/// pmix_dmodex_response_fn_t.
pub type FoundCallback = extern "C" fn(Status, *mut c_char, usize, *mut c_void);

/// pmix_server_client_connected2_fn_t.
pub type ClientConnected = extern "C" fn(
    *const Proc,
    *mut c_void,
    *mut c_void,
    usize,
    Option<OpCallback>,
    *mut c_void,
) -> Status;
/// pmix_server_client_finalized_fn_t.
pub type ClientFinalized =
    extern "C" fn(*const Proc, *mut c_void, Option<OpCallback>, *mut c_void) -> Status;
/// pmix_server_abort_fn_t.
pub type Abort = extern "C" fn(
    *const Proc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut Proc,
    usize,
    Option<OpCallback>,
    *mut c_void,
) -> Status;
/// pmix_server_fencenb_fn_t.
pub type Fence = extern "C" fn(
    *const Proc,
    usize,
    *const c_void,
    usize,
    *mut c_char,
    usize,
    Option<ModexCallback>,
    *mut c_void,
) -> Status;
/// pmix_server_dmodex_req_fn_t.
pub type DirectModex =
    extern "C" fn(*const Proc, *const Info, usize, Option<ModexCallback>, *mut c_void) -> Status;

/// pmix_info_cbfunc_t.
pub type InfoCallback = unsafe extern "C" fn(
    Status,
    *mut c_void,
    usize,
    *mut c_void,
    Option<ReleaseCallback>,
    *mut c_void,
);
/// PMIX_GROUP_CONSTRUCT, of pmix_group_operation_t.
pub const GROUP_CONSTRUCT: c_int = 0;
/// pmix_server_grp_fn_t.
pub type Group = extern "C" fn(
    c_int,
    *const c_char,
    *const Proc,
    usize,
    *const Info,
    usize,
    Option<InfoCallback>,
    *mut c_void,
) -> Status;

/// pmix_server_log_fn_t.
pub type Log = extern "C" fn(
    *const Proc,
    *const Info,
    usize,
    *const Info,
    usize,
    Option<OpCallback>,
    *mut c_void,
);

/// A member of [`ServerModule`] that the server does not support. libpmix answers such calls with
/// an error.
type NotServed = Option<extern "C" fn()>;

/// pmix_server_module_t, with room for members of later versions.
#[repr(C)]
pub struct ServerModule {
    /// The server uses `client_connected2` instead.
    pub client_connected: NotServed,
    /// A client calls PMIx_Finalize. It waits for the callback.
    pub client_finalized: Option<ClientFinalized>,
    /// A client calls PMIx_Abort. It waits for the callback.
    pub abort: Option<Abort>,
    /// All clients of this host that take part are in PMIx_Fence.
    pub fence_nb: Option<Fence>,
    /// A client requests the data of a rank of another host.
    pub direct_modex: Option<DirectModex>,
    /// publish, lookup, unpublish, spawn, connect, disconnect, register_events,
    /// deregister_events, listener, notify_event, query, tool_connected.
    pub not_served: [NotServed; 12],
    /// A client calls PMIx_Log. It waits for the callback.
    pub log: Option<Log>,
    /// allocate, job_control, monitor, get_credential, validate_credential, iof_pull, push_stdin.
    pub not_served_either: [NotServed; 7],
    /// All clients of this host that take part construct or destruct a group.
    pub group: Option<Group>,
    /// Information about networks.
    pub fabric: NotServed,
    /// A client calls PMIx_Init. It waits for the callback.
    pub client_connected2: Option<ClientConnected>,
    /// Members of later versions.
    pub later: [NotServed; 32],
}
