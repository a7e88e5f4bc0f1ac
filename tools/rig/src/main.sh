# The guest's first process once its root is in place: runs the jobs one after the other, passes on what they
# print, reports the exit status of each, and switches the guest off. Ports of the host: 1 output, 2 errors,
# 3 reports.
rig=/run/rig
busybox=$rig/busybox
$busybox mkfifo $rig/out $rig/err

# Pipes, as a command sees them under a shell on the host; cat carries the bytes to the host. A mark says where
# the output of a job begins.
run() {
    $busybox cat < $rig/out > /dev/vport0p1 &
    cats=$!
    $busybox cat < $rig/err > /dev/vport0p2 &
    cats="$cats $!"
    {
        $busybox printf '\036RIG job\036'
        exec $busybox setsid /bin/sh $1
    } < /dev/null > $rig/out 2> $rig/err &
    wait $!
    status=$?

    # What the command has printed is on its way. A process that it left behind may hold the pipes: then stop
    # waiting.
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
}

echo "RIG start" > /dev/vport0p3
for command in $rig/commands/*; do
    # Processes that the job before has left behind hold the ports, and would disturb.
    $busybox kill -9 -1 2> /dev/null
    wait
    run $command
done
echo o > /proc/sysrq-trigger
$busybox sleep 60
