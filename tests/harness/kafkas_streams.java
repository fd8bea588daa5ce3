import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.internals.assignment.AssignmentInfo;
import org.apache.kafka.streams.state.HostInfo;

/**
 * The user data of assignments of Kafka Streams in its own bytes, for test_embedded_protocols.py: for each version four
 * lines of hex. It names no assignment, because the test has the same list.
 */
public class StreamsOfKafka {
    private static final HostInfo HERE = new HostInfo("10.0.0.7", 8080), THERE = new HostInfo("h\u00f6st", 1);

    public static void main(String[] arguments) {
        for (int version = 1; version <= 11; version++) {
            String name = version < 10 ? null : "gr\u00f6\u00dfe-\ud83d\ude00";
            print(version, List.of(), Map.of(), 0, Long.MAX_VALUE);
            print(version, List.of(task(0, 1, null), task(1, 0, name)), standbys(), 0, Long.MAX_VALUE);
            print(version, List.of(task(0, 0, null)), Map.of(), 0, 1_700_000_600_000L);
            print(version, List.of(), standbys(), 4, 0);
        }
    }

    private static TaskId task(int subtopology, int partition, String topology) {
        return new TaskId(subtopology, partition, topology);
    }

    private static Map<TaskId, Set<TopicPartition>> standbys() {
        Map<TaskId, Set<TopicPartition>> standbys = new LinkedHashMap<>();
        standbys.put(task(0, 2, null), partitions(2));
        standbys.put(task(1, 3, null), Set.of());
        return standbys;
    }

    private static Set<TopicPartition> partitions(int partition) {
        Set<TopicPartition> partitions = new LinkedHashSet<>();
        partitions.add(new TopicPartition("app-counts-changelog", partition));
        partitions.add(new TopicPartition("orders", partition));
        return partitions;
    }

    private static void print(
        int version, List<TaskId> active, Map<TaskId, Set<TopicPartition>> standbys, int error, long next
    ) {
        Map<HostInfo, Set<TopicPartition>> hosts = Map.of(HERE, partitions(0), THERE, partitions(1));
        AssignmentInfo info = new AssignmentInfo(version, 11, active, standbys, hosts, hosts, error);
        info.setNextRebalanceTime(next);
        ByteBuffer buffer = info.encode();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(HexFormat.of().formatHex(bytes));
    }
}
