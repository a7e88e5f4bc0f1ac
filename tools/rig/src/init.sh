#!/bin/busybox sh
# The guest's first program, in its initial RAM disk. The guest's root is the host's, read-only over 9p
# under an overlay in RAM: whatever runs on the host runs here, and what it writes is gone afterwards.
# Only the directory named in /job/out is shared for writing, at the host's path. Then on to main.sh.
export PATH=/bin
/bin/busybox --install -s /bin

die() {
    echo "RIG error: $*"
    echo o > /proc/sysrq-trigger
    sleep 60
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
    insmod /modules/$module || echo "RIG warning: module $module does not load"
done

# Large messages and a cache: nothing on the host changes under a run.
share=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o ro,cache=loose,$share root /host || die "no root from the host"
mount -t tmpfs ram /ram
mkdir /ram/upper /ram/work
mount -t overlay -o lowerdir=/host,upperdir=/ram/upper,workdir=/ram/work root /new || die "no overlay"

mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount --move /dev /new/dev
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs run /new/run
mount -t debugfs debug /new/sys/kernel/debug
mount -t tracefs trace /new/sys/kernel/tracing
mount -t cgroup2 cgroup /new/sys/fs/cgroup
out=$(cat /job/out)
mkdir -p "/new$out"
mount -t 9p -o $share out "/new$out" || die "no directory for results"

ip link set lo up
hostname guest
mkdir /new/run/rig
cp -r /bin/busybox /job/main.sh /job/commands /new/run/rig/
exec switch_root /new /run/rig/busybox sh /run/rig/main.sh
