# Starts a Grid Engine cluster on a virtual LAN: the queue master on the first host, a host nodeN on
# each other host, and a parallel environment with control_slaves. $LINE runs as a job in it with
# two slots on each host.
#
# score-lan runs this script as root. $BED is a private directory with files from
# tests/src/testbed.rs. $TOOLS is the directory of unpacked Debian packages, if Grid Engine is not
# installed.
set -u
if [ -z "${IN_MOUNTS-}" ]; then
    # In this mount namespace the resolver knows the hosts, and unpacked programs find their parts
    # in /usr/lib/gridengine.
    IN_MOUNTS=1
    export IN_MOUNTS
    exec unshare --mount sh -c '. "${0%/*}/hosts.sh" &&
        { [ -d /usr/lib/gridengine ] ||
          mount -t overlay overlay -o "lowerdir=$TOOLS/usr/lib:/usr/lib" /usr/lib; } &&
        exec sh "$0"' "$0"
fi
hostname "node$LAN_HOST"
cd "$BED" || exit 125
programs=/usr/lib/gridengine
share=/usr/share/gridengine
[ -d "$share" ] || share=$TOOLS$share
SGE_ROOT=$BED/engine
SGE_CELL=default
SGE_QMASTER_PORT=6444
SGE_EXECD_PORT=6445
SGE_ND=1
LD_LIBRARY_PATH=$TOOLS/usr/lib/x86_64-linux-gnu:$programs
PATH=$programs:$PATH
export SGE_ROOT SGE_CELL SGE_QMASTER_PORT SGE_EXECD_PORT SGE_ND LD_LIBRARY_PATH PATH
# Repeats a command until it succeeds, for at most 100 s.
until_true() {
    tries=0
    until "$@" > refused 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -ge 1000 ]; then
            cat refused log.* >&2
            return 1
        fi
        sleep 0.1
    done
}
if [ "$LAN_HOST" -gt 0 ]; then
    until_true test -e ready || exit 125
    # The directory is private to the host. execd removes a job's directory in it when the job's
    # last task on the host has ended.
    mount -t tmpfs none tmp
    exec timeout 150 "$programs/sge_execd" > "log.$LAN_HOST" 2>&1
fi
mkdir -p engine/bin engine/lib engine/utilbin engine/default/common engine/master/job_scripts engine/hosts tmp
for folder in bin lib utilbin; do ln -s "$programs" "engine/$folder/lx-amd64"; done
ln -s "$share/util" engine/util
echo node0 > engine/default/common/act_qmaster
sed "s/sgeadmin/none/; s/^ignore_fqdn.*/ignore_fqdn true/; s/berkeleydb/classic/; s/libspoolb/libspoolc/
    s#^spooling_params.*#spooling_params $BED/engine/default/common;$BED/engine/master#
    s#^binary_path.*#binary_path $BED/engine/bin#; s#^qmaster_spool_dir.*#qmaster_spool_dir $BED/engine/master#" \
    "$share/default-bootstrap" > engine/default/common/bootstrap
sed "s#^execd_spool_dir.*#execd_spool_dir $BED/engine/hosts#; s/^min_uid.*/min_uid 0/; s/^min_gid.*/min_gid 0/" \
    "$share/default-configuration" > configuration
{
    "$programs/spoolinit" classic libspoolc "$BED/engine/default/common;$BED/engine/master" init
    "$programs/spooldefaults.bin" configuration "$BED/configuration"
    "$programs/spooldefaults.bin" complexes "$share/util/resources/centry"
    "$programs/spooldefaults.bin" usersets "$share/util/resources/usersets"
    "$programs/spooldefaults.bin" managers root
} > log.spool 2>&1
timeout 150 "$programs/sge_qmaster" > log.master 2>&1 &
master=$!
until_true qconf -sh
hosts=""
host=1
while [ "$host" -lt "$LAN_HOSTS" ]; do
    hosts="$hosts node$host"
    qconf -ah "node$host" > log.setup 2>&1
    host=$((host + 1))
done
{
    qconf -as node0
    qconf -Ap parallel
    qconf -sq | sed "s/^qname.*/qname all.q/; s/^hostlist.*/hostlist$hosts/; s/^pe_list.*/pe_list score/
        s/^slots.*/slots 2/; s/^load_thresholds.*/load_thresholds NONE/; s#^tmpdir.*#tmpdir $BED/tmp#" > queue
    qconf -Aq queue
    qconf -ssconf | sed 's/^schedule_interval.*/schedule_interval 0:0:1/' > scheduler
    qconf -Msconf scheduler
} >> log.setup 2>&1
: > ready
{
    # qsub does not pass these variables on.
    echo "PATH='$PATH' LD_LIBRARY_PATH='$LD_LIBRARY_PATH'"
    echo "export PATH LD_LIBRARY_PATH"
    echo "cd '$BED/..'"
    echo "sh -c \"\$LINE\" > '$BED/out' 2> '$BED/error'"
    echo "echo \$? > '$BED/code'"
} > job
qsub -V -pe score $((2 * (LAN_HOSTS - 1))) -o "$BED/log.job" -j y -S /bin/sh job >> log.setup 2>&1
until_true test -s code
cat out
cat error >&2
{
    qconf -ke all
    sleep 0.5
    qconf -km
} >> log.setup 2>&1
wait "$master"
exit "$(cat code)"
