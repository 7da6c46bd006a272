// lockgate from go-redis: main HOST PORT. Exits nonzero where something is not as promised.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
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

func handover(ctx context.Context, client *redis.Client) {
	granted := make(chan time.Time, 1)
	var released time.Time
	err := withLock(ctx, client, "go:handover", func() {
		go func() {
			err := withLock(ctx, client, "go:handover", func() { granted <- time.Now() })
			check(err == nil, "%v", err)
		}()
		time.Sleep(500 * time.Millisecond)
		check(len(granted) == 0, "granted while held")
		released = time.Now()
	})
	check(err == nil, "%v", err)
	select {
	case at := <-granted:
		late := at.Sub(released)
		check(late < 250*time.Millisecond, "granted %v after the release", late)
	case <-time.After(10 * time.Second):
		check(false, "the waiter was not granted the lock")
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{
			Addr:     net.JoinHostPort(os.Args[1], os.Args[2]),
			Protocol: protocol,
			// Without this a LOCK that waits longer than 3 s ends with a timeout.
			ReadTimeout:           -1,
			ContextTimeoutEnabled: true,
		})
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
		handover(ctx, client)
		oneAfterTheOther(ctx, client)
		check(client.Close() == nil, "cannot close")
	}
	fmt.Println("go-redis: right")
}
