// Lock libraries of Go on one lock: spin MODE PORT KEY CLIENTS ROUNDS LEASE CONNECTIONS
//
// See ../run for the arguments and the output.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	goredispool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	rueidispool "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

const hold = 10 * time.Millisecond

// An acquisition that takes longer never comes.
const patience = 60 * time.Second

var (
	mode    = os.Args[1]
	address = "127.0.0.1:" + os.Args[2]
	key     = os.Args[3]
	clients = number(os.Args[4])
	rounds  = number(os.Args[5])
	lease   = time.Duration(number(os.Args[6])) * time.Millisecond

	timeouts atomic.Int64
)

// acquire takes the lock of that name and returns the function that releases it.
type acquire func(ctx context.Context, name string) (func() error, error)

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "wrong:", err)
		os.Exit(1)
	}
}

// plainLock is the baseline: LOCK, which may wait for long.
func plainLock(client *redis.Client) acquire {
	return func(ctx context.Context, name string) (func() error, error) {
		token, err := client.Do(ctx, "LOCK", name, "PX", lease.Milliseconds()).Text()
		return func() error { return client.Do(context.Background(), "UNLOCK", name, token).Err() }, err
	}
}

func redsyncLock(pool pools.Pool) acquire {
	locks := redsync.New(pool)
	return func(ctx context.Context, name string) (func() error, error) {
		mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(10_000))
		return func() error {
			_, err := mutex.Unlock()
			return err
		}, mutex.LockContext(ctx)
	}
}

// redsyncLockWithMethods calls the other methods of redsync's mutex once it is taken.
func redsyncLockWithMethods(pool pools.Pool) acquire {
	locks := redsync.New(pool)
	return func(ctx context.Context, name string) (func() error, error) {
		mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(10_000))
		if err := mutex.LockContext(ctx); err != nil {
			return nil, err
		}
		if extended, err := mutex.ExtendContext(ctx); !extended {
			return nil, fmt.Errorf("the lock is not extended: %w", err)
		}
		if valid, err := mutex.ValidContext(ctx); !valid {
			return nil, fmt.Errorf("the lock is not valid: %w", err)
		}
		return func() error {
			_, err := mutex.Unlock()
			return err
		}, nil
	}
}

func redislockLock(client *redis.Client) acquire {
	locks := redislock.New(client)
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	return func(ctx context.Context, name string) (func() error, error) {
		lock, err := locks.Obtain(ctx, name, lease, options)
		return func() error { return lock.Release(context.Background()) }, err
	}
}

// countingPool counts attempts that ran into redsync's own timeout, a twentieth of the lease: redsync itself just
// tries again.
type countingPool struct{ pools.Pool }

type countingConn struct{ pools.Conn }

func (pool countingPool) Get(ctx context.Context) (pools.Conn, error) {
	conn, err := pool.Pool.Get(ctx)
	return countingConn{conn}, err
}

func (conn countingConn) SetNX(name, value string, expiry time.Duration) (bool, error) {
	taken, err := conn.Conn.SetNX(name, value, expiry)
	if errors.Is(err, context.DeadlineExceeded) {
		timeouts.Add(1)
	}
	return taken, err
}

func main() {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: number(os.Args[7]), ReadTimeout: patience})
	var take acquire
	switch mode {
	case "lock":
		take = plainLock(client)
	case "redsync":
		take = redsyncLock(goredispool.NewPool(client))
	case "redsync-methods":
		take = redsyncLockWithMethods(goredispool.NewPool(client))
	case "redsync-rueidis":
		options := rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true}
		other, err := rueidis.NewClient(options)
		check(err)
		take = redsyncLock(countingPool{rueidispool.NewPool(rueidiscompat.NewAdapter(other))})
	case "redislock":
		take = redislockLock(client)
	default:
		check(fmt.Errorf("no such mode: %s", mode))
	}
	contest(take, client)
}

// contest lets all clients take the same lock, `rounds` times each.
func contest(take acquire, client *redis.Client) {
	var warm, done sync.WaitGroup
	var inside atomic.Int32
	begin := make(chan struct{})
	waits := make([]time.Duration, clients*rounds)
	var held atomic.Int64
	round := func(wait *time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		asked := time.Now()
		release, err := take(ctx, key)
		check(err)
		got := time.Now()
		if inside.Add(1) != 1 {
			check(errors.New("two clients hold the lock"))
		}
		time.Sleep(hold)
		inside.Add(-1)
		held.Add(int64(time.Since(got)))
		check(release())
		*wait = got.Sub(asked)
	}
	for i := range clients {
		warm.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			// Opens the connection, and loads the scripts.
			release, err := take(context.Background(), fmt.Sprintf("%s-warm-%d", key, i))
			check(err)
			check(release())
			warm.Done()
			<-begin
			for r := range rounds {
				round(&waits[i*rounds+r])
			}
		}()
	}
	warm.Wait()
	timeouts.Store(0)
	check(client.Echo(context.Background(), "begin "+key).Err())
	begun := time.Now()
	close(begin)
	done.Wait()
	elapsed := time.Since(begun)
	check(client.Echo(context.Background(), "end "+key).Err())

	sort.Slice(waits, func(i, j int) bool { return waits[i] < waits[j] })
	at := func(percent int) float64 { return ms(waits[len(waits)*percent/100]) }
	fmt.Printf("p50=%.2f p99=%.2f time=%.2f elapsed=%.2f timeouts=%d\n",
		at(50), at(99), float64(elapsed)/float64(held.Load()), ms(elapsed), timeouts.Load())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
