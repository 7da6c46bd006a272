// What docs/clients.md shows for Jedis. tests/clients/run puts its own host and port here.
import java.util.UUID;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

public final class Readme {
    static final ProtocolCommand LOCK = "LOCK"::getBytes, UNLOCK = "UNLOCK"::getBytes;

    public static void main(String[] arguments) {
        try (Jedis jedis = new Jedis("localhost", 6380)) {
            String token = UUID.randomUUID().toString();
            // A blocking command: Jedis waits for other replies 2 s only.
            if (jedis.sendBlockingCommand(
                    LOCK, "order:42", "TOKEN", token, "PX", "30000", "WAIT", "10000") != null) {
                try {
                    System.out.println("working on order 42");
                } finally {
                    jedis.sendCommand(UNLOCK, "order:42", token);
                }
            } else {
                System.out.println("order 42 is busy");
            }
        }
    }
}
