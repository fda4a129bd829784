# Starts a Slurm cluster on a virtual LAN: the controller on the first host, and a node nodeN on
# each other host. $LINE runs on the first host, inside an allocation of all nodes unless $OUTSIDE
# is set. score-lan runs this script as root. $BED is a private directory with files from
# tests/src/testbed.rs. $TOOLS is the directory of unpacked Debian packages, if Slurm is not
# installed.
set -u
if [ -z "${IN_MOUNTS-}" ]; then
    # In this mount namespace the resolver knows the names of nodes.
    IN_MOUNTS=1
    export IN_MOUNTS
    exec unshare --mount sh -c '. "${0%/*}/hosts.sh" && exec sh "$0"' "$0"
fi
hostname "node$LAN_HOST"
cd "$BED" || exit 125
library=$TOOLS/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$library:$library/slurm-wlm:$TOOLS/lib/x86_64-linux-gnu
SLURM_CONF=$BED/slurm.conf
PATH=$TOOLS/usr/bin:$PATH
export LD_LIBRARY_PATH SLURM_CONF PATH
wait_for_munge() {
    tries=0
    until [ -S munge/socket ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || { cat log/* >&2; exit 125; }
        sleep 0.02
    done
}
if [ "$LAN_HOST" -gt 0 ]; then
    wait_for_munge
    # Job steps outlive slurmd. They end with the PID namespace.
    unshare --pid --fork --kill-child --mount-proc \
        "$SLURMD" -D -f "$SLURM_CONF" -N "node$LAN_HOST" -d "$SLURMSTEPD" > "log/$LAN_HOST" 2>&1 &
    echo $! > "slurmd.$LAN_HOST.pid"
    wait $!
    exit 0
fi
"$MUNGED" --foreground --key-file="$BED/munge.key" --socket="$BED/munge/socket" \
    --pid-file="$BED/munge/pid" --log-file="$BED/munge/log" --seed-file="$BED/munge/seed" \
    > log/munge 2>&1 &
munge=$!
wait_for_munge
"$SLURMCTLD" -D -f "$SLURM_CONF" -c > log/controller 2>&1 &
controller=$!
tries=0
until [ "$(sinfo -h -t idle -o %D 2> refused)" = $((LAN_HOSTS - 1)) ]; do
    tries=$((tries + 1))
    if [ "$tries" -ge 300 ] || ! kill -0 "$controller"; then
        cat refused log/* >&2
        break
    fi
    sleep 0.05
done
allocate="salloc --quiet --nodes=$((LAN_HOSTS - 1))"
[ -z "${OUTSIDE-}" ] || allocate=""
(cd .. && exec timeout 120 $allocate sh -c "$LINE")
code=$?
# The controller's message to the other hosts may be lost, and a busy slurmd survives SIGTERM.
scontrol shutdown
wait "$controller"
for file in slurmd.*.pid; do kill -KILL "$(cat "$file")" 2> /dev/null; done
kill "$munge"
wait "$munge"
exit $code
