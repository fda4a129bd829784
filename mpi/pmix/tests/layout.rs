//! Checks that the declarations of libpmix agree with its headers. The headers are those in the
//! directory PMIX_INCLUDE, or those of Debian's package libpmix-dev, which `cargo xtask test`
//! installs.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../src/abi.rs"]
#[allow(dead_code)]
mod abi;

#[path = "../src/keys.rs"]
#[allow(dead_code)]
mod keys;

use abi::*;
use std::mem::offset_of;

/// The directory of the headers.
fn include_folder() -> Option<PathBuf> {
    let debian = format!("/usr/lib/{}-linux-gnu/pmix2/include", std::env::consts::ARCH);
    let folders = [std::env::var_os("PMIX_INCLUDE").map(PathBuf::from), Some(debian.into())];
    folders.into_iter().flatten().find(|folder| folder.join("pmix_server.h").exists())
}

/// Expressions of C, and their expected values.
fn expected() -> Vec<(String, i64)> {
    macro_rules! members {
        ($c_type:literal, $type:ident, $($member:ident $($name:literal)?),*) => {
            [$({
                let name = [stringify!($member) $(, $name)?].last().copied().unwrap();
                (format!("offsetof({}, {name})", $c_type), offset_of!($type, $member) as i64)
            }),*]
        };
    }
    let mut values = Vec::new();
    values.extend(members!("pmix_proc_t", Proc, nspace, rank));
    values.extend(members!("pmix_data_array_t", DataArray, kind "type", size, array));
    values.extend(members!(
        "pmix_server_module_t",
        ServerModule,
        client_connected,
        client_finalized,
        abort,
        fence_nb,
        direct_modex,
        not_served "publish",
        log,
        not_served_either "allocate",
        group,
        fabric,
        client_connected2
    ));
    values.extend(members!("pmix_byte_object_t", ByteObject, bytes, size));
    values.extend(members!("pmix_info_t", Info, key, flags, value));
    values.extend(members!("pmix_value_t", InfoValue, kind "type", data));
    let mut value = |name: &str, value: i64| values.push((name.to_owned(), value));
    value("sizeof(pmix_proc_t)", size_of::<Proc>() as i64);
    value("sizeof(pmix_value_t)", size_of::<InfoValue>() as i64);
    for member in ["bo", "integer", "int32", "uint", "uint32"] {
        value(
            &format!("offsetof(pmix_value_t, data.{member})"),
            offset_of!(InfoValue, data) as i64,
        );
    }
    value("sizeof(pmix_info_t)", size_of::<Info>() as i64);
    value("PMIX_MAX_KEYLEN", MAX_KEY_LEN as i64);
    value("PMIX_GROUP_CONSTRUCT", GROUP_CONSTRUCT.into());
    value("PMIX_SIZE", TYPE_SIZE.into());
    value("PMIX_PROC", TYPE_PROC.into());
    value("PMIX_BYTE_OBJECT", TYPE_BYTE_OBJECT.into());
    value("sizeof(pmix_data_array_t)", size_of::<DataArray>() as i64);
    value("sizeof(pmix_status_t)", size_of::<Status>() as i64);
    value("sizeof(pmix_data_type_t)", size_of::<DataType>() as i64);
    value("PMIX_MAX_NSLEN", MAX_NAMESPACE_LEN as i64);
    value("PMIX_SUCCESS", SUCCESS.into());
    value("PMIX_ERR_TIMEOUT", ERR_TIMEOUT.into());
    value("PMIX_ERR_NOT_FOUND", ERR_NOT_FOUND.into());
    value("PMIX_ERR_NOT_SUPPORTED", ERR_NOT_SUPPORTED.into());
    value("PMIX_ERR_BAD_PARAM", ERR_BAD_PARAM.into());
    value("PMIX_OPERATION_SUCCEEDED", OPERATION_SUCCEEDED.into());
    value("(PMIX_RANK_WILDCARD)", RANK_WILDCARD.into());
    value("PMIX_BOOL", TYPE_BOOL.into());
    value("PMIX_STRING", TYPE_STRING.into());
    value("PMIX_INT", TYPE_INT.into());
    value("PMIX_INT32", TYPE_INT32.into());
    value("PMIX_UINT", TYPE_UINT.into());
    value("PMIX_UINT16", TYPE_UINT16.into());
    value("PMIX_UINT32", TYPE_UINT32.into());
    value("PMIX_DATA_ARRAY", TYPE_DATA_ARRAY.into());
    value("PMIX_PROC_RANK", TYPE_PROC_RANK.into());
    value("PMIX_REGEX", TYPE_REGEX.into());
    for (name, key) in keys::ALL {
        value(&format!("__builtin_strcmp(PMIX_{name}, {key:?})"), 0);
    }
    values
}

/// Whether a C file compiles.
fn compiles(include: &Path, name: &str, text: &str) -> bool {
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.arg("-I").arg(include).args(["-w", "-fsyntax-only"]).arg(&source);
    let output = gcc.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

#[test]
fn declarations_agree_with_the_headers() {
    let Some(include) = include_folder() else {
        return eprintln!("SKIPPED: libpmix-dev is not installed");
    };
    let start = "#include <stddef.h>\n#include <sys/types.h>\n#include <pmix_server.h>\n";
    let check = |(expression, value): &(String, i64)| {
        format!("_Static_assert({expression} == {value}, {expression:?});\n")
    };
    let text = expected().iter().map(check).collect::<String>();
    assert!(compiles(&include, "layout", &format!("{start}{text}")), "see above");
    let another_key = format!("__builtin_strcmp(PMIX_RANK, {:?})", keys::JOB_SIZE);
    for (expression, wrong_value) in [("sizeof(pmix_proc_t)", 1), (&another_key, 0)] {
        let wrong = check(&(expression.to_owned(), wrong_value));
        assert!(!compiles(&include, "wrong", &format!("{start}{wrong}")), "a test that can fail");
    }
    // The structure of libpmix must end within `later`, which has room for its other members.
    let module = "sizeof(pmix_server_module_t)";
    let behind = offset_of!(ServerModule, later);
    let bounds = format!(
        "_Static_assert({module} >= {behind} && {module} <= {}, \"{module}\");\n",
        size_of::<ServerModule>()
    );
    assert!(compiles(&include, "module", &format!("{start}{bounds}")), "see above");
}
