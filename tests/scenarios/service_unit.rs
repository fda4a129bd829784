//! systemd runs the service by the installed unit. Users submit jobs, the service runs again after
//! a restart or a kill, and nothing of any job is left when the service is stopped.

use std::time::Duration;

use score_tests::testbed::Testbed;
use score_tests::{TestEnv, skip};

/// Time limit of the steps, which take tens of seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// The steps of the test. Each prints a word on standard output.
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
until [ "$(state ActiveState)" = active ] && [ "$(state MainPID)" != "$first" ]; do sleep 0.1; done
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
