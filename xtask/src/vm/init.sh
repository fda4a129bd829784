#!/bin/busybox sh
# The first process of the machine: ttyS0 is for the kernel and for what the harness reads, ttyS1 for the program.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/tmp TERM=dumb SCORE_VM=1
say() { echo "score-vm $*" > /dev/ttyS0; }
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t devpts pts /dev/pts
ulimit -l unlimited
for module in $(cat /modules/order); do insmod /modules/$module || say warning $module; done
ip link set lo up
ip link add wire0 type dummy || say warning no dummy link
ip addr add 10.9.0.1/24 dev wire0
ip link set wire0 up
rdma link add rxe0 type rxe netdev wire0 || say warning no rxe
read up rest < /proc/uptime
say ready $up
stty -F /dev/ttyS1 raw -echo
cd /given
setsid sh /command > /dev/ttyS1 2>&1 < /dev/null
code=$?
stty -F /dev/ttyS1 > /dev/null
say code $code
poweroff -f
