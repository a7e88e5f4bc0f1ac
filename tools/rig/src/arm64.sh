#!/bin/busybox sh
# The first process of the guest: runs /program with the arguments in /arguments, one a line, and says how it ended.
set -u
export PATH=/bin
for name in mkdir mount poweroff xargs; do
    /bin/busybox ln -s busybox /bin/$name
done
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t debugfs debugfs /sys/kernel/debug
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
. /environment
set --
while IFS= read -r argument; do
    set -- "$@" "$argument"
done </arguments
cd /tmp
/program "$@" </dev/null >/dev/ttyAMA0 2>&1
echo "RIG rc=$?" >/dev/ttyAMA0
poweroff -f
