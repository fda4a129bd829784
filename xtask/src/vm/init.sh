#!/bin/busybox sh
# The first process of the machine. The kernel and the reports for the harness use ttyS0, the
# program's output uses ttyS1.
#
# One machine alone has RDMA over a dummy link. Each of two machines has two wires to the other one.
# wire0 carries rxe0.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /var
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/tmp TERM=dumb SCORE_VM=1
report() { echo "score-vm $*" > /dev/ttyS0; }
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t devpts pts /dev/pts
ulimit -l unlimited
machine=$(sed -n 's/.*score\.machine=\([0-9]\).*/\1/p' /proc/cmdline)
[ -n "$machine" ] && export SCORE_VM_MACHINE=$machine
for module in $(cat /modules/order ${machine:+/modules/wires}); do insmod /modules/$module || report warning $module; done
ip link set lo up
for n in 0 1; do
    if [ -n "$machine" ]; then
        for i in $(seq 50); do [ -e /sys/class/net/eth$n ] && break; sleep 0.1; done
        ip link set eth$n name wire$n || report warning no wire
    else
        ip link add wire$n type dummy || report warning no dummy link
    fi
    ip addr add 10.9.$n.${machine:-1}/24 dev wire$n
    ip link set wire$n up
done
rdma link add rxe0 type rxe netdev wire0 || report warning no rxe
read up rest < /proc/uptime
report ready $up
stty -F /dev/ttyS1 raw -echo
cd /given
setsid sh /command > /dev/ttyS1 2>&1 < /dev/null
code=$?
stty -F /dev/ttyS1 > /dev/null
report code $code
poweroff -f
