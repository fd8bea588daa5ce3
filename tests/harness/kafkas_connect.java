import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.IntStream;

import org.apache.kafka.connect.runtime.distributed.ConnectProtocol;
import org.apache.kafka.connect.runtime.distributed.ExtendedAssignment;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeConnectProtocol;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * Assignments of Kafka Connect in its own bytes, for test_embedded_protocols.py: a line of hex for each. It names no
 * assignment, because the test has the same list.
 */
public class ConnectOfKafka {
    private static final String LEADER = "connect-127.0.0.1:8083-1f0c", URL = "http://127.0.0.1:8083/";

    public static void main(String[] arguments) {
        short none = ConnectProtocol.Assignment.NO_ERROR, mismatch = ConnectProtocol.Assignment.CONFIG_MISMATCH;
        eager(none, 7, List.of("source", "sink"), tasks("source", 3));
        eager(none, -1, List.of(), List.of());
        eager(mismatch, 12, List.of(), List.of());
        for (short version = 1; version <= 2; version++) {
            incremental(version, none, 7, List.of("source"), tasks("source", 2), List.of(), List.of(), 0);
            incremental(version, none, 8, List.of(), tasks("sink", 1), List.of("sink"), tasks("source", 4), 0);
            incremental(version, none, 9, List.of(), List.of(), List.of(), List.of(), 300_000);
            incremental(version, mismatch, 9, List.of(), List.of(), List.of(), List.of(), 0);
            incremental(version, none, Long.MAX_VALUE, List.of("größe-\u4e2d"), List.of(), List.of(), List.of(), 1);
        }
    }

    private static List<ConnectorTaskId> tasks(String connector, int number) {
        return IntStream.range(0, number).mapToObj(task -> new ConnectorTaskId(connector, task)).toList();
    }

    private static void eager(short error, long offset, List<String> connectors, List<ConnectorTaskId> tasks) {
        print(ConnectProtocol.serializeAssignment(
            new ConnectProtocol.Assignment(error, LEADER, URL, offset, connectors, tasks)));
    }

    private static void incremental(
        short version, short error, long offset, List<String> connectors, List<ConnectorTaskId> tasks,
        List<String> revokedConnectors, List<ConnectorTaskId> revokedTasks, int delay
    ) {
        print(IncrementalCooperativeConnectProtocol.serializeAssignment(
            new ExtendedAssignment(
                version, error, LEADER, URL, offset, connectors, tasks, revokedConnectors, revokedTasks, delay),
            version > 1));
    }

    private static void print(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(HexFormat.of().formatHex(bytes));
    }
}
