import java.io.FileInputStream;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;

import org.apache.kafka.clients.ApiVersions;
import org.apache.kafka.clients.ClientRequest;
import org.apache.kafka.clients.ClientUtils;
import org.apache.kafka.clients.DefaultHostResolver;
import org.apache.kafka.clients.KafkaClient;
import org.apache.kafka.clients.ManualMetadataUpdater;
import org.apache.kafka.clients.NetworkClientUtils;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FindCoordinatorRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateSummaryRequestData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.FindCoordinatorRequest;
import org.apache.kafka.common.requests.FindCoordinatorResponse;
import org.apache.kafka.common.requests.ReadShareGroupStateSummaryRequest;
import org.apache.kafka.common.requests.ReadShareGroupStateSummaryResponse;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.LogContext;

/**
 * What share coordinators keep, for tests/shared, by ReadShareGroupStateSummary with Kafka's own classes. The argument
 * is a file of client settings of a principal with CLUSTER_ACTION. A line of input is "GROUP TOPIC-ID PARTITION"; it is
 * answered by "STATE-EPOCH START-OFFSET ERROR-CODE", or by "retry WORDS" if a broker does not answer.
 */
class ShareStates {
    private static final int TIMEOUT_MS = 5_000;
    private static final byte SHARE = 2;

    private final Properties settings;
    private KafkaClient client;
    private final Map<String, Node> coordinators = new HashMap<>();

    ShareStates(Properties settings) {
        this.settings = settings;
    }

    private KafkaClient client() {
        if (client == null)
            client = ClientUtils.createNetworkClient(
                new AdminClientConfig(settings), List.of(), "states", new Metrics(), "states", new LogContext(""),
                new ApiVersions(), Time.SYSTEM, 1, TIMEOUT_MS, null, new ManualMetadataUpdater(),
                new DefaultHostResolver(), null, null);
        return client;
    }

    private AbstractResponse ask(Node node, AbstractRequest.Builder<?> request) throws Exception {
        if (!NetworkClientUtils.awaitReady(client(), node, Time.SYSTEM, TIMEOUT_MS))
            throw new IllegalStateException("no connection to " + node);
        ClientRequest asked = client().newClientRequest(node.idString(), request, Time.SYSTEM.milliseconds(), true,
            TIMEOUT_MS, null);
        return NetworkClientUtils.sendAndReceive(client(), asked, Time.SYSTEM).responseBody();
    }

    private Node coordinator(String key) throws Exception {
        Exception last = null;
        int number = 1_000;
        for (String server : settings.getProperty("bootstrap.servers").split(",")) {
            String[] place = server.split(":");
            try {
                var data = new FindCoordinatorRequestData().setKeyType(SHARE).setCoordinatorKeys(List.of(key));
                var found = ((FindCoordinatorResponse) ask(
                    new Node(number++, place[0], Integer.parseInt(place[1])),
                    new FindCoordinatorRequest.Builder(data))).data().coordinators().get(0);
                if (found.errorCode() == 0)
                    return new Node(found.nodeId(), found.host(), found.port());
                last = new IllegalStateException("FindCoordinator " + found.errorCode());
            } catch (Exception error) {
                last = error;
            }
        }
        throw last;
    }

    String read(String group, String topic, String partition) throws Exception {
        String key = group + ":" + topic + ":" + partition;
        if (!coordinators.containsKey(key))
            coordinators.put(key, coordinator(key));
        var data = new ReadShareGroupStateSummaryRequestData().setGroupId(group).setTopics(List.of(
            new ReadShareGroupStateSummaryRequestData.ReadStateSummaryData().setTopicId(Uuid.fromString(topic))
                .setPartitions(List.of(new ReadShareGroupStateSummaryRequestData.PartitionData()
                    .setPartition(Integer.parseInt(partition)).setLeaderEpoch(-1)))));
        var answer = (ReadShareGroupStateSummaryResponse) ask(coordinators.get(key),
            new ReadShareGroupStateSummaryRequest.Builder(data));
        var read = answer.data().results().get(0).partitions().get(0);
        if (read.errorCode() != 0)
            coordinators.remove(key);
        return read.stateEpoch() + " " + read.startOffset() + " " + read.errorCode();
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (var file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        ShareStates states = new ShareStates(settings);
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            try {
                System.out.println(states.read(words[0], words[1], words[2]));
            } catch (Exception error) {
                states.coordinators.clear();
                System.out.println("retry " + error);
            }
        }
    }
}
