package main

import (
	"bufio"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// queue is a lock whose waiters queue, over plain connections. Its leases outlast the whole measurement.
type queue struct {
	acquire, release func(c *conn, key, owner string)
}

var queues = map[string]queue{
	"handoff-lock": {
		acquire: func(c *conn, key, owner string) {
			expect(c.do("LOCK", key, "TOKEN", owner, "EX", "600"), owner)
		},
		release: func(c *conn, key, owner string) { expect(c.do("UNLOCK", key, owner), "1") },
	},
	// What python-redis-lock says to Redis.
	"handoff-blpop": {
		acquire: func(c *conn, key, owner string) {
			for c.do("SET", key, owner, "NX", "EX", "600") != "OK" {
				c.do("BLPOP", key+":signal", "600")
			}
		},
		release: func(c *conn, key, owner string) {
			expect(c.do("EVAL", deleteAndSignal, "2", key, key+":signal", owner, "1000"), "1")
		},
	},
}

const deleteAndSignal = `
if redis.call("get", KEYS[1]) ~= ARGV[1] then return 0 end
redis.call("del", KEYS[2])
redis.call("lpush", KEYS[2], 1)
redis.call("pexpire", KEYS[2], ARGV[2])
return redis.call("del", KEYS[1])`

// handOffs lets all clients queue for one lock, for good, and returns the job: the lock goes through the hands of
// `count` clients, each of which holds it for 1 ms and queues again.
func handOffs(q queue) func(count int) {
	key := fmt.Sprintf("%s:%d", way, clients)
	permits := make(chan struct{})
	took := make(chan time.Duration)
	var released atomic.Pointer[time.Time]
	for i := range clients {
		c, owner := dial(), fmt.Sprintf("owner %d", i)
		go func() {
			for {
				q.acquire(c, key, owner)
				got := time.Now()
				if before := released.Load(); before != nil {
					took <- got.Sub(*before)
				}
				time.Sleep(time.Millisecond)
				<-permits
				now := time.Now()
				released.Store(&now)
				q.release(c, key, owner)
			}
		}()
	}
	return func(count int) {
		out := bufio.NewWriter(os.Stdout)
		defer out.Flush()
		for range count {
			permits <- struct{}{}
			fmt.Fprintln(out, float64((<-took).Nanoseconds())/1000)
		}
	}
}

// crowds do one thing and stay. Their memory is measured.
var crowds = map[string]func(){
	"idle": func() { connect() },
	"used": func() {
		for _, c := range connect() {
			expect(c.do("PING"), "PONG")
		}
	},
	// One of them holds the lock, and one more than `clients` are there.
	"waiting": func() {
		key := fmt.Sprintf("lock:memory:%d", os.Getpid())
		dial().do("LOCK", key, "TOKEN", token(), "EX", "600")
		for _, c := range connect() {
			c.send("LOCK", key, "TOKEN", token(), "EX", "600")
		}
	},
	"held": func() {
		c := dial()
		var tokens [100]string
		for i := 0; i < clients; i += len(tokens) {
			for j := range tokens {
				tokens[j] = token()
				c.send("TRYLOCK", fmt.Sprintf("lock:memory:%d:%d", os.Getpid(), i+j), "TOKEN", tokens[j], "EX", "600")
			}
			for _, mine := range tokens {
				expect(c.reply(), mine)
			}
		}
	},
}

func connect() []*conn {
	var all []*conn
	for range clients {
		all = append(all, dial())
	}
	return all
}
