// lockgate from go-redis: main HOST PORT locks|everything [PASSWORD]. Exits nonzero where something is
// not as promised. `locks` tries what works without a Redis behind lockgate, `everything` ordinary
// commands, too.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// withLock waits for the lock until the context ends, and does the work under it.
func withLock(ctx context.Context, client *redis.Client, key string, work func()) error {
	token := rand.Text()
	if err := client.Do(ctx, "LOCK", key, "TOKEN", token, "PX", 30_000).Err(); err != nil {
		return err
	}
	// Also where the context has ended meanwhile.
	defer client.Do(context.WithoutCancel(ctx), "UNLOCK", key, token)
	work()
	return nil
}

func check(holds bool, what string, details ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, "go-redis: "+what+"\n", details...)
		os.Exit(1)
	}
}

func oneAfterTheOther(ctx context.Context, client *redis.Client) {
	const tasks, times = 8, 25
	counter := 0
	var running sync.WaitGroup
	for range tasks {
		running.Go(func() {
			for range times {
				err := withLock(ctx, client, "go:counter", func() {
					value := counter
					time.Sleep(time.Millisecond)
					counter = value + 1
				})
				check(err == nil, "%v", err)
			}
		})
	}
	running.Wait()
	check(counter == tasks*times, "%d of %d counted", counter, tasks*times)
}

// untilWaiting returns when so many wait for the lock.
func untilWaiting(ctx context.Context, client *redis.Client, key string, waiters int64) {
	for {
		reply, err := client.Do(ctx, "LOCKINFO", key).Result()
		check(err == nil, "LOCKINFO: %v", err)
		var found any
		switch info := reply.(type) {
		case map[any]any:
			found = info["waiters"]
		case []any: // RESP2 has no maps
			found = info[slices.Index(info, any("waiters"))+1]
		}
		if found == waiters {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func lockCommands(ctx context.Context, client *redis.Client) {
	token, err := client.Do(ctx, "LOCK", "go:k").Text()
	check(err == nil && len(token) == 36, "a UUID was expected, not %q (%v)", token, err)
	err = client.Do(ctx, "TRYLOCK", "go:k").Err()
	check(errors.Is(err, redis.Nil), "granted twice: %v", err)
	err = client.Do(ctx, "LOCK", "go:k", "WAIT", 50).Err()
	check(errors.Is(err, redis.Nil), "granted twice: %v", err)
	for _, try := range []struct {
		token string
		want  int
	}{{"other", 0}, {token, 1}, {token, 0}} {
		got, err := client.Do(ctx, "UNLOCK", "go:k", try.token).Int()
		check(err == nil && got == try.want, "UNLOCK: %d (%v), not %d", got, err, try.want)
	}
	fenced, err := client.Do(ctx, "LOCK", "go:k", "TOKEN", "t", "FENCE").Slice()
	check(err == nil && len(fenced) == 2 && fenced[0] == "t", "FENCE: %v %v", fenced, err)
	_, isNumber := fenced[1].(int64)
	check(isNumber && client.Do(ctx, "UNLOCK", "go:k", "t").Val() == int64(1), "FENCE: %v", fenced)
	err = client.Do(ctx, "LOCK").Err()
	check(err != nil && err.Error() == "ERR wrong number of arguments for 'lock' command", "%v", err)
	err = client.Do(ctx, "LOCK", "go:k", "SOON").Err()
	check(err != nil && err.Error() == "ERR syntax error", "%v", err)
}

// retryKeepsItsPlace: go-redis gives up on its socket while it waits, and sends the LOCK again on a new
// one.
func retryKeepsItsPlace(ctx context.Context, client *redis.Client, options redis.Options) {
	const key = "go:retry"
	var connects atomic.Int32
	options.ReadTimeout = time.Second
	options.OnConnect = func(context.Context, *redis.Conn) error {
		if connects.Load() > 0 {
			untilWaiting(ctx, client, key, 1) // lockgate has seen that the first connection is closed
		}
		connects.Add(1)
		return nil
	}
	impatient := redis.NewClient(&options)
	defer impatient.Close()
	order := make(chan string, 2)
	var running sync.WaitGroup
	wait := func(client *redis.Client, name string) {
		running.Go(func() {
			err := withLock(ctx, client, key, func() { order <- name })
			check(err == nil, "%s: %v", name, err)
		})
	}
	err := withLock(ctx, client, key, func() {
		wait(impatient, "the one that retries")
		untilWaiting(ctx, client, key, 1)
		wait(client, "the one behind it")
		untilWaiting(ctx, client, key, 2)
		for connects.Load() < 2 {
			check(ctx.Err() == nil && len(order) == 0, "it should wait for the lock")
			time.Sleep(10 * time.Millisecond)
		}
		untilWaiting(ctx, client, key, 2)
	})
	check(err == nil, "%v", err)
	running.Wait() // for the locks to be released, too: then the clients are closed
	first, second := <-order, <-order
	check(first == "the one that retries", "granted to %q, %q", first, second)
}

func ordinaryCommands(ctx context.Context, client, other *redis.Client) {
	const key = "go:data"
	value := strings.Repeat("\r\n$-1\r\n", 20_000)
	check(client.Set(ctx, key, value, 0).Err() == nil, "SET")
	got, err := client.Get(ctx, key).Result()
	check(err == nil && got == value, "a long value: %v", err)
	check(errors.Is(client.Get(ctx, "go:none").Err(), redis.Nil), "nil")
	err = client.LPush(ctx, key, "x").Err()
	check(err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"), "an error of Redis: %v", err)
	err = withLock(ctx, client, "go:k", func() {
		check(len(client.Get(ctx, "go:k").Val()) == 26, "the lock is a key of this database")
	})
	check(err == nil, "%v", err)

	pipeline := client.Pipeline()
	pipeline.Set(ctx, key, 1, 0)
	token := pipeline.Do(ctx, "LOCK", "go:k", "TOKEN", "piped")
	number := pipeline.Incr(ctx, key)
	released := pipeline.Do(ctx, "UNLOCK", "go:k", "piped")
	_, err = pipeline.Exec(ctx)
	check(err == nil && token.Val() == "piped" && number.Val() == 2 && released.Val() == int64(1), "a pipeline: %v", err)

	_, err = client.TxPipelined(ctx, func(transaction redis.Pipeliner) error {
		number = transaction.Incr(ctx, key)
		return nil
	})
	check(err == nil && number.Val() == 3, "MULTI: %v", err)
	err = client.Watch(ctx, func(watching *redis.Tx) error {
		check(other.Set(ctx, key, "other", 0).Err() == nil, "SET")
		_, err := watching.TxPipelined(ctx, func(transaction redis.Pipeliner) error {
			return transaction.Set(ctx, key, "never", 0).Err()
		})
		return err
	}, key)
	check(errors.Is(err, redis.TxFailedErr), "WATCH discards: %v", err)
	check(client.Get(ctx, key).Val() == "other", "the other's write is there")
	check(client.Del(ctx, key).Val() == 1, "DEL")
}

func publishAndSubscribe(ctx context.Context, client *redis.Client) {
	listener := client.Subscribe(ctx, "go:a", "go:b")
	defer listener.Close()
	for range 2 {
		_, err := listener.Receive(ctx)
		check(err == nil, "SUBSCRIBE: %v", err)
	}
	for _, channel := range []string{"go:a", "go:b", "go:a"} {
		check(client.Publish(ctx, channel, "hello").Val() == 1, "PUBLISH")
	}
	for _, channel := range []string{"go:a", "go:b", "go:a"} {
		message, err := listener.ReceiveMessage(ctx)
		check(err == nil && message.Channel == channel && message.Payload == "hello", "%v %v", message, err)
	}
}

func blockingPop(ctx context.Context, client, other *redis.Client) {
	popped := make(chan []string, 1)
	go func() { popped <- client.BLPop(ctx, 10*time.Second, "go:list").Val() }()
	for strings.Contains(other.Info(ctx, "clients").Val(), "blocked_clients:0") {
		time.Sleep(10 * time.Millisecond)
	}
	check(other.RPush(ctx, "go:list", "x").Err() == nil, "RPUSH")
	got := <-popped
	check(slices.Equal(got, []string{"go:list", "x"}), "BLPOP: %v", got)
}

// sessionLost: a lock bound to the connection is lost. A RESP2 client is closed; a RESP3 client is
// pushed a message that disturbs nothing.
func sessionLost(ctx context.Context, client, other *redis.Client, protocol int) {
	connection := client.Conn()
	defer connection.Close()
	token, err := connection.Do(ctx, "LOCK", "go:session", "SESSION").Text()
	check(err == nil && other.Del(ctx, "go:session").Val() == 1, "SESSION: %v", err)
	for i := range 200 {
		echo, err := connection.Echo(ctx, i).Result()
		if err != nil && protocol == 2 {
			return
		}
		check(err == nil && echo == strconv.Itoa(i), "a reply to another command: %q %v", echo, err)
	}
	released, err := connection.Do(ctx, "UNLOCK", "go:session", token).Int()
	check(err == nil && released == 0, "lost: %v %v", released, err)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	what, password := os.Args[3], ""
	if len(os.Args) > 4 {
		password = os.Args[4]
	}
	for _, protocol := range []int{2, 3} {
		options := redis.Options{
			Addr:     net.JoinHostPort(os.Args[1], os.Args[2]),
			Password: password,
			Protocol: protocol,
			DB:       (protocol - 2) * 3,
			// Without this a LOCK that waits longer than 3 s ends with a timeout.
			ReadTimeout:           -1,
			ContextTimeoutEnabled: true,
		}
		client, other := redis.NewClient(&options), redis.NewClient(&options)
		lockCommands(ctx, client)
		oneAfterTheOther(ctx, client)
		retryKeepsItsPlace(ctx, client, options)
		if what == "everything" {
			ordinaryCommands(ctx, client, other)
			publishAndSubscribe(ctx, client)
			blockingPop(ctx, client, other)
			sessionLost(ctx, client, other, protocol)
		}
		check(client.Close() == nil && other.Close() == nil, "cannot close")
	}
	fmt.Println("go-redis: right")
}
