
# A test for the machine's sh, with scored, scored-toolctl, scrun and scdb in /given: the stacks of
# a program that does not use SCore. With scope 1 of Yama, only ancestors may trace a process. With
# scope 2, no process of a user may trace another. Prints the lines of a Rust test.
scope=/proc/sys/kernel/yama/ptrace_scope
grep -q bob /etc/passwd || echo "bob:x:61002:61002::/tmp:/bin/sh" >> /etc/passwd
export PATH=/given:$PATH
cat > /tmp/stacks <<'END'
scrun -nodes=2 sh -c 'echo up; while :; do sleep 1; done' > /tmp/up 2> /tmp/scrun.err &
for i in $(seq 300); do [ "$(grep -c up /tmp/up)" = 2 ] && break; sleep 0.1; done
for i in 1 2; do
    echo $i > /tmp/want
    while [ "$(cat /tmp/scope)" != $i ]; do sleep 0.1; done
    scdb $!@$(hostname) stacks > /tmp/stacks.$i 2>&1
done
echo end > /tmp/want
kill $!
wait
END
echo 0 > /tmp/scope
touch /tmp/want
chmod 666 /tmp/want
su bob -c "sh /tmp/stacks" > /tmp/bob 2>&1 &
for i in $(seq 600); do
    want=$(cat /tmp/want)
    [ "$want" = end ] && break
    [ -n "$want" ] && echo $want > $scope && cp $scope /tmp/scope
    sleep 0.1
done
wait $!
echo 0 > $scope
if grep -q "0-1" /tmp/stacks.1 && ! grep -q ptrace_scope /tmp/stacks.1 &&
    grep -q "kernel.yama.ptrace_scope is 2" /tmp/stacks.2; then
    echo "test stacks_are_read_under_yama_scope_1_and_the_error_names_scope_2 ... ok"
    echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    exit 0
fi
tail -n 30 /tmp/bob /tmp/scrun.err /tmp/up /tmp/stacks.1 /tmp/stacks.2
echo "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out"
exit 1
