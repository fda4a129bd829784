# Starts an sshd on each host of a virtual LAN except the first. $LINE runs on the first host when
# all of them answer. score-lan runs this script. $BED is a private directory with files from
# tests/src/testbed.rs. $TOOLS is the directory of unpacked Debian packages, if sshd is not
# installed.
set -u
cd "$BED" || exit 125
if [ "$LAN_HOST" -gt 0 ]; then
    LD_LIBRARY_PATH=$TOOLS/usr/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH
    echo $$ > "sshd.$LAN_HOST.pid"
    serve="exec $SSHD -D -e -f $BED/sshd_config"
    if [ "$(id -u)" -eq 0 ]; then
        # sshd that runs as root needs its own user and directory, which this mount namespace
        # provides.
        serve="mount --bind passwd /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd && $serve"
        exec unshare --mount sh -c "$serve" 2> "sshd.$LAN_HOST.log"
    fi
    exec sh -c "$serve" 2> "sshd.$LAN_HOST.log"
fi
host=1
while [ "$host" -lt "$LAN_HOSTS" ]; do
    tries=0
    until $SCORE_RSH -o BatchMode=yes "10.77.0.$((host + 1))" true 2> refused; do
        tries=$((tries + 1))
        if [ "$tries" -ge 200 ]; then
            cat refused "sshd.$host.log" >&2
            break 2
        fi
        sleep 0.05
    done
    host=$((host + 1))
done
cd .. || exit 125
sh -c "$LINE"
code=$?
cd "$BED" || exit 125
for file in sshd.*.pid; do kill "$(cat "$file")"; done
exit $code
