# A test for the machine's sh, with scored and scrun in /given: a user's job exceeds its memorylimit
# while cgroups of version 2 have all controllers. Prints the lines of a Rust test.
mount -t cgroup2 cgroup /sys/fs/cgroup || exit 1
mkdir -p /etc/score
echo "alice:x:61001:61001::/tmp:/bin/sh" >> /etc/passwd
hostname vm
export PATH=/given:$PATH
scored -v -page off -user 61990 2> /tmp/log &
for i in $(seq 300); do grep -q ready: /tmp/log && break; sleep 0.1; done
cat > /tmp/job <<'END'
scrun -scored=vm,nodes=1,memorylimit=30 sh -c 'x=$(head -c 1000000 /dev/zero | tr "\0" x); echo little' || exit
exec scrun -scored=vm,nodes=1,memorylimit=30 sh -c 'x=$(head -c 90000000 /dev/zero | tr "\0" x); echo much'
END
su alice -c "sh /tmp/job" > /tmp/out 2> /tmp/err
code=$?
left=$(find /sys/fs/cgroup -name 'scored-job-*')
if [ $code = 137 ] && [ "$(cat /tmp/out)" = little ] && [ -z "$left" ] &&
    grep -q "memorylimit of 30 MB exceeded on host vm" /tmp/err; then
    echo "test a_job_that_exceeds_its_memorylimit_in_cgroup_v2_is_named ... ok"
    echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    exit 0
fi
cat /tmp/out /tmp/err /tmp/log /sys/fs/cgroup/cgroup.controllers
echo "exit code $code, left: $left"
echo "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out"
exit 1
