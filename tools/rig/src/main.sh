# The guest's first process once its root is in place: runs the command, passes on what it prints, reports
# its exit status, and switches the guest off. Ports of the host: 1 output, 2 errors, 3 reports.
rig=/run/rig
busybox=$rig/busybox

# Pipes, as a command sees them under a shell on the host; cat carries the bytes to the host.
$busybox mkfifo $rig/out $rig/err
$busybox cat < $rig/out > /dev/vport0p1 &
cats=$!
$busybox cat < $rig/err > /dev/vport0p2 &
cats="$cats $!"

echo "RIG start" > /dev/vport0p3
$busybox setsid /bin/sh $rig/command.sh < /dev/null > $rig/out 2> $rig/err &
wait $!
status=$?

# What the command has printed is on its way. A process that it left behind may hold the pipes: then stop waiting.
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    alive=
    for cat in $cats; do
        [ -d /proc/$cat ] && ! $busybox grep -q '^State:.Z' /proc/$cat/status 2> /dev/null && alive=yes
    done
    [ -z "$alive" ] && break
    $busybox usleep 100000
done

$busybox sync
echo "RIG rc=$status" > /dev/vport0p3
echo o > /proc/sysrq-trigger
$busybox sleep 60
