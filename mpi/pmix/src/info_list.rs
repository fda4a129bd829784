//! Lists of keys and values for libpmix, which copies them.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;

use crate::abi::{
    ByteObject, DataArray, DataType, Proc, Status, TYPE_BOOL, TYPE_BYTE_OBJECT, TYPE_DATA_ARRAY,
    TYPE_PROC, TYPE_PROC_RANK, TYPE_REGEX, TYPE_SIZE, TYPE_STRING, TYPE_UINT16, TYPE_UINT32,
};
use crate::library::Functions;

/// A value of a fact.
#[derive(Debug)]
pub enum Value {
    /// PMIX_BOOL.
    Bool(bool),
    /// PMIX_UINT16.
    U16(u16),
    /// PMIX_UINT32.
    U32(u32),
    /// PMIX_PROC_RANK.
    Rank(u32),
    /// PMIX_SIZE.
    Size(usize),
    /// PMIX_BYTE_OBJECT.
    Bytes(Vec<u8>),
    /// PMIX_DATA_ARRAY of PMIX_PROC.
    Processes(Vec<Proc>),
    /// PMIX_STRING.
    Text(String),
    /// PMIX_REGEX: the list of hosts, to be compressed by libpmix.
    HostNames(String),
    /// PMIX_REGEX: the ranks of each host, to be compressed by libpmix.
    RanksOfHosts(String),
    /// PMIX_DATA_ARRAY.
    Array(Facts),
}

/// Keys and values.
pub type Facts = Vec<(&'static str, Value)>;

/// An array of pmix_info_t with the objects that its elements refer to. It is not freed on drop.
#[derive(Debug)]
pub struct InfoArray(DataArray);

impl InfoArray {
    /// The address of the first element, and the number of elements.
    pub fn elements(&mut self) -> (*mut c_void, usize) {
        (self.0.array, self.0.size)
    }

    /// An empty array.
    pub fn empty() -> Self {
        Self(DataArray { kind: 0, size: 0, array: null_mut() })
    }

    /// Frees the array, if libpmix has a function for this (version 5).
    pub fn free(self, functions: &Functions) {
        if let Some(free) = functions.info_free
            && !self.0.array.is_null()
        {
            // SAFETY: libpmix has made the array, and nothing uses it any more.
            unsafe { free(self.0.array, self.0.size) };
        }
    }
}

/// The type of a function that compresses a list.
type Compress = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status;

/// Makes an array of these facts.
///
/// # Errors
/// Returns one line if libpmix has refused a fact.
pub fn info_array(functions: &Functions, facts: &Facts) -> Result<InfoArray, String> {
    // SAFETY: the function has no arguments.
    let list = unsafe { (functions.info_list_start)() };
    facts.iter().try_for_each(|(key, value)| add(functions, list, key, value))?;
    let mut array = DataArray { kind: 0, size: 0, array: null_mut() };
    // SAFETY: the list was started above, and the function fills in the structure.
    let status = unsafe { (functions.info_list_convert)(list, &mut array) };
    functions.check("PMIx_Info_list_convert", status)?;
    // SAFETY: the list was started above, and is not used any more. The array is a copy.
    unsafe { (functions.info_list_release)(list) };
    Ok(InfoArray(array))
}

fn add(functions: &Functions, list: *mut c_void, key: &str, value: &Value) -> Result<(), String> {
    let c_string = |text: &str| {
        CString::new(text).map_err(|_| format!("{key}: the value contains a NUL byte"))
    };
    let c_key = c_string(key)?;
    let add = |value: *const c_void, kind: DataType| {
        // SAFETY: the list was started, the key is a C string, and the value has this type. All are
        // copied.
        let status = unsafe { (functions.info_list_add)(list, c_key.as_ptr(), value, kind) };
        functions.check(&format!("PMIx_Info_list_add({key})"), status)
    };
    let add_compressed = |text: &str, compress: Compress| {
        let (text, mut compressed) = (c_string(text)?, null_mut::<c_char>());
        // SAFETY: the text is a C string, and the function writes a pointer to a string. That
        // string is never freed, because there are only two for each namespace.
        let status = unsafe { compress(text.as_ptr(), &mut compressed) };
        functions.check(&format!("a regular expression ({key})"), status)?;
        add(compressed.cast_const().cast(), TYPE_REGEX)
    };
    match value {
        Value::Bool(flag) => add((&raw const *flag).cast(), TYPE_BOOL),
        Value::U16(number) => add((&raw const *number).cast(), TYPE_UINT16),
        Value::U32(number) => add((&raw const *number).cast(), TYPE_UINT32),
        Value::Rank(rank) => add((&raw const *rank).cast(), TYPE_PROC_RANK),
        Value::Size(number) => add((&raw const *number).cast(), TYPE_SIZE),
        Value::Bytes(bytes) => {
            let object = ByteObject { bytes: bytes.as_ptr(), size: bytes.len() };
            add((&raw const object).cast(), TYPE_BYTE_OBJECT)
        }
        Value::Processes(processes) => {
            let (size, array) = (processes.len(), processes.as_ptr().cast_mut().cast());
            let array = DataArray { kind: TYPE_PROC, size, array };
            add((&raw const array).cast(), TYPE_DATA_ARRAY)
        }
        Value::Text(text) => add(c_string(text)?.as_ptr().cast(), TYPE_STRING),
        Value::HostNames(names) => add_compressed(names, functions.generate_regex),
        Value::RanksOfHosts(ranks) => add_compressed(ranks, functions.generate_ppn),
        Value::Array(facts) => {
            let array = info_array(functions, facts)?;
            add((&raw const array.0).cast(), TYPE_DATA_ARRAY)
        }
    }
}
