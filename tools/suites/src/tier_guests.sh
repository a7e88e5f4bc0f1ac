#!/bin/busybox sh
# The first program of a guest of a guest: loads its modules, starts the agent of tiering where AGENT says where it is to
# listen, and the program whose memory is tiered, of the kind KIND and of MIB MiB. Its orders come by the second
# serial port. What it prints goes to the kernel's console.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
    insmod /modules/$module || echo "module $module does not load"
done
agent=0
if [ -n "$AGENT" ]; then
    /pagetrail tier agent --listen $AGENT &
    agent=$!
fi
/tier_guest $KIND $MIB /dev/ttyS1 $agent
status=$?
echo "the program has ended with $status"
[ $status = 3 ] && reboot -f
poweroff -f
