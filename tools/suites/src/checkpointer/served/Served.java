// Adds up the numbers that come by a Unix socket, and says the sum.

import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.util.ArrayList;
import java.util.HashMap;

class Served {
    public static void main(String[] arguments) throws Exception {
        // What an application has made before it answers.
        var table = new HashMap<Integer, String>();
        for (int i = 0; i < 500_000; i++) table.put(i, "value " + i);
        var numbers = new ArrayList<Long>();
        var listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        listener.bind(UnixDomainSocketAddress.of(arguments[0]));
        for (;;) {
            try (var client = listener.accept()) {
                var bytes = ByteBuffer.allocate(64);
                client.read(bytes);
                var number = new String(bytes.array(), 0, bytes.position()).trim();
                numbers.add(Long.parseLong(number));
                long sum = numbers.stream().mapToLong(Long::longValue).sum();
                if (!table.get(7).equals("value 7")) sum = -1;
                client.write(ByteBuffer.wrap(("sum " + sum + "\n").getBytes()));
            } catch (java.io.IOException gone) {
                continue;
            }
        }
    }
}
