import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPoolConfig;

/**
 * Locks from Java: Contention WAY PORT CLIENTS
 *
 * <p>See ../go/main.go for the arguments, the jobs on standard input and the output; there is only the job "contest"
 * here. Clients are threads.
 */
public class Contention {
    static final int LEASE_MS = 30_000;

    /** Waits for the lock of that name, and returns how to release it. */
    interface Acquire {
        Runnable take(String name);
    }

    static int port, clients;

    public static void main(String[] arguments) throws Exception {
        port = Integer.parseInt(arguments[1]);
        clients = Integer.parseInt(arguments[2]);
        Acquire acquire =
                switch (arguments[0]) {
                    case "lock" -> lockgate();
                    case "redisson" -> redisson(client -> client::getLock);
                    case "redisson-fair" -> redisson(client -> client::getFairLock);
                    default -> throw new IllegalArgumentException(arguments[0]);
                };
        System.out.println("ready " + versions());
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        for (String job = jobs.readLine(); job != null; job = jobs.readLine()) {
            String[] words = job.split(" ");
            int locks = Integer.parseInt(words[2]);
            contest(acquire, words[1], locks, Double.parseDouble(words[3]), Long.parseLong(words[4]));
            System.out.println(".");
        }
        System.exit(0);
    }

    static Acquire lockgate() {
        JedisPoolConfig config = new JedisPoolConfig();
        config.setMaxTotal(clients);
        config.setMaxIdle(clients);
        JedisPool pool = new JedisPool(config, "127.0.0.1", port, 60_000);
        return name -> {
            String token = UUID.randomUUID().toString();
            send(pool, "LOCK", name, "TOKEN", token, "PX", String.valueOf(LEASE_MS));
            return () -> send(pool, "UNLOCK", name, token);
        };
    }

    static void send(JedisPool pool, String command, String... words) {
        try (Jedis jedis = pool.getResource()) {
            jedis.sendCommand(() -> command.getBytes(), words);
        }
    }

    static Acquire redisson(Function<RedissonClient, Function<String, RLock>> kind) {
        Config config = new Config();
        // Each waiter of a fair lock needs a subscription, and a connection carries five; by default there are fifty.
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port).setSubscriptionConnectionPoolSize(100);
        Function<String, RLock> locks = kind.apply(Redisson.create(config));
        return name -> {
            RLock lock = locks.apply(name);
            lock.lock(LEASE_MS, TimeUnit.MILLISECONDS);
            return lock::unlock;
        };
    }

    /** Lists the libraries, whose files are NAME-VERSION.jar. */
    static String versions() {
        return Arrays.stream(new File("lib").list())
                .filter(name -> name.startsWith("redisson-") || name.startsWith("jedis-"))
                .map(name -> name.replace(".jar", "").replaceFirst("-", "="))
                .collect(Collectors.joining(" ", "", " java=" + Runtime.version().feature()));
    }

    /** Lets all clients acquire locks, the first of them most often (Zipf), and hold each for so long. */
    static void contest(Acquire acquire, String key, int locks, double seconds, long holdUs) throws Exception {
        double[] sums = new double[locks];
        for (int k = 0; k < locks; k++) {
            sums[k] = 1.0 / (k + 1) + (k == 0 ? 0 : sums[k - 1]);
        }
        AtomicIntegerArray inside = new AtomicIntegerArray(locks);
        Queue<String> turns = new ConcurrentLinkedQueue<>();
        Runnable turn = () -> {
            int found = Arrays.binarySearch(sums, ThreadLocalRandom.current().nextDouble() * sums[locks - 1]);
            int lock = found < 0 ? -found - 1 : found;
            long asked = nowUs();
            Runnable release = acquire.take(key + ":" + lock);
            long got = nowUs();
            if (inside.incrementAndGet(lock) != 1) {
                throw new IllegalStateException("two clients hold the lock");
            }
            for (long left = holdUs; left > 0; left = got + holdUs - nowUs()) {
                LockSupport.parkNanos(left * 1000);
            }
            inside.decrementAndGet(lock);
            turns.add(lock + " " + asked + " " + got + " " + nowUs());
            release.run();
        };
        long begun = nowUs();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            long own = begun + i * 1000L;
            Thread thread = new Thread(() -> {
                LockSupport.parkNanos((own - nowUs()) * 1000);
                if (seconds == 0) {
                    turn.run();
                }
                while (nowUs() < begun + seconds * 1e6) {
                    turn.run();
                }
            });
            thread.setUncaughtExceptionHandler((who, error) -> {
                System.err.println("wrong: " + error);
                System.exit(1);
            });
            threads.add(thread);
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(String.join("\n", turns));
    }

    static final long OFFSET_US = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()) - System.nanoTime() / 1000;

    /** Returns the time by the machine's clock. */
    static long nowUs() {
        return System.nanoTime() / 1000 + OFFSET_US;
    }
}
