//! Keys of the PMIx standard, under their names in pmix_common.h without the prefix PMIX_.
//! `tests/layout.rs` compares them with that header.

macro_rules! keys {
    ($($name:ident: $key:literal;)*) => {
        $(
            #[doc = concat!("PMIX_", stringify!($name), ".")]
            pub const $name: &str = $key;
        )*
        /// All keys with their names.
        #[allow(dead_code, reason = "for the comparison with the header")]
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $key)),*];
    };
}

keys! {
    APPLDR: "pmix.aldr";
    APPNUM: "pmix.appnum";
    APP_INFO_ARRAY: "pmix.app.arr";
    APP_RANK: "pmix.apprank";
    APP_SIZE: "pmix.app.size";
    GLOBAL_RANK: "pmix.grank";
    GROUP_CONTEXT_ID: "pmix.grp.ctxid";
    GROUP_ENDPT_DATA: "pmix.grp.endpt";
    GROUP_MEMBERSHIP: "pmix.grp.mbrs";
    HOSTNAME: "pmix.hname";
    JOBID: "pmix.jobid";
    JOB_NUM_APPS: "pmix.job.napps";
    JOB_SIZE: "pmix.job.size";
    LOCALLDR: "pmix.lldr";
    LOCAL_PEERS: "pmix.lpeers";
    LOCAL_RANK: "pmix.lrank";
    LOCAL_SIZE: "pmix.local.size";
    LOG_STDERR: "pmix.log.stderr";
    LOG_STDOUT: "pmix.log.stdout";
    MAX_PROCS: "pmix.max.size";
    NODEID: "pmix.nodeid";
    NODE_INFO_ARRAY: "pmix.node.arr";
    NODE_MAP: "pmix.nmap";
    NODE_RANK: "pmix.nrank";
    NODE_SIZE: "pmix.node.size";
    NSDIR: "pmix.nsdir";
    NUM_NODES: "pmix.num.nodes";
    PROCDIR: "pmix.pdir";
    PROC_INFO_ARRAY: "pmix.pdata";
    PROC_MAP: "pmix.pmap";
    RANK: "pmix.rank";
    SERVER_NSPACE: "pmix.srv.nspace";
    SERVER_RANK: "pmix.srv.rank";
    SERVER_SHARE_TOPOLOGY: "pmix.srvr.share";
    SERVER_TMPDIR: "pmix.srvr.tmpdir";
    SERVER_TOOL_SUPPORT: "pmix.srvr.tool";
    SYSTEM_TMPDIR: "pmix.sys.tmpdir";
    TDIR_RMCLEAN: "pmix.tdir.rmclean";
    TIMEOUT: "pmix.timeout";
    TMPDIR: "pmix.tmpdir";
    UNIV_SIZE: "pmix.univ.size";
}
