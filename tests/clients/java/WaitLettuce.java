import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.output.ValueOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Lettuce waits for a lock while Redis fails over: WaitLettuce HOST PORT LOCK CLIENTS. It does not connect again, so
 * a connection that ends is an exception.
 */
public final class WaitLettuce {
    enum Keyword implements ProtocolKeyword {
        LOCK, UNLOCK;

        @Override
        public byte[] getBytes() {
            return name().getBytes(StandardCharsets.US_ASCII);
        }
    }

    static <T> RedisFuture<T> send(StatefulRedisConnection<String, String> connection, Keyword name,
            CommandOutput<String, String, T> output, String... words) {
        CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8);
        for (String word : words) {
            arguments.add(word);
        }
        return connection.async().dispatch(name, output, arguments);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void use(StatefulRedisConnection<String, String> connection, String granted, String lock, int number) {
        String token = "lettuce-" + number, key = lock + ":" + number;
        check(token.equals(granted), "another token");
        connection.sync().set(key, token);
        check(token.equals(connection.sync().get(key)), "another value");
        check(send(connection, Keyword.UNLOCK, new IntegerOutput<>(StringCodec.UTF8), lock, token).toCompletableFuture()
                .join().equals(1L), "not released");
    }

    public static void main(String[] arguments) throws Exception {
        String lock = arguments[2];
        int clients = Integer.parseInt(arguments[3]);
        RedisClient client = RedisClient.create(RedisURI.create(arguments[0], Integer.parseInt(arguments[1])));
        client.setOptions(ClientOptions.builder().autoReconnect(false).build());
        List<CompletableFuture<Void>> waiting = new ArrayList<>();
        for (int n = 0; n < clients; n++) {
            int number = n;
            var connection = client.connect();
            // The connections may reach the lock in any order, so each goes on when its own reply comes.
            waiting.add(send(connection, Keyword.LOCK, new ValueOutput<>(StringCodec.UTF8), lock, "TOKEN",
                    "lettuce-" + n, "PX", "60000").toCompletableFuture()
                    .thenAcceptAsync(granted -> use(connection, granted, lock, number), task -> new Thread(task).start()));
        }
        for (CompletableFuture<Void> each : waiting) {
            each.get(60, TimeUnit.SECONDS);
        }
        client.shutdown();
    }
}
