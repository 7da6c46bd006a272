import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

/** lockgate from Jedis: Main HOST PORT. Exits nonzero where something is not as promised. */
public final class Main {
    enum Command implements ProtocolCommand {
        LOCK, TRYLOCK, UNLOCK;

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

    static void check(boolean holds, String what) {
        if (!holds) {
            System.err.println("Jedis: " + what);
            System.exit(1);
        }
    }

    static String text(Object reply) {
        return reply == null ? null : new String((byte[]) reply, StandardCharsets.UTF_8);
    }

    static int counter = 0;

    static void oneAfterTheOther(String host, int port) throws Exception {
        int threads = 8, times = 25;
        List<CompletableFuture<Void>> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            running.add(CompletableFuture.runAsync(() -> {
                try (Jedis jedis = new Jedis(host, port)) {
                    for (int n = 0; n < times; n++) {
                        try (Lock lock = Lock.take(jedis, "java:counter")) {
                            int value = counter;
                            Thread.sleep(1);
                            counter = value + 1;
                        }
                    }
                } catch (InterruptedException interrupted) {
                    throw new IllegalStateException(interrupted);
                }
            }, task -> new Thread(task).start()));
        }
        CompletableFuture.allOf(running.toArray(new CompletableFuture[0])).get(30, TimeUnit.SECONDS);
        check(counter == threads * times, counter + " of " + threads * times + " counted");
    }

    /** Longer than Jedis waits for an ordinary reply, which is 2 s. */
    static void handover(String host, int port) throws Exception {
        try (Jedis holder = new Jedis(host, port); Jedis waiter = new Jedis(host, port)) {
            CompletableFuture<Long> waiting;
            long released;
            try (Lock lock = Lock.take(holder, "java:handover")) {
                waiting = CompletableFuture.supplyAsync(() -> {
                    try (Lock next = Lock.take(waiter, "java:handover")) {
                        return System.nanoTime();
                    }
                }, task -> new Thread(task).start());
                Thread.sleep(2_500);
                check(!waiting.isDone(), "granted while held");
                released = System.nanoTime();
            }
            long late = (waiting.get(10, TimeUnit.SECONDS) - released) / 1_000_000;
            check(late < 250, "granted " + late + " ms after the release");
        }
    }

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        try (Jedis jedis = new Jedis(host, port)) {
            String token = text(jedis.sendBlockingCommand(Command.LOCK, "java:k"));
            check(token.length() == 36, "a UUID was expected, not " + token);
            check(jedis.sendCommand(Command.TRYLOCK, "java:k") == null, "granted twice");
            check(jedis.sendBlockingCommand(Command.LOCK, "java:k", "WAIT", "50") == null, "granted twice");
            check((Long) jedis.sendCommand(Command.UNLOCK, "java:k", "other") == 0, "released by a stranger");
            check((Long) jedis.sendCommand(Command.UNLOCK, "java:k", token) == 1, "not released");
            check((Long) jedis.sendCommand(Command.UNLOCK, "java:k", token) == 0, "released twice");
        }
        handover(host, port);
        oneAfterTheOther(host, port);
        System.out.println("Jedis: right");
        System.exit(0);
    }
}
