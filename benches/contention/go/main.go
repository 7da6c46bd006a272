// Locks from Go: contention WAY PORT CLIENTS
//
// The program connects CLIENTS clients of one way (see `contests`, `cycles`, `queues` and `crowds`), prints "ready" and
// the versions of its libraries, and executes one job for each line that it reads:
//
//	contest KEY LOCKS SECONDS HOLD_US     all clients acquire locks for so long, or once where SECONDS is 0. Prints a
//	                                      line for each acquisition (see report)
//	cycle KEY SECONDS                     each client acquires and releases its own lock. Prints the number of
//	                                      commands or cycles, the seconds, and p50 and p99 in µs
//	handoff COUNT                         each holder releases the lock after 1 ms, COUNT times. Prints, in µs, the
//	                                      times from the sending of the release to the next grant
//
// A "." ends the reply to each job.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

var (
	way     = os.Args[1]
	address = "127.0.0.1:" + os.Args[2]
	clients = number(os.Args[3])
)

// The lease of every lock, in ms.
const lease = 30_000

func main() {
	jobs := map[string]func(words []string){}
	switch {
	case contests[way] != nil:
		acquire := contests[way]()
		jobs["contest"] = func(words []string) {
			contest(acquire, words[1], number(words[2]), decimal(words[3]), number(words[4]))
		}
	case cycles[way] != nil:
		cycle := cycles[way]()
		jobs["cycle"] = func(words []string) { repeat(cycle, words[1], decimal(words[2])) }
	case queues[way].acquire != nil:
		run := handOffs(queues[way])
		jobs["handoff"] = func(words []string) { run(number(words[1])) }
	case crowds[way] != nil:
		crowds[way]()
	default:
		check(fmt.Errorf("no such way: %s", way))
	}
	fmt.Println("ready", versions())
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := strings.Fields(input.Text())
		jobs[words[0]](words)
		fmt.Println(".")
	}
}

// versions lists the libraries as name=version.
func versions() string {
	var list []string
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		name := strings.TrimPrefix(module.Path, "github.com/")
		list = append(list, name+"="+module.Version)
	}
	return strings.Join(append(list, "go="+info.GoVersion), " ")
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func decimal(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "wrong:", err)
		os.Exit(1)
	}
}
