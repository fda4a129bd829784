//! systemd runs the service by the installed unit. Users submit jobs, the service runs again after
//! a restart or a kill, and nothing of any job is left when the service is stopped. The documented
//! commands install, configure and remove the service.

use std::fs;
use std::time::Duration;

use score_tests::testbed::Testbed;
use score_tests::{TestEnv, binaries, skip};

/// Time limit of the steps, which take tens of seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// The steps of the test, whose standard output the test compares.
const STEPS: &str = r#"
as() {
    setpriv --reuid="$1" --regid="$1" --clear-groups \
        scrun "-scored=$(hostname),$2,message=quiet" sh -c "$3"
}
state() { systemctl show -P "$1" scored; }
# A job of another user, whose processes have left their session.
hold() {
    rm -f held
    as 61002 nodes=1 'setsid sleep 3001 & echo held; touch file; exec sleep 3002' > held & held=$!
    until grep -q held held; do kill -0 $held || exit 9; sleep 0.05; done
}
systemctl start scored && state ActiveState
as 61001 nodes=2 'id -u'
hold
systemctl restart scored
wait $held; echo "restarted: $?"
as 61001 nodes=1 'echo again'
first=$(state MainPID)
kill -KILL "$first"
until [ "$(state MainPID)" != "$first" ] && [ "$(state ActiveState)" = active ]; do sleep 0.1; done
as 61001 nodes=1 'echo again'
hold
systemctl stop scored
wait $held; echo "stopped: $?"
state ActiveState
state Result
pgrep -f '^sleep 300|bin/scored'
ls -A /var/scored; ls -A /run/scored 2> none
find /sys/fs/cgroup -name 'scored-*'
systemd-analyze verify --man=no /etc/systemd/system/scored.service
echo "verified: $?"
"#;

// Promise (several users): With the installed unit of systemd users submit jobs; a restart or a
// kill ends the jobs, and the service starts again; a stop leaves nothing.
#[test]
fn the_unit_runs_under_systemd_and_leaves_no_process_or_file() {
    let env = TestEnv::new();
    let Some(job) = Testbed::systemd(&env, STEPS) else { return };
    let outcome = job.timeout(COMMAND_TIMEOUT).run();
    if outcome.code == 77 {
        return skip("systemd_testbed", "systemd cannot be the first process of a namespace here");
    }
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "active",
        "61001",
        "61001",
        "restarted: 70",
        "again",
        "again",
        "stopped: 70",
        "inactive",
        "success",
        "verified: 0",
    ];
    assert_eq!(lines, expected, "{outcome}");
}

/// Returns the lines of the first block below a heading that starts with ```` ```LANGUAGE ````,
/// without the indentation of the block.
fn block(document: &str, heading: &str, language: &str) -> String {
    let text = fs::read_to_string(binaries::root().join(document)).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).expect(heading);
    let fence = format!("```{language}");
    let start = section.lines().position(|line| line.trim_start() == fence).expect(heading);
    let lines = section.lines().skip(start + 1).map(str::trim_start);
    lines.take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect()
}

/// The steps of the test. PROGRAMS, SERVICE, OPTIONS and REMOVE are blocks of the documents.
const DOCUMENTED_STEPS: &str = r#"
# The programs are built already.
cargo() {
    mkdir -p /opt/score/bin /opt/score/lib/systemd/system /opt/score/lib/sysusers.d
    cp bin/* /opt/score/bin
    sed s,@PREFIX@,/opt/score, scored.service > /opt/score/lib/systemd/system/scored.service
    cp scored.sysusers /opt/score/lib/sysusers.d/scored.conf
}
as_user() {
    setpriv --reuid=61001 --regid=61001 --clear-groups sh -c ". /etc/profile.d/score.sh; $1"
}
PROGRAMS
SERVICE
as_user 'command -v scrun; scrun -scored=$(hostname),nodes=2,message=quiet system id -u'
ps -o user= -p "$(systemctl show -P MainPID scored)"
mkdir -p /etc/score /etc/systemd/system/scored.service.d
echo "$(hostname) address=127.0.0.1 cores=2 group=pcc" > /etc/score/scorehosts.db
cat > /etc/systemd/system/scored.service.d/override.conf << END
OPTIONS
END
systemctl daemon-reload
systemctl restart scored
as_user 'scrun -scored=pcc,nodes=2,message=quiet system id -u'
REMOVE
# The directory of jobs is a file system of this test.
ls -A /var/scored
ls -d /opt/score /etc/score /var/lib/scored /etc/systemd/system/scored* /etc/profile.d/score.sh
getent passwd scored
pgrep -x scored
"#;

// Promise (several users): The commands by which the documents install, configure and remove the
// service do so.
#[test]
fn the_documented_commands_install_configure_and_remove_the_service() {
    let env = TestEnv::new();
    let steps = DOCUMENTED_STEPS
        .replace("PROGRAMS", &block("docs/admin/install.md", "Programs", "sh"))
        .replace("SERVICE", &block("docs/admin/install.md", "One machine", "sh"))
        .replace("OPTIONS", &block("docs/admin/install.md", "Several machines", "ini"))
        .replace("REMOVE", &block("docs/admin/operations.md", "Remove SCore", "sh"));
    let Some(job) = Testbed::systemd(&env, &steps) else { return };
    for name in ["scored.service", "scored.sysusers"] {
        let source = binaries::root().join("dist").join(name);
        fs::copy(source, env.dir().join(name)).expect("the file is part of the source");
    }
    let system = env.dir().join("bin/system");
    fs::copy(binaries::program("system"), system).expect("our programs can be copied");
    let outcome = job.timeout(COMMAND_TIMEOUT).run();
    if outcome.code == 77 {
        return skip("systemd_testbed", "systemd cannot be the first process of a namespace here");
    }
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    let expected = ["/opt/score/bin/scrun", "61001", "61001", "scored", "61001", "61001"];
    assert_eq!(lines, expected, "{outcome}");
}
