import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * lockgate from Jedis: UseJedis HOST PORT locks|everything [PASSWORD]. Exits nonzero where something
 * is not as promised. `locks` tries what works without a Redis behind lockgate, `everything` ordinary
 * commands, too.
 */
public final class UseJedis {
    enum Command implements ProtocolCommand {
        LOCK, TRYLOCK, UNLOCK, LOCKINFO;

        @Override
        public byte[] getRaw() {
            return name().getBytes(StandardCharsets.US_ASCII);
        }
    }

    /** Waits for the lock as long as it takes; try-with-resources releases it. */
    record Lock(Jedis jedis, String key, String token) implements AutoCloseable {
        static Lock take(Jedis jedis, String key) {
            String token = UUID.randomUUID().toString();
            // A blocking command: Jedis waits for its reply longer than for others.
            jedis.sendBlockingCommand(Command.LOCK, key, "TOKEN", token, "PX", "30000");
            return new Lock(jedis, key, token);
        }

        @Override
        public void close() {
            jedis.sendCommand(Command.UNLOCK, key, token);
        }
    }

    static HostAndPort address;
    static String password;
    static RedisProtocol protocol;
    static int database;

    static DefaultJedisClientConfig.Builder settings() {
        return DefaultJedisClientConfig.builder().protocol(protocol).password(password).database(database);
    }

    static Jedis connect() {
        return new Jedis(address, settings().build());
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static String text(Object reply) {
        return reply == null ? null : new String((byte[]) reply, StandardCharsets.UTF_8);
    }

    /** The error that a command gets. */
    static String refused(Supplier<Object> command) {
        try {
            throw new AssertionError("an error was expected, not " + command.get());
        } catch (JedisDataException error) {
            return error.getMessage();
        }
    }

    static <T> CompletableFuture<T> inThread(Supplier<T> work) {
        return CompletableFuture.supplyAsync(work, task -> new Thread(task).start());
    }

    /** Returns when so many wait for the lock. */
    static void untilWaiting(Jedis jedis, String key, long waiters) throws InterruptedException {
        for (int tries = 0; ; tries++) {
            List<?> info = (List<?>) jedis.sendCommand(Command.LOCKINFO, key);
            Object found = null;
            for (int i = 0; i < info.size(); i++) {
                if (info.get(i) instanceof redis.clients.jedis.util.KeyValue<?, ?> pair) {
                    found = "waiters".equals(text(pair.getKey())) ? pair.getValue() : found;
                } else if (i % 2 == 0 && "waiters".equals(text(info.get(i)))) {
                    found = info.get(i + 1);
                }
            }
            if (found.equals(waiters)) {
                return;
            }
            check(tries < 1_000, waiters + " should wait for " + key + ", not " + found);
            Thread.sleep(10);
        }
    }

    static void lockCommands(Jedis jedis) {
        String token = text(jedis.sendBlockingCommand(Command.LOCK, "jedis:k"));
        check(token.length() == 36, "a UUID was expected, not " + token);
        check(jedis.sendCommand(Command.TRYLOCK, "jedis:k") == null, "granted twice");
        check(jedis.sendBlockingCommand(Command.LOCK, "jedis:k", "WAIT", "50") == null, "granted twice");
        check((Long) jedis.sendCommand(Command.UNLOCK, "jedis:k", "other") == 0, "released by a stranger");
        check((Long) jedis.sendCommand(Command.UNLOCK, "jedis:k", token) == 1, "not released");
        check((Long) jedis.sendCommand(Command.UNLOCK, "jedis:k", token) == 0, "released twice");
        List<?> fenced = (List<?>) jedis.sendBlockingCommand(Command.LOCK, "jedis:k", "FENCE");
        check(fenced.size() == 2 && fenced.get(1) instanceof Long, "FENCE");
        jedis.sendCommand(Command.UNLOCK, "jedis:k", text(fenced.get(0)));
        String error = refused(() -> jedis.sendCommand(Command.LOCK, new String[0]));
        check(error.equals("ERR wrong number of arguments for 'lock' command"), error);
        error = refused(() -> jedis.sendCommand(Command.LOCK, "jedis:k", "SOON"));
        check(error.equals("ERR syntax error"), error);
    }

    static int counter;

    static void oneAfterTheOther() throws Exception {
        int threads = 8, times = 25;
        counter = 0;
        List<CompletableFuture<Void>> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            running.add(inThread(() -> {
                try (Jedis jedis = connect()) {
                    for (int n = 0; n < times; n++) {
                        try (Lock lock = Lock.take(jedis, "jedis:counter")) {
                            int value = counter;
                            Thread.sleep(1);
                            counter = value + 1;
                        }
                    }
                } catch (InterruptedException interrupted) {
                    throw new IllegalStateException(interrupted);
                }
                return null;
            }));
        }
        CompletableFuture.allOf(running.toArray(new CompletableFuture[0])).get(30, TimeUnit.SECONDS);
        check(counter == threads * times, counter + " of " + threads * times + " counted");
    }

    /** Jedis gives up on its socket; to ask again on a new one is its user's business. */
    static void retryKeepsItsPlace(Jedis jedis) throws Exception {
        String key = "jedis:retry", first = "the one that retries", second = "the one behind it";
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        CompletableFuture<Boolean> timedOut = new CompletableFuture<>(), again = new CompletableFuture<>();
        CompletableFuture<Void> insisting, behind;
        try (Lock lock = Lock.take(jedis, key)) {
            insisting = inThread(() -> {
                String token = UUID.randomUUID().toString();
                try (Jedis impatient = new Jedis(address, settings().blockingSocketTimeoutMillis(2_000).build())) {
                    impatient.sendBlockingCommand(Command.LOCK, key, "TOKEN", token);
                    timedOut.complete(false);
                } catch (JedisConnectionException timeout) {
                    timedOut.complete(true);
                }
                again.join();
                try (Jedis anew = connect()) {
                    anew.sendBlockingCommand(Command.LOCK, key, "TOKEN", token);
                    order.add(first);
                    anew.sendCommand(Command.UNLOCK, key, token);
                }
                return null;
            });
            untilWaiting(jedis, key, 1);
            behind = inThread(() -> {
                try (Jedis other = connect(); Lock next = Lock.take(other, key)) {
                    order.add(second);
                }
                return null;
            });
            untilWaiting(jedis, key, 2);
            check(timedOut.get(10, TimeUnit.SECONDS), "no socket timeout");
            // lockgate has seen that the first connection is closed.
            untilWaiting(jedis, key, 1);
            again.complete(true);
            untilWaiting(jedis, key, 2);
            check(order.isEmpty(), "granted while held");
        }
        CompletableFuture.allOf(insisting, behind).get(10, TimeUnit.SECONDS);
        check(order.equals(List.of(first, second)), "granted to " + order);
    }

    /** Threads share a pool, not a connection. */
    static void pool() throws Exception {
        try (RedisClient client = RedisClient.builder().hostAndPort(address).clientConfig(settings().build()).build()) {
            List<CompletableFuture<Long>> running = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                running.add(inThread(() -> {
                    String token = UUID.randomUUID().toString();
                    client.sendBlockingCommand(Command.LOCK, "jedis:pool", "TOKEN", token);
                    return (Long) client.sendCommand(Command.UNLOCK, "jedis:pool", token);
                }));
            }
            for (CompletableFuture<Long> released : running) {
                check(released.get(10, TimeUnit.SECONDS) == 1, "not released");
            }
        }
    }

    static void ordinaryCommands(Jedis jedis, Jedis other) {
        String key = "jedis:data", value = "\r\n$-1\r\n".repeat(20_000);
        jedis.set(key, value);
        check(jedis.get(key).equals(value) && jedis.get("jedis:none") == null, "a long value, and none");
        check(refused(() -> jedis.lpush(key, "x")).startsWith("WRONGTYPE"), "an error of Redis");
        try (Lock lock = Lock.take(jedis, "jedis:k")) {
            check(jedis.get("jedis:k").equals(lock.token()), "the lock is a key of this database");
        }

        Pipeline pipeline = jedis.pipelined();
        pipeline.set(key, "1");
        Response<Object> token = pipeline.sendCommand(Command.LOCK, "jedis:k", "TOKEN", "piped");
        Response<Long> number = pipeline.incr(key);
        Response<Object> released = pipeline.sendCommand(Command.UNLOCK, "jedis:k", "piped");
        pipeline.sync();
        check(text(token.get()).equals("piped") && number.get() == 2 && (Long) released.get() == 1, "a pipeline");

        try (Transaction transaction = jedis.multi()) {
            transaction.incr(key);
            transaction.get(key);
            check(transaction.exec().equals(List.of(3L, "3")), "MULTI");
        }
        jedis.watch(key);
        other.set(key, "other");
        try (Transaction transaction = jedis.multi()) {
            transaction.set(key, "never");
            check(transaction.exec() == null, "WATCH discards");
        }
        check(jedis.get(key).equals("other"), "the other's write is there");
        jedis.del(key);
    }

    static void publishAndSubscribe(Jedis jedis) throws Exception {
        List<String> heard = Collections.synchronizedList(new ArrayList<>());
        JedisPubSub subscriber = new JedisPubSub() {
            @Override
            public void onMessage(String channel, String message) {
                heard.add(channel + " " + message);
                if (message.equals("bye")) {
                    unsubscribe();
                }
            }
        };
        CompletableFuture<Boolean> listening = inThread(() -> {
            try (Jedis listener = connect()) {
                listener.subscribe(subscriber, "jedis:a", "jedis:b");
                return listener.ping().equals("PONG");
            }
        });
        while (jedis.publish("jedis:b", "hello") == 0) {
            Thread.sleep(10);
        }
        jedis.publish("jedis:a", "bye");
        check(listening.get(10, TimeUnit.SECONDS), "an ordinary connection again");
        check(heard.equals(List.of("jedis:b hello", "jedis:a bye")), "heard " + heard);
    }

    static void blockingPop(Jedis jedis) throws Exception {
        CompletableFuture<List<String>> popped = inThread(() -> {
            try (Jedis popper = connect()) {
                return popper.blpop(10, "jedis:list");
            }
        });
        while (jedis.info("clients").contains("blocked_clients:0")) {
            Thread.sleep(10);
        }
        jedis.rpush("jedis:list", "x");
        check(popped.get(10, TimeUnit.SECONDS).equals(List.of("jedis:list", "x")), "BLPOP");
    }

    /** A lock bound to the connection is lost: a RESP2 client is closed, a RESP3 client is pushed a message. */
    static void sessionLost(Jedis other) {
        try (Jedis jedis = connect()) {
            String token = text(jedis.sendBlockingCommand(Command.LOCK, "jedis:session", "SESSION"));
            check(other.del("jedis:session") == 1, "deleted");
            try {
                for (int i = 0; i < 200; i++) {
                    check(jedis.echo("" + i).equals("" + i), "a reply to another command");
                }
                check((Long) jedis.sendCommand(Command.UNLOCK, "jedis:session", token) == 0, "lost");
            } catch (JedisConnectionException closed) {
                check(protocol == RedisProtocol.RESP2, "RESP3 clients are not closed");
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = new HostAndPort(arguments[0], Integer.parseInt(arguments[1]));
        password = arguments.length > 3 ? arguments[3] : null;
        for (RedisProtocol each : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            protocol = each;
            database = each == RedisProtocol.RESP2 ? 0 : 3;
            try (Jedis jedis = connect(); Jedis other = connect()) {
                lockCommands(jedis);
                oneAfterTheOther();
                retryKeepsItsPlace(jedis);
                pool();
                if (arguments[2].equals("everything")) {
                    ordinaryCommands(jedis, other);
                    publishAndSubscribe(jedis);
                    blockingPop(jedis);
                    sessionLost(other);
                }
            }
        }
        System.out.println("Jedis: right");
        System.exit(0);
    }
}
