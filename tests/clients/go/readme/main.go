// What docs/clients.md shows for go-redis. tests/clients/run puts its own host and port here.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	// go-redis gives up after 3 s unless told otherwise; this must be longer than WAIT.
	client := redis.NewClient(&redis.Options{Addr: "localhost:6380", ReadTimeout: 15 * time.Second})

	token := rand.Text()
	err := client.Do(ctx, "LOCK", "order:42", "TOKEN", token, "PX", 30_000, "WAIT", 10_000).Err()
	if errors.Is(err, redis.Nil) {
		fmt.Println("order 42 is busy")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer client.Do(ctx, "UNLOCK", "order:42", token)
	fmt.Println("working on order 42")
}
