#!/bin/busybox sh
# The first program of a guest in Bochs: loads KVM for Intel, runs /payload, and sends what it prints and its
# exit status over the second serial port. The first is the kernel's.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up
while read -r module parameters; do
    insmod /modules/$module $parameters || echo "RIG warning: module $module does not load"
done < /modules/order

exec 3> /dev/ttyS1
stty -F /dev/ttyS1 raw
{
    sh /command.sh < /dev/null
    echo $? > /status
} 2>&1 | cat >&3
printf '\nRIG rc=%s\n' "$(cat /status)" >&3
# The last one to close a line waits until all is sent.
exec 3>&-
poweroff -f
