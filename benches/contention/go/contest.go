package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// acquire waits for the lock of that name and returns the function that releases it.
type acquire func(ctx context.Context, name string) (func() error, error)

// contests makes, for each way, what all clients acquire with.
var contests = map[string]func() acquire{
	"lock":        lockgateLock,
	"redsync":     redsyncLock,
	"redislock":   redislockLock,
	"rueidislock": rueidislockLock,
	"blpop":       blpopLock,
}

var never = context.Background()

// Once no client begins anew, the others get the lock within this time and ten times the sum of their holds, or never.
const patience = 5 * time.Second

// redisClient has a connection for each client, which may wait for long.
func redisClient() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, PoolSize: clients, ReadTimeout: time.Minute})
}

func lockgateLock() acquire {
	client := redisClient()
	return func(ctx context.Context, name string) (func() error, error) {
		mine := token()
		err := client.Do(ctx, "LOCK", name, "TOKEN", mine, "PX", lease).Err()
		return func() error { return client.Do(never, "UNLOCK", name, mine).Err() }, err
	}
}

func redsyncLock() acquire {
	locks := redsync.New(goredis.NewPool(redisClient()))
	return func(ctx context.Context, name string) (func() error, error) {
		mutex := locks.NewMutex(name, redsync.WithExpiry(lease*time.Millisecond), redsync.WithTries(1_000_000))
		return func() error {
			_, err := mutex.Unlock()
			return err
		}, mutex.LockContext(ctx)
	}
}

func redislockLock() acquire {
	locks := redislock.New(redisClient())
	return func(ctx context.Context, name string) (func() error, error) {
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
		lock, err := locks.Obtain(ctx, name, lease*time.Millisecond, options)
		return func() error { return lock.Release(never) }, err
	}
}

func rueidislockLock() acquire {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{address}},
		KeyMajority:    1,
		NoLoopTracking: true,
		// After an attempt that took longer than this (20 ms by default), on a machine that stalls, WithContext may wait
		// for ever: the library gives the lock back, and Redis does not push the library's own change to it.
		TryNextAfter: time.Second,
	})
	check(err)
	return func(ctx context.Context, name string) (func() error, error) {
		_, cancel, err := locker.WithContext(ctx, name)
		return func() error { cancel(); return nil }, err
	}
}

// blpopLock is no lock that can be used, since it has no lease: the least that a queue in Redis costs.
func blpopLock() acquire {
	client := redisClient()
	var once sync.Map
	return func(ctx context.Context, name string) (func() error, error) {
		release := func() error { return client.RPush(never, name, "free").Err() }
		if first, _ := once.LoadOrStore(name, &sync.Once{}); first != nil {
			first.(*sync.Once).Do(func() { check(release()) })
		}
		return release, client.BLPop(ctx, 0, name).Err()
	}
}

// acquisition is one turn of one client: when it asked, got the lock, and began to release it; the latter two are zero
// where it never got it.
type acquisition struct {
	lock             int
	asked, got, done time.Time
}

// contest lets all clients acquire `locks` locks, the first of them most often (Zipf), and hold each for hold µs. They
// begin 1 ms after the other: clients that poll at a fixed interval and begin together collide for long.
func contest(take acquire, key string, locks int, seconds float64, hold int) {
	pick := zipf(locks)
	inside := make([]atomic.Int32, locks)
	all := make([][]acquisition, clients)
	begun := time.Now()
	end := begun.Add(time.Duration(seconds * float64(time.Second)))
	ctx, cancel := context.WithDeadline(never, end.Add(patience+10*time.Duration(clients*hold)*time.Microsecond))
	defer cancel()
	turn := func(i int) {
		one := acquisition{lock: pick()}
		one.asked = time.Now()
		release, err := take(ctx, fmt.Sprintf("%s:%d", key, one.lock))
		if ctx.Err() != nil {
			all[i] = append(all[i], one)
			return
		}
		check(err)
		one.got = time.Now()
		if inside[one.lock].Add(1) != 1 {
			check(errors.New("two clients hold the lock"))
		}
		time.Sleep(time.Duration(hold) * time.Microsecond)
		inside[one.lock].Add(-1)
		one.done = time.Now()
		check(release())
		all[i] = append(all[i], one)
	}
	var finished sync.WaitGroup
	for i := range clients {
		finished.Go(func() {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Millisecond)))
			if seconds == 0 {
				turn(i)
			}
			for time.Now().Before(end) {
				turn(i)
			}
		})
	}
	finished.Wait()
	report(all)
}

// report prints "lock asked got done" for each acquisition, in µs of the machine's clock, and "lock asked - -" for one
// that never came.
func report(all [][]acquisition) {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, own := range all {
		for _, one := range own {
			if one.got.IsZero() {
				fmt.Fprintln(out, one.lock, one.asked.UnixMicro(), "- -")
				continue
			}
			fmt.Fprintln(out, one.lock, one.asked.UnixMicro(), one.got.UnixMicro(), one.done.UnixMicro())
		}
	}
}

// zipf returns the choice of one of n, the k-th with a probability that is proportional to 1/k.
func zipf(n int) func() int {
	sums, sum := make([]float64, n), 0.0
	for k := range n {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func() int { return min(n-1, sort.SearchFloat64s(sums, rand.Float64()*math.Nextafter(sum, 0))) }
}
