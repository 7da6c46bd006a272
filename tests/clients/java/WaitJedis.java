import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

/** Jedis waits for a lock while Redis fails over: WaitJedis HOST PORT LOCK CLIENTS. It tries nothing again. */
public final class WaitJedis {
    enum Command implements ProtocolCommand {
        LOCK, UNLOCK;

        @Override
        public byte[] getRaw() {
            return name().getBytes(StandardCharsets.US_ASCII);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void wait(String host, int port, String lock, int number) {
        try (Jedis jedis = new Jedis(host, port)) {
            String token = "jedis-" + number;
            Object granted = jedis.sendBlockingCommand(Command.LOCK, lock, "TOKEN", token, "PX", "60000");
            check(token.equals(new String((byte[]) granted, StandardCharsets.UTF_8)), "another token");
            String key = lock + ":" + number;
            jedis.set(key, token);
            check(token.equals(jedis.get(key)), "another value");
            check(jedis.sendCommand(Command.UNLOCK, lock, token).equals(1L), "not released");
        }
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]), clients = Integer.parseInt(arguments[3]);
        List<CompletableFuture<Void>> waiting = new ArrayList<>();
        for (int n = 0; n < clients; n++) {
            int number = n;
            Runnable client = () -> wait(arguments[0], port, arguments[2], number);
            waiting.add(CompletableFuture.runAsync(client, task -> new Thread(task).start()));
        }
        for (CompletableFuture<Void> client : waiting) {
            client.get();
        }
    }
}
