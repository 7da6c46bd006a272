import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPoolConfig;
import redis.clients.jedis.params.SetParams;

/**
 * Lock libraries of Java on one lock: Spin MODE PORT KEY CLIENTS ROUNDS LEASE CONNECTIONS
 *
 * <p>See ../run for the arguments and the output.
 */
public class Spin {
    static final long HOLD_MS = 10;

    /** An acquisition that takes longer never comes. */
    static final long PATIENCE_MS = 60_000;

    /** The release that Redis's documentation shows. */
    static final String COMPARE_AND_DELETE =
            "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";

    /** Takes the lock of that name, and returns how to release it. */
    interface Acquire {
        Runnable take(String name) throws Exception;
    }

    static String mode, key;
    static int port, clients, rounds, lease, connections;

    public static void main(String[] arguments) throws Exception {
        mode = arguments[0];
        port = Integer.parseInt(arguments[1]);
        key = arguments[2];
        clients = Integer.parseInt(arguments[3]);
        rounds = Integer.parseInt(arguments[4]);
        lease = Integer.parseInt(arguments[5]);
        connections = Integer.parseInt(arguments[6]);

        JedisPool pool = pool();
        List<Acquire> acquires = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            acquires.add(
                    switch (mode) {
                        case "lock" -> name -> takeWithLock(pool, name);
                        case "jedis" -> name -> takeWithJedis(pool, name);
                        case "spring" -> spring();
                        default -> throw new IllegalArgumentException(mode);
                    });
        }
        contest(acquires, pool);
        System.exit(0);
    }

    static JedisPool pool() {
        JedisPoolConfig config = new JedisPoolConfig();
        config.setMaxTotal(connections);
        config.setMaxIdle(connections);
        // LOCK may wait for long; else this is Jedis's default.
        int timeout = mode.equals("lock") ? (int) PATIENCE_MS : 2_000;
        return new JedisPool(config, "127.0.0.1", port, timeout);
    }

    static Runnable takeWithLock(JedisPool pool, String name) {
        String token;
        try (Jedis jedis = pool.getResource()) {
            byte[] reply = (byte[]) jedis.sendCommand(() -> "LOCK".getBytes(), name, "PX", String.valueOf(lease));
            token = new String(reply);
        }
        return () -> {
            try (Jedis jedis = pool.getResource()) {
                jedis.sendCommand(() -> "UNLOCK".getBytes(), name, token);
            }
        };
    }

    static Runnable takeWithJedis(JedisPool pool, String name) throws Exception {
        String token = UUID.randomUUID().toString();
        SetParams ifFree = SetParams.setParams().nx().px(lease);
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
        while (true) {
            try (Jedis jedis = pool.getResource()) {
                if ("OK".equals(jedis.set(name, token, ifFree))) {
                    break;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("an acquisition never came");
            }
            Thread.sleep(50);
        }
        return () -> {
            try (Jedis jedis = pool.getResource()) {
                jedis.eval(COMPARE_AND_DELETE, List.of(name), List.of(token));
            }
        };
    }

    /** Makes a registry with a connection of its own: within one registry, clients do not meet in Redis. */
    static Acquire spring() {
        LettuceConnectionFactory factory = new LettuceConnectionFactory("127.0.0.1", port);
        factory.afterPropertiesSet();
        factory.start();
        int colon = key.indexOf(':');
        RedisLockRegistry registry = new RedisLockRegistry(factory, key.substring(0, colon), lease);
        return name -> {
            Lock lock = registry.obtain(name.substring(colon + 1));
            if (!lock.tryLock(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
                throw new TimeoutException("an acquisition never came");
            }
            return lock::unlock;
        };
    }

    /** All clients take the same lock, `rounds` times each. */
    static void contest(List<Acquire> acquires, JedisPool pool) throws Exception {
        CountDownLatch warm = new CountDownLatch(clients);
        CountDownLatch begin = new CountDownLatch(1);
        List<Double> waits = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger inside = new AtomicInteger();
        AtomicLong held = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            Acquire acquire = acquires.get(i);
            String own = key + "-warm-" + i;
            threads.add(new Thread(() -> {
                try {
                    // Opens the connection, and loads the scripts.
                    acquire.take(own).run();
                    warm.countDown();
                    begin.await();
                    for (int round = 0; round < rounds; round++) {
                        long asked = System.nanoTime();
                        Runnable release = acquire.take(key);
                        long got = System.nanoTime();
                        if (inside.incrementAndGet() != 1) {
                            throw new IllegalStateException("two clients hold the lock");
                        }
                        Thread.sleep(HOLD_MS);
                        inside.decrementAndGet();
                        held.addAndGet(System.nanoTime() - got);
                        release.run();
                        waits.add((got - asked) / 1e6);
                    }
                } catch (Throwable error) {
                    System.err.println("wrong: " + error);
                    System.exit(1);
                }
            }));
        }
        threads.forEach(Thread::start);
        warm.await();
        mark(pool, "begin");
        long begun = System.nanoTime();
        begin.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        double elapsed = System.nanoTime() - begun;
        mark(pool, "end");

        Collections.sort(waits);
        System.out.printf(
                "p50=%.2f p99=%.2f time=%.2f elapsed=%.2f%n",
                waits.get(waits.size() / 2), waits.get(waits.size() * 99 / 100), elapsed / held.get(), elapsed / 1e6);
    }

    static void mark(JedisPool pool, String what) {
        try (Jedis jedis = pool.getResource()) {
            jedis.echo(what + " " + key);
        }
    }
}
