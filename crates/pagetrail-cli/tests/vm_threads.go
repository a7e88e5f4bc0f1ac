// A Go program as the guest of a virtual machine: threads, preemption by signals, a collector that runs beside them.
package main

import (
    "fmt"
    "os"
    "os/exec"
    "os/signal"
    "runtime"
    "sync"
    "syscall"
)

type node struct {
    left, right *node
    value       int
}

func grow(depth, value int) *node {
    if depth == 0 {
        return nil
    }
    return &node{grow(depth-1, 2*value), grow(depth-1, 2*value+1), value}
}

func (n *node) sum() int {
    if n == nil {
        return 0
    }
    return n.value + n.left.sum() + n.right.sum()
}

func main() {
    runtime.GOMAXPROCS(4)
    var wait sync.WaitGroup
    sums := make([]int, 8)
    for i := range sums {
        wait.Add(1)
        go func() {
            defer wait.Done()
            words := map[string]int{}
            for round := 0; round < 5; round++ {
                sums[i] += grow(10, i+1).sum()
                words[fmt.Sprint(sums[i]%1000)]++
            }
            sums[i] += len(words)
        }()
    }
    // Makes no call in its loop: it is stopped for the collector by a signal.
    stop, stopped := make(chan bool), make(chan int)
    var seen int
    go func() {
        spun := 0
        for i := 0; i < 20_000_000; i++ {
            spun += i & 3
        }
        stopped <- spun
        <-stop
    }()
    wait.Wait()
    runtime.GC()
    fmt.Println("sums", sums, "spun", <-stopped)
    close(stop)

    signals := make(chan os.Signal, 1)
    signal.Notify(signals, syscall.SIGUSR1)
    for i := 0; i < 5; i++ {
        syscall.Kill(os.Getpid(), syscall.SIGUSR1)
        <-signals
        seen++
    }
    fmt.Println("signals", seen)

    func() {
        defer func() { fmt.Println("recovered:", recover()) }()
        var none *node
        none.value = 1
    }()

    output, err := exec.Command("echo", "from a child").Output()
    fmt.Printf("%q %v\n", output, err)
    os.Exit(4)
}
