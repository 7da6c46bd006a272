import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;

/**
 * Pipelines of Jedis, which writes all of one before it reads anything: JedisPipeline HOST PORT
 * locks|everything [PASSWORD]. Exits nonzero where a reply is missing or wrong. `locks` tries what works without
 * a Redis behind lockgate. Prints what each pipeline took, in seconds. The environment may say that there are no
 * lock commands (LOCKS=no), to compare with a Redis, and how many small commands there are (SMALL).
 */
public final class JedisPipeline {
    enum Command implements ProtocolCommand {
        LOCK, UNLOCK, INFO, COMMAND, ECHO, SET, GET, INCR;

        @Override
        public byte[] getRaw() {
            return name().getBytes(StandardCharsets.US_ASCII);
        }
    }

    static final String KEY = "jedis:pipeline";
    static final String VALUE = "v".repeat(1024);
    static final boolean LOCKS = !"no".equals(System.getenv("LOCKS"));
    static boolean everything;

    static Object plain(Object reply) {
        return reply instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : reply;
    }

    /** Sends one command, and says what its reply is to be. */
    static Object send(Pipeline pipe, List<Response<Object>> replies, boolean values, int i) {
        if (!everything) {
            String text = values ? VALUE : "" + i;
            replies.add(pipe.sendCommand(Command.ECHO, text));
            return text;
        }
        if (!values) {
            replies.add(pipe.sendCommand(Command.INCR, KEY));
            return (long) i + 1;
        }
        boolean sets = i % 2 == 0;
        replies.add(sets ? pipe.sendCommand(Command.SET, KEY, VALUE) : pipe.sendCommand(Command.GET, KEY));
        return sets ? "OK" : VALUE;
    }

    static void pipeline(Jedis jedis, boolean values, int count, boolean middle) {
        String name = "Jedis " + (values ? "values" : "small") + (middle ? "+middle" : "");
        if (everything) {
            jedis.del(KEY);
        }
        List<Response<Object>> replies = new ArrayList<>(count);
        List<Response<Object>> added = new ArrayList<>();
        List<Object> expected = new ArrayList<>(count);
        Pipeline pipe = new Pipeline(jedis.getConnection());
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            if (middle && i == count / 2) {
                if (LOCKS) {
                    added.add(pipe.sendCommand(Command.LOCK, KEY + ":k", "TOKEN", "t"));
                }
                added.add(pipe.sendCommand(Command.INFO, new String[0]));
                added.add(pipe.sendCommand(Command.COMMAND, new String[0]));
                if (LOCKS) {
                    added.add(pipe.sendCommand(Command.UNLOCK, KEY + ":k", "t"));
                }
            }
            expected.add(send(pipe, replies, values, i));
        }
        pipe.sync();
        double took = (System.nanoTime() - start) / 1e9;
        for (int i = 0; i < count; i++) {
            Object reply = plain(replies.get(i).get());
            if (!expected.get(i).equals(reply)) {
                throw new AssertionError(name + ": reply " + i + " is " + reply);
            }
        }
        // One that is an error throws.
        added.forEach(Response::get);
        if (middle && LOCKS && !("t".equals(plain(added.get(0).get())) && added.get(3).get().equals(1L))) {
            throw new AssertionError(name + ": " + plain(added.get(0).get()) + ", " + added.get(3).get());
        }
        System.out.printf(Locale.ROOT, "%s %.3f%n", name, took);
    }

    public static void main(String[] arguments) {
        HostAndPort address = new HostAndPort(arguments[0], Integer.parseInt(arguments[1]));
        everything = arguments[2].equals("everything");
        String password = arguments.length > 3 ? arguments[3] : null;
        String small = System.getenv("SMALL");
        DefaultJedisClientConfig config =
            DefaultJedisClientConfig.builder().password(password).socketTimeoutMillis(60_000).build();
        try (Jedis jedis = new Jedis(address, config)) {
            for (boolean values : new boolean[] {true, false}) {
                for (boolean middle : new boolean[] {false, true}) {
                    pipeline(jedis, values, values ? 40_000 : small == null ? 200_000 : Integer.parseInt(small), middle);
                }
            }
            if (everything) {
                jedis.del(KEY);
            }
        }
    }
}
