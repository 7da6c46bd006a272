package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// A cycle is what client i does again and again with its own lock; it returns how many units that counts for.
type cycle func(i int, key string) int

// do executes a command and returns the text of the reply.
type do func(words ...string) string

// cycles makes, for each way, CLIENTS clients. `own` ways have a plain connection for each; the others share one
// connection of rueidis.
var cycles = map[string]func() cycle{
	"own-lock":     func() cycle { return lockCycle(connections()) },
	"own-set":      func() cycle { return setCycle(connections()) },
	"own-library":  func() cycle { return rueidislockCycle() },
	"shared-lock":  func() cycle { return lockCycle(multiplexed()) },
	"shared-set":   func() cycle { return setCycle(multiplexed()) },
	"shared-plain": func() cycle { return mixedCycle(multiplexed(), false) },
	"shared-mixed": func() cycle { return mixedCycle(multiplexed(), true) },
}

func connections() []do {
	var all []do
	for range clients {
		all = append(all, dial().do)
	}
	return all
}

// multiplexed returns the clients of one connection, over which rueidis sends the commands of all in a pipeline.
func multiplexed() []do {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true,
		AlwaysPipelining: true, PipelineMultiplex: -1,
	})
	check(err)
	execute := func(words ...string) string {
		reply := client.Do(context.Background(), client.B().Arbitrary(words...).Build())
		message, err := reply.ToMessage()
		if rueidis.IsRedisNil(err) {
			return ""
		}
		check(err)
		if message.IsInt64() {
			n, _ := message.ToInt64()
			return fmt.Sprint(n)
		}
		text, err := message.ToString()
		check(err)
		return text
	}
	var all []do
	for range clients {
		all = append(all, execute)
	}
	return all
}

func lockCycle(clients []do) cycle {
	return func(i int, key string) int {
		mine := token()
		expect(clients[i]("LOCK", key, "TOKEN", mine, "PX", fmt.Sprint(lease)), mine)
		expect(clients[i]("UNLOCK", key, mine), "1")
		return 1
	}
}

// setCycle acquires and releases as Redis's documentation shows.
func setCycle(clients []do) cycle {
	digest := clients[0]("SCRIPT", "LOAD",
		`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)
	return func(i int, key string) int {
		mine := token()
		expect(clients[i]("SET", key, mine, "NX", "PX", fmt.Sprint(lease)), "OK")
		expect(clients[i]("EVALSHA", digest, "1", key, mine), "1")
		return 1
	}
}

// mixedCycle is a SET or GET, or, with locks, one time in ten a lock cycle. It counts commands.
func mixedCycle(clients []do, locks bool) cycle {
	locked := lockCycle(clients)
	return func(i int, key string) int {
		switch kind := rand.IntN(10); {
		case kind == 0 && locks:
			locked(i, key)
			return 2
		case kind%2 == 0:
			expect(clients[i]("SET", "value:"+key, "some value"), "OK")
		default:
			clients[i]("GET", "value:"+key)
		}
		return 1
	}
}

func rueidislockCycle() cycle {
	acquire := rueidislockLock()
	return func(_ int, key string) int {
		release, err := acquire(never, key)
		check(err)
		check(release())
		return 1
	}
}

// repeat lets all clients do their cycles for so long.
func repeat(run cycle, prefix string, seconds float64) {
	begun := time.Now()
	end := begun.Add(time.Duration(seconds * float64(time.Second)))
	units := make([]int, clients)
	took := make([][]time.Duration, clients)
	var done sync.WaitGroup
	for i := range clients {
		done.Go(func() {
			key := fmt.Sprintf("%s:%d", prefix, i)
			for now := time.Now(); now.Before(end); {
				units[i] += run(i, key)
				next := time.Now()
				took[i] = append(took[i], next.Sub(now))
				now = next
			}
		})
	}
	done.Wait()
	elapsed := time.Since(begun)
	total, all := 0, []time.Duration{}
	for i := range clients {
		total += units[i]
		all = append(all, took[i]...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	fmt.Println(total, elapsed.Seconds(), all[len(all)/2].Microseconds(), all[len(all)*99/100].Microseconds())
}

// token returns a new owner's name, as long as a UUID.
func token() string { return fmt.Sprintf("%016x-%016x-42", rand.Uint64(), rand.Uint64()) }

func expect(reply, expected string) {
	if reply != expected {
		check(fmt.Errorf("the reply is %q, not %q", reply, expected))
	}
}
