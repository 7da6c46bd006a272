// go-redis waits for a lock while Redis fails over: wait HOST PORT LOCK CLIENTS. It tries nothing again.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

func check(holds bool, what string, details ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, "go-redis: "+what+"\n", details...)
		os.Exit(1)
	}
}

func wait(ctx context.Context, address, lock string, number int) {
	client := redis.NewClient(&redis.Options{
		Addr: address, MaxRetries: -1, PoolSize: 1, Protocol: 2 + number%2, ReadTimeout: -1,
	})
	defer client.Close()
	connection := client.Conn()
	defer connection.Close()
	token := fmt.Sprintf("go-redis-%d", number)
	granted, err := connection.Do(ctx, "LOCK", lock, "TOKEN", token, "PX", 60_000).Text()
	check(err == nil && granted == token, "LOCK: %v %v", granted, err)
	key := fmt.Sprintf("%s:%d", lock, number)
	check(connection.Set(ctx, key, token, 0).Err() == nil, "SET")
	value, err := connection.Get(ctx, key).Result()
	check(err == nil && value == token, "GET: %v %v", value, err)
	released, err := connection.Do(ctx, "UNLOCK", lock, token).Int()
	check(err == nil && released == 1, "UNLOCK: %v %v", released, err)
}

func main() {
	clients, err := strconv.Atoi(os.Args[4])
	check(err == nil, "%v", err)
	var running sync.WaitGroup
	for number := range clients {
		running.Go(func() {
			wait(context.Background(), net.JoinHostPort(os.Args[1], os.Args[2]), os.Args[3], number)
		})
	}
	running.Wait()
}
