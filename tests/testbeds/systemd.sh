# Runs systemd as the first process of a PID namespace, on this machine's files with a private
# overlay, with scored's unit installed. $LINE runs as one of its services. Needs root. $BED is a
# private directory in $SCENE with files from tests/src/testbed.rs. Exit code 77 means that this
# machine does not allow this.
set -u
# Options that each mount has, and those of cgroups version 2.
COMMON='rw|ro|nosuid|nodev|noexec|relatime|nsdelegate|memory_recursiveprot|favordynmods'
# Runs a function for each cgroup hierarchy, with its mount point, type, controllers, and our group
# in it.
hierarchies() {
    while read -r _ point kind options _; do
        controllers=$(echo "$options" | tr , '\n' | grep -vxE "$COMMON" | paste -sd, -)
        case $kind in
        cgroup) group=$(awk -F: -v "controllers=$controllers" '$2 == controllers { print $3 }' /proc/self/cgroup) ;;
        cgroup2) group=$(sed -n 's/^0:://p' /proc/self/cgroup) ;;
        *) continue ;;
        esac
        "$1" "$point" "$kind" "$controllers" "$group" || return
    done < "$BED/mounts"
}
enter() {
    group_dir=$1${4%/}/$GROUP
    mkdir "$group_dir" && echo "$group_dir" >> "$BED/groups" || return
    # A cpuset group accepts processes only after it has got processors.
    for file in cpuset.cpus cpuset.mems; do
        [ "$2" = cgroup2 ] || [ ! -e "$group_dir/$file" ] || cat "$1$4/$file" > "$group_dir/$file"
    done
    echo $$ > "$group_dir/cgroup.procs"
}
mount_again() {
    mkdir -p "$ROOT$1"
    case $2,$3 in
    cgroup2,*) mount -t cgroup2 cgroup2 "$ROOT$1" ;;
    *,name=*) mount -t cgroup -o "none,$3" cgroup "$ROOT$1" ;;
    *) mount -t cgroup -o "$3" cgroup "$ROOT$1" ;;
    esac
}
case ${STEP-outside} in
outside)
    # Each hierarchy gets a private group, so that systemd sees only its own groups.
    GROUP=score-bed-$$
    : > "$BED/groups"
    cat /proc/self/mounts > "$BED/mounts"
    export GROUP
    STEP=enter sh "$0" > "$BED/log" 2>&1
    code=$?
    tries=0
    while read -r group; do
        # The last processes may still be exiting.
        until find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || [ "$tries" -ge 100 ]; do
            tries=$((tries + 1))
            sleep 0.1
        done
    done < "$BED/groups"
    cat "$BED/out"
    cat "$BED/error" >&2
    [ -e "$BED/code" ] && exit "$(cat "$BED/code")"
    cat "$BED/log" >&2
    [ "$code" -eq 77 ] && exit 77
    exit 125
    ;;
enter)
    hierarchies enter || exit 77
    STEP=mounts
    export STEP
    exec unshare --pid --mount --net --uts --ipc --cgroup --fork --kill-child sh "$0"
    ;;
mounts)
    ROOT=$BED/root
    mkdir "$ROOT" "$BED/layer" &&
        mount --make-rprivate / && mount -t tmpfs none "$BED/layer" &&
        mkdir "$BED/layer/upper" "$BED/layer/work" &&
        mount -t overlay -o "lowerdir=/,upperdir=$BED/layer/upper,workdir=$BED/layer/work" none "$ROOT" ||
        exit 77
    # Files in $SCENE are visible outside of the overlay.
    mkdir -p "$ROOT$SCENE" && mount --bind "$SCENE" "$ROOT$SCENE" || exit 77
    mount -t proc proc "$ROOT/proc" && mount -t sysfs -o ro sysfs "$ROOT/sys" &&
        mount -t tmpfs -o mode=755 none "$ROOT/sys/fs/cgroup" && hierarchies mount_again || exit 77
    for folder in dev run etc/systemd/system var/scored var/lib; do
        mkdir -p "$ROOT/$folder" && mount -t tmpfs -o mode=755 none "$ROOT/$folder" || exit 77
    done
    mkdir "$ROOT/dev/pts" "$ROOT/dev/shm"
    # Device nodes are private, because systemd sets the owner and mode of some. There is no
    # console.
    for node in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
        # shellcheck disable=SC2086
        set -- $node
        mknod -m 666 "$ROOT/dev/$1" c 1 "$2" || exit 77
    done
    mknod -m 666 "$ROOT/dev/tty" c 5 0
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$ROOT/dev/pts"
    mount -t tmpfs -o mode=1777 none "$ROOT/dev/shm"
    ln -s pts/ptmx "$ROOT/dev/ptmx"
    cp "$BED"/units/* "$ROOT/etc/systemd/system"
    hostname bed
    mkdir "$ROOT/run/old" && cd "$ROOT" && pivot_root . run/old && umount -l /run/old || exit 77
    exec env -i container=score PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /usr/lib/systemd/systemd --log-target=journal --unit=bed.target < /dev/null
    ;;
esac
