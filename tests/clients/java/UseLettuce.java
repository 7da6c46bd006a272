import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.output.ValueOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * lockgate from Lettuce, whose threads share one connection: UseLettuce HOST PORT locks|everything
 * [PASSWORD]. Exits nonzero where something is not as promised. `locks` tries what works without a
 * Redis behind lockgate, `everything` ordinary commands, too.
 */
public final class UseLettuce {
    enum Keyword implements ProtocolKeyword {
        LOCK, TRYLOCK, UNLOCK, LOCKINFO;

        @Override
        public byte[] getBytes() {
            return name().getBytes(StandardCharsets.US_ASCII);
        }
    }

    /** The lock commands on a connection that may be shared. */
    record Locks(RedisAsyncCommands<String, String> redis) {
        private <T> RedisFuture<T> send(Keyword name, CommandOutput<String, String, T> output, Object... words) {
            CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8);
            for (Object word : words) {
                arguments.add(word.toString());
            }
            return redis.dispatch(name, output, arguments);
        }

        RedisFuture<String> lock(Object... words) {
            return send(Keyword.LOCK, new ValueOutput<>(StringCodec.UTF8), words);
        }

        RedisFuture<String> tryLock(Object... words) {
            return send(Keyword.TRYLOCK, new ValueOutput<>(StringCodec.UTF8), words);
        }

        RedisFuture<List<Object>> fenced(Object... words) {
            return send(Keyword.LOCK, new NestedMultiOutput<>(StringCodec.UTF8), words);
        }

        RedisFuture<Long> unlock(String key, String token) {
            return send(Keyword.UNLOCK, new IntegerOutput<>(StringCodec.UTF8), key, token);
        }

        RedisFuture<List<Object>> info(String key) {
            return send(Keyword.LOCKINFO, new NestedMultiOutput<>(StringCodec.UTF8), key);
        }

        /** Returns when so many wait for the lock. */
        void untilWaiting(String key, long waiters) throws Exception {
            for (int tries = 0; ; tries++) {
                List<Object> info = soon(info(key));
                Object found = info.get(info.indexOf("waiters") + 1);
                if (found.equals(waiters)) {
                    return;
                }
                check(tries < 1_000, waiters + " should wait for " + key + ", not " + found);
                Thread.sleep(10);
            }
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static <T> T soon(CompletionStage<T> future) throws Exception {
        return future.toCompletableFuture().get(20, TimeUnit.SECONDS);
    }

    /** The error that a command gets. */
    static String refused(RedisFuture<?> command) throws Exception {
        try {
            throw new AssertionError("an error was expected, not " + soon(command));
        } catch (ExecutionException error) {
            check(error.getCause() instanceof RedisCommandExecutionException, "" + error.getCause());
            return error.getCause().getMessage();
        }
    }

    static void lockCommands(Locks locks) throws Exception {
        String key = "lettuce:k", token = soon(locks.lock(key));
        check(token.length() == 36, "a UUID was expected, not " + token);
        check(soon(locks.tryLock(key)) == null, "granted twice");
        check(soon(locks.lock(key, "WAIT", 50)) == null, "granted twice");
        check(soon(locks.unlock(key, "other")) == 0, "released by a stranger");
        check(soon(locks.unlock(key, token)) == 1, "not released");
        check(soon(locks.unlock(key, token)) == 0, "released twice");
        List<Object> fenced = soon(locks.fenced(key, "TOKEN", "t", "FENCE"));
        check(fenced.get(0).equals("t") && fenced.get(1) instanceof Long, "FENCE: " + fenced);
        check(soon(locks.unlock(key, "t")) == 1, "not released");
        String error = refused(locks.lock());
        check(error.equals("ERR wrong number of arguments for 'lock' command"), error);
        error = refused(locks.lock(key, "SOON"));
        check(error.equals("ERR syntax error"), error);
    }

    static int counter;

    /** Eight threads on one connection. */
    static void oneAfterTheOther(Locks locks) throws Exception {
        int threads = 8, times = 25;
        counter = 0;
        List<CompletableFuture<Void>> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            running.add(CompletableFuture.runAsync(() -> {
                try {
                    for (int n = 0; n < times; n++) {
                        String token = UUID.randomUUID().toString();
                        soon(locks.lock("lettuce:counter", "TOKEN", token));
                        int value = counter;
                        Thread.sleep(1);
                        counter = value + 1;
                        check(soon(locks.unlock("lettuce:counter", token)) == 1, "not released");
                    }
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }, task -> new Thread(task).start()));
        }
        CompletableFuture.allOf(running.toArray(new CompletableFuture[0])).get(30, TimeUnit.SECONDS);
        check(counter == threads * times, counter + " of " + threads * times + " counted");
    }

    static void sharedConnection(Locks locks, Locks other) throws Exception {
        String key = "lettuce:shared";
        soon(locks.lock(key, "TOKEN", "holder"));
        RedisFuture<String> waiter = locks.lock(key, "TOKEN", "waiter");
        other.untilWaiting(key, 1);
        // What belongs to the work under the lock is not overtaken, so this can never be granted.
        RedisFuture<String> work = locks.redis().echo("work");
        RedisFuture<Long> released = locks.unlock(key, "holder");
        check(refused(waiter).startsWith("DEADLOCK"), "no -DEADLOCK");
        check(soon(work).equals("work") && soon(released) == 1, "replies in order");
    }

    /**
     * Lettuce gives up on a reply, not on the connection: the LOCK waits on at lockgate, and the same
     * again on that connection gets the lock after it.
     */
    static void retryKeepsItsPlace(Locks locks, Locks other, Locks third) throws Exception {
        String key = "lettuce:retry";
        soon(other.lock(key, "TOKEN", "holder"));
        RedisFuture<String> forgotten = locks.lock(key, "TOKEN", "retry");
        other.untilWaiting(key, 1);
        RedisFuture<String> behind = third.lock(key, "TOKEN", "behind");
        other.untilWaiting(key, 2);
        check(!LettuceFutures.awaitAll(Duration.ofMillis(200), forgotten), "granted while held");
        forgotten.cancel(true);
        RedisFuture<String> again = locks.lock(key, "TOKEN", "retry");
        check(soon(other.unlock(key, "holder")) == 1, "not released");
        check(soon(again).equals("retry"), "the retry");
        check(!behind.toCompletableFuture().isDone(), "granted to the one behind it");
        check(soon(locks.unlock(key, "retry")) == 1, "held");
        check(soon(behind).equals("behind") && soon(third.unlock(key, "behind")) == 1, "the one behind it");
    }

    static void ordinaryCommands(RedisCommands<String, String> redis, RedisCommands<String, String> other, Locks locks)
            throws Exception {
        String key = "lettuce:data", value = "\r\n$-1\r\n".repeat(20_000);
        redis.set(key, value);
        check(redis.get(key).equals(value) && redis.get("lettuce:none") == null, "a long value, and none");
        check(refused(locks.redis().lpush(key, "x")).startsWith("WRONGTYPE"), "an error of Redis");
        soon(locks.lock("lettuce:k", "TOKEN", "t"));
        check(redis.get("lettuce:k").equals("t") && soon(locks.unlock("lettuce:k", "t")) == 1, "the lock's key");

        // A pipeline: nothing is flushed before the end.
        StatefulRedisConnection<String, String> connection = locks.redis().getStatefulConnection();
        connection.setAutoFlushCommands(false);
        RedisFuture<String> set = locks.redis().set(key, "1"), token = locks.lock("lettuce:k", "TOKEN", "piped");
        RedisFuture<Long> number = locks.redis().incr(key), released = locks.unlock("lettuce:k", "piped");
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        check(soon(set).equals("OK") && soon(token).equals("piped"), "a pipeline");
        check(soon(number) == 2 && soon(released) == 1, "a pipeline");

        redis.multi();
        redis.incr(key);
        redis.get(key);
        check(redis.exec().stream().toList().equals(List.of(3L, "3")), "MULTI");
        redis.watch(key);
        other.set(key, "other");
        redis.multi();
        redis.set(key, "never");
        check(redis.exec().wasDiscarded() && redis.get(key).equals("other"), "WATCH discards");
        redis.del(key);
    }

    static void publishAndSubscribe(RedisClient client, RedisCommands<String, String> redis) throws Exception {
        CountDownLatch messages = new CountDownLatch(2);
        try (StatefulRedisPubSubConnection<String, String> listener = client.connectPubSub()) {
            listener.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(String channel, String message) {
                    messages.countDown();
                }
            });
            listener.sync().subscribe("lettuce:a", "lettuce:b");
            check(redis.publish("lettuce:a", "hello") == 1 && redis.publish("lettuce:b", "hello") == 1, "PUBLISH");
            check(messages.await(10, TimeUnit.SECONDS), "two messages");
            listener.sync().unsubscribe();
        }
    }

    static void blockingPop(StatefulRedisConnection<String, String> popper, RedisCommands<String, String> other)
            throws Exception {
        RedisFuture<KeyValue<String, String>> popped = popper.async().blpop(10, "lettuce:list");
        while (other.info("clients").contains("blocked_clients:0")) {
            Thread.sleep(10);
        }
        other.rpush("lettuce:list", "x");
        check(soon(popped).equals(KeyValue.just("lettuce:list", "x")), "BLPOP");
    }

    /** The push that a lock bound to the connection is lost comes, and disturbs nothing. */
    static void sessionLost(StatefulRedisConnection<String, String> connection, RedisCommands<String, String> other)
            throws Exception {
        CompletableFuture<String> told = new CompletableFuture<>();
        connection.addListener(message -> {
            if (message.getType().equals("lock-lost")) {
                told.complete("" + StandardCharsets.UTF_8.decode((java.nio.ByteBuffer) message.getContent().get(1)));
            }
        });
        Locks locks = new Locks(connection.async());
        soon(locks.lock("lettuce:session", "TOKEN", "t", "SESSION"));
        check(other.del("lettuce:session") == 1, "deleted");
        for (int i = 0; i < 200; i++) {
            check(connection.sync().echo("" + i).equals("" + i), "a reply to another command");
        }
        check(soon(told).equals("lettuce:session"), "told of " + told);
        check(soon(locks.unlock("lettuce:session", "t")) == 0, "lost");
    }

    static void use(RedisURI address, ProtocolVersion protocol, boolean everything) throws Exception {
        RedisClient client = RedisClient.create(address);
        client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
        try (StatefulRedisConnection<String, String> shared = client.connect();
                StatefulRedisConnection<String, String> second = client.connect();
                StatefulRedisConnection<String, String> third = client.connect()) {
            Locks locks = new Locks(shared.async()), other = new Locks(second.async());
            lockCommands(locks);
            oneAfterTheOther(locks);
            sharedConnection(locks, other);
            retryKeepsItsPlace(locks, other, new Locks(third.async()));
            if (everything) {
                ordinaryCommands(shared.sync(), second.sync(), locks);
                publishAndSubscribe(client, shared.sync());
                blockingPop(third, second.sync());
                if (protocol == ProtocolVersion.RESP3) {
                    sessionLost(shared, second.sync());
                }
            }
        }
        client.shutdown(0, 1, TimeUnit.SECONDS);
    }

    public static void main(String[] arguments) throws Exception {
        RedisURI.Builder settings = RedisURI.builder().withHost(arguments[0]).withPort(Integer.parseInt(arguments[1]));
        if (arguments.length > 3) {
            settings.withPassword(arguments[3].toCharArray());
        }
        RedisURI address = settings.build();
        boolean everything = arguments[2].equals("everything");
        use(address, ProtocolVersion.RESP2, everything);
        address.setDatabase(3);
        use(address, ProtocolVersion.RESP3, everything);
        System.out.println("Lettuce: right");
        System.exit(0);
    }
}
