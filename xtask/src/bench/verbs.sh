# Runs in the machine: ROUNDS rounds of score-verbs and perftest alternately, then the pin-down
# cache. Each of two polling processes gets its own processor, as in score-verbs, because otherwise
# they would wait for ticks of the clock.
export PATH=/given:$PATH
peer() {
    name=$1
    shift
    taskset 1 "$name" -d rxe0 -x 1 -F "$@" > /dev/null 2>&1 &
    sleep 1
    echo "@$name"
    taskset 2 "$name" -d rxe0 -x 1 -F "$@" 10.9.0.1 || exit 1
    wait
}
for round in $(seq "$ROUNDS"); do
    peer ib_send_lat -s 8
    echo "@ours"
    score-verbs latency || exit 1
    peer ib_send_bw -s 16384
    echo "@ours"
    score-verbs messages || exit 1
    peer ib_write_bw -s 65536
    echo "@ours"
    score-verbs writes || exit 1
    score-verbs shares || exit 1
    echo "round $round"
done
echo "@pins"
scrun -group=local:2,nodes=2x1,network=verbs,message=quiet pmtest -pin -json -rounds 2 || exit 1
echo "@end"
