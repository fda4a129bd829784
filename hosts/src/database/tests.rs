use super::*;

fn read_nothing(_: &Path) -> std::io::Result<Vec<u8>> {
    Err(ErrorKind::NotFound.into())
}

fn parse(text: &str) -> Result<Database, String> {
    Database::parse("db", text.as_bytes(), &read_nothing).map_err(|error| error.to_string())
}

const CLUSTER: &str = "\
/* A cluster of four hosts and a spare one. */
#define PCC cpugen=opteron speed=2.4 socks=2 cores=8 group=pcc,all network=ethernet,fast
#define SERVER serv.pccluster.org:8764
ethernet type=ethernet netdev=eth0
fast     type=ethernet links=eth1,eth2 mtu=9000 trusted=yes
fast/comp3.pccluster.org links=eth3
comp[0-2].pccluster.org PCC msgb=SERVER \\
    spare=comp9.pccluster.org
comp3.pccluster.org PCC address=10.0.0.3 rack=7
comp9.pccluster.org cores=8
~comp1.pccluster.org
comp3.pccluster.org group=odd // again
";

#[test]
fn a_cluster_as_documented_is_read() {
    let database = parse(CLUSTER).unwrap();
    assert_eq!(database.groups().collect::<Vec<_>>(), ["pcc", "all", "odd"]);
    let members: Vec<&str> =
        database.group("pcc").unwrap().map(|host| host.name.split('.').next().unwrap()).collect();
    assert_eq!(members, ["comp0", "comp1", "comp2", "comp3"]);
    let host = database.host("comp0").unwrap();
    assert_eq!((host.processors, host.sockets), (Some(8), Some(2)));
    assert_eq!((host.cpugen.as_deref(), host.speed.as_deref()), (Some("opteron"), Some("2.4")));
    assert_eq!(host.lock_server.as_deref(), Some("serv.pccluster.org:8764"));
    assert_eq!((host.dial(), host.defect), ("comp0.pccluster.org", false));
    assert!(database.host("comp1.pccluster.org").unwrap().defect);
    let host = database.host("comp3").unwrap();
    assert_eq!((host.dial(), host.groups.join(" ").as_str()), ("10.0.0.3", "pcc all odd"));
    assert_eq!(host.site_attributes["rack"], ["7"]);
}

#[test]
fn a_database_keeps_the_name_of_its_file_and_the_order_of_its_networks() {
    let database = parse(CLUSTER).unwrap();
    let networks: Vec<&str> =
        database.networks().iter().map(|network| network.name.as_str()).collect();
    assert_eq!((database.file(), networks), ("db", vec!["ethernet", "fast"]));
}

#[test]
fn the_kind_of_programs_of_a_host_is_that_of_its_record() {
    let database = parse("a bintype=linux\nb\n").unwrap();
    let bintype = |name: &str| database.host(name).unwrap().bintype.clone();
    assert_eq!((bintype("a").as_deref(), bintype("b")), (Some("linux"), None));
}

#[test]
fn a_list_of_hosts_has_neither_attributes_nor_networks() {
    let is_list = |text: &str| parse(text).unwrap().is_host_list();
    assert!(is_list("a\nb\n"));
    assert!(!is_list("a\nb cores=2\n") && !is_list("a\nn type=shmem\n"));
}

#[test]
fn a_database_has_at_most_the_largest_number_of_records() {
    assert_eq!(parse("n[0-65535]\n").unwrap().hosts().len(), crate::MAX_HOSTS);
    let error = parse("n[0-65535]\nm\n").unwrap_err();
    assert_eq!(error, "db:2: m: more than 65536 records");
}

#[test]
fn an_error_lists_the_hosts_of_a_database_without_groups() {
    let error = parse("alpha\nbeta\n").unwrap().unknown_name_error("x");
    assert_eq!(error, "no host or group of db; there are: alpha, beta");
}

#[test]
fn a_host_is_found_by_its_name_with_and_without_domain() {
    let named = |name: &str| Host { name: name.into(), ..Host::default() };
    for (name, hostname, same) in [
        ("comp1.x.org", "comp1.x.org", true),
        ("comp1.x.org", "comp1", true),
        ("comp1", "comp1.x.org", true),
        ("comp1.x.org", "comp1.y.org", false),
        ("comp1", "comp10", false),
        ("localhost", "comp1", true),
    ] {
        assert_eq!(named(name).is_machine(hostname), same, "{name} {hostname}");
    }
    let virtual_one = Host { is_virtual: true, ..named("comp1") };
    assert!(!virtual_one.is_machine("comp1"));
}

#[test]
fn networks_have_settings_for_all_hosts_and_for_one_host() {
    let database = parse(CLUSTER).unwrap();
    let fast = database.network("fast").unwrap();
    assert_eq!((fast.device.as_str(), fast.is_trusted()), ("ethernet", true));
    assert_eq!(fast.links("comp0.pccluster.org"), ["eth1", "eth2"]);
    assert_eq!(fast.links("comp3.pccluster.org"), ["eth3"]);
    assert_eq!(fast.setting("comp3.pccluster.org", "mtu"), ["9000"]);
    let plain = database.network("ethernet").unwrap();
    assert_eq!((plain.links("comp0"), plain.is_trusted()), (&["eth0".to_owned()][..], false));
    let interfaces = |host: &str| {
        let interfaces = &database.host(host).unwrap().interfaces;
        interfaces.iter().map(|end| format!("{} {:?}", end.network, end.links)).collect::<Vec<_>>()
    };
    assert_eq!(interfaces("comp0"), ["ethernet [\"eth0\"]", "fast [\"eth1\", \"eth2\"]"]);
    assert_eq!(interfaces("comp3")[1], "fast [\"eth3\"]");
    let fast = &database.host("comp3").unwrap().interfaces[1];
    assert_eq!((fast.device.as_str(), fast.trusted), ("ethernet", true));
    let bare = parse("a network=agent-udp,n\nb\nn type=shmem\nn/a address=10.0.0.1").unwrap();
    let interfaces = &bare.host("a").unwrap().interfaces;
    let found: Vec<_> =
        interfaces.iter().map(|end| (end.device.as_str(), end.links.len())).collect();
    assert_eq!(found, [("agent-udp", 0), ("shmem", 1)]);
    assert_eq!(interfaces[0].network, "agent-udp");
    assert!(bare.host("b").unwrap().interfaces.is_empty());
    assert_eq!(plain.setting("comp0", "backoff"), [] as [&str; 0]);
}

#[test]
fn an_rdma_adapter_is_configured_for_all_hosts_and_for_one_host() {
    let text = "ib type=verbs device=mlx5_0 port=1 partition=0x8001 level=2\n\
                ib/b device=mlx5_1 gid=3\na network=ib\nb network=ib\nc network=verbs\n";
    let database = parse(text).unwrap();
    let addressing_of = |host: &str| {
        let end = &database.host(host).unwrap().interfaces[0];
        let pairs = end.addressing.iter().map(|(name, value)| format!("{name}={value}"));
        format!("{} {}", end.device, pairs.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(addressing_of("a"), "verbs device=mlx5_0 port=1 partition=0x8001 level=2");
    assert_eq!(addressing_of("b"), "verbs device=mlx5_1 port=1 gid=3 partition=0x8001 level=2");
    assert_eq!(addressing_of("c"), "verbs ");
}

// Promise (hosts): A database of SCore 5 is read; the preprocessor agrees with the compiler's.
#[test]
fn the_names_of_score_5_are_understood() {
    let text = "myrinet type=myrinet2k -firmware:file=/opt/score/mcp\n\
                shmem0 type=shmem -node=0\n\
                comp0 HOST smp=2 MSGB network=myrinet,shmem0 group=pcc\n";
    let defines = "#define HOST cpugen=pentium-iii speed=500\n#define MSGB msgbserv=(s.org:8764)\n";
    let database = parse(&format!("{defines}{text}")).unwrap();
    let host = database.host("comp0").unwrap();
    assert_eq!((host.processors, host.lock_server.as_deref()), (Some(2), Some("(s.org:8764)")));
    let myrinet = database.network("myrinet").unwrap();
    assert_eq!(myrinet.setting("comp0", "-firmware:file"), ["/opt/score/mcp"]);
}

#[test]
fn spares_replace_hosts_that_are_out_of_order() {
    let text = "a spare=x,y group=g\n~b spare=x,y group=g\n~c spare=y,x group=g\n\
                ~d spare=x group=g\nx cores=1\n~y cores=1\n";
    let database = parse(text).unwrap();
    let wanted: Vec<Host> = database.group("g").unwrap().cloned().collect();
    let available = database.available(wanted);
    let names: Vec<&str> = available.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["a", "x"]);
    assert_eq!(available.replaced, [("b".to_owned(), "x".to_owned())]);
    assert_eq!(available.missing, ["c", "d"]);
}

#[test]
fn a_list_of_defects_marks_hosts() {
    let mut database = parse("comp[0-3].x group=g\n").unwrap();
    database.mark_defects("list", b"comp1 // fan\ncomp[2-3]\n", &read_nothing).unwrap();
    let defects: Vec<bool> = database.hosts().iter().map(|host| host.defect).collect();
    assert_eq!(defects, [false, true, true, true]);
    for (list, expected) in [
        ("comp1\n\ncomp7\n", "list:3: comp7: no host or group of db; did you mean 'comp0'?"),
        ("comp1 comp2\n", "list:1: comp2: one host per line is expected"),
    ] {
        let error = database.mark_defects("list", list.as_bytes(), &read_nothing).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

// Promise (hosts): For a malformed database, an unknown host or group, a duplicate, or too few
// hosts the message has file, line, word and what is valid; nothing is started.
#[test]
fn an_error_names_file_line_word_and_remedy() {
    for (text, expected) in [
        ("a cores=x", "db:1: cores=x: a whole number above 0 is expected"),
        ("a cores=0", "db:1: cores=0: a whole number above 0 is expected"),
        ("a speed=fast", "db:1: speed=fast: a number is expected"),
        ("a speed=-1", "db:1: speed=-1: a number is expected"),
        ("a\nb cors=8", "db:2: cors: unknown attribute; did you mean 'cores'?"),
        ("a grop=x", "db:1: grop: unknown attribute; did you mean 'group'?"),
        ("a PCC", "db:1: PCC: neither an attribute (NAME=VALUE[,VALUE]...) nor a macro"),
        ("a cores = 8", "db:1: cores: neither an attribute"),
        ("a =8", "db:1: =8: ATTRIBUTE=VALUE is expected, without blanks"),
        ("a group=", "db:1: group=: a value is empty"),
        ("a group=x,,y", "db:1: group=x,,y: a value is empty"),
        ("cores=8 a", "db:1: cores=8: a line begins with the name"),
        (
            "a cores=8\na cores=8",
            "db:2: cores=8: this attribute takes one value, but line 1 already has cores=8",
        ),
        (
            "a smp=2 cores=2",
            "db:1: cores=2: this attribute takes one value, but line 1 already has smp=2",
        ),
        ("a cpugen=x,y", "db:1: cpugen=x,y: one value is expected"),
        ("a network=etherent", "db:1: etherent: unknown network; did you mean 'ethernet'?"),
        (
            "a network=sci",
            "db:1: sci: unknown network (this file has: agent-udp, ethernet, shmem, verbs)",
        ),
        ("a spare=b", "db:1: b: unknown host; did you mean 'a'?"),
        ("a group=b\nb group=g", "db:1: b: a host has this name too"),
        ("local", "db:1: local: 'local' is reserved (local:N are virtual hosts)"),
        ("local3", "db:1: local3: 'local3' is reserved"),
        ("a group=local", "db:1: local: 'local' is reserved"),
        ("a group=x+y", "db:1: x+y: '+' is not allowed in a name"),
        ("a:b cores=1", "db:1: a:b: ':' is not allowed in a name"),
        ("comp[0-", "db:1: comp[0-: '[' is not closed"),
        ("~", "db:1: ~: a name is expected"),
        ("/a mtu=1", "db:1: /a: a name is expected"),
        ("n/ mtu=1", "db:1: n/: a name is expected"),
        ("~a", "db:1: a: marked as out of order, but not a host"),
        ("a address=x\nb address=x", "db:2: address=x: a already has it"),
        ("n type=ethernt", "db:1: type=ethernt: unknown type of network; did you mean 'ethernet'?"),
        ("n type=pigeon", "db:1: type=pigeon: unknown type of network (one of ethernet,"),
        ("~n type=shmem", "db:1: ~n: a network cannot be marked"),
        ("n type=ethernet mut=9000", "db:1: mut: unknown attribute; did you mean 'mtu'?"),
        ("n type=ethernet trusted=perhaps", "db:1: trusted=perhaps: yes or no is expected"),
        ("n type=ethernet\na\nn/b mtu=1", "db:3: b: unknown host; did you mean 'a'?"),
        ("n type=ethernet\na\nm/a mtu=1", "db:3: m: unknown network; did you mean 'n'?"),
        ("n type=ethernet\na\nn/a trusted=yes", "db:3: trusted=yes: valid only in the record"),
        ("n type=verbs port=0", "db:1: port=0: a whole number from 1 to 255 is expected"),
        ("n type=verbs level=16", "db:1: level=16: a whole number from 0 to 15 is expected"),
        ("n type=verbs partition=red", "db:1: partition=red: a hexadecimal number such as 0x8001"),
        ("n type=ethernet device=x", "db:1: device=x: valid only for networks of type verbs"),
        ("n type=ethernet\na\nn/a port=2", "db:3: port=2: valid only for networks of type verbs"),
        ("a\n#define X\nb Y\u{7f}", "db:3: control character 0x7f"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn files_are_loaded_with_the_defects_in_their_directory() {
    let read = |path: &Path| match path.to_str() {
        Some("etc/db") => Ok(b"a group=g\nb group=g\n".to_vec()),
        Some("etc/scorehosts.defects") => Ok(b"b\n".to_vec()),
        _ => Err(ErrorKind::NotFound.into()),
    };
    let database = Database::load(Path::new("etc/db"), &read).unwrap();
    assert!(database.host("b").unwrap().defect && !database.host("a").unwrap().defect);
    let missing = Database::load(Path::new("gone"), &read).unwrap_err().to_string();
    assert!(missing.starts_with("gone: "), "{missing}");
}

#[test]
fn a_list_of_defects_may_be_missing_but_not_unreadable() {
    let load = |kind: ErrorKind| {
        let read = |path: &Path| match path.to_str() {
            Some("etc/db") => Ok(b"a\n".to_vec()),
            _ => Err(kind.into()),
        };
        Database::load(Path::new("etc/db"), &read).map_err(|error| error.to_string())
    };
    for kind in [ErrorKind::NotFound, ErrorKind::NotADirectory] {
        assert_eq!(load(kind).unwrap().hosts().len(), 1, "{kind}");
    }
    let error = load(ErrorKind::PermissionDenied).unwrap_err();
    assert!(error.starts_with("etc/scorehosts.defects: "), "{error}");
}
