import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's assignors on standard input and output, for kafkas_assignors.py. A case is an assignor's name, lines
 * "topic NAME RACKS|RACKS..." (the racks of each partition) and "member ID INSTANCE RACK GENERATION TOPICS
 * OWNED USERDATA" with "-" for what is missing, and an empty line. The answer is one line: NANOSECONDS ID=p,p,...
 * with the processor's time that the assignor took.
 */
public class AssignorsOfKafka {
    private record Member(String id, Optional<String> instance, Optional<String> rack, int generation,
                          List<String> topics, List<TopicPartition> owned, ByteBuffer userData) { }

    private static final Map<String, AbstractPartitionAssignor> CLIENTS = Map.of(
        "range", new RangeAssignor(), "roundrobin", new RoundRobinAssignor());
    private static final Map<String, ConsumerGroupPartitionAssignor> BROKERS = Map.of(
        "uniform", new UniformAssignor(),
        "server-range", new org.apache.kafka.coordinator.group.assignor.RangeAssignor());

    public static void main(String[] args) throws Exception {
        ThreadMXBean clock = ManagementFactory.getThreadMXBean();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String name = in.readLine(); name != null; name = in.readLine()) {
            Map<String, List<Set<String>>> topics = new TreeMap<>();
            Map<String, Member> members = new LinkedHashMap<>();
            for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
                String[] words = line.split(" ");
                if (words[0].equals("topic"))
                    topics.put(words[1], racks(words[2]));
                else
                    members.put(words[1], member(words));
            }
            Map<String, List<TopicPartition>> answer = new TreeMap<>();
            Map<String, List<PartitionInfo>> infos = infos(topics, members);
            Map<String, Subscription> subscriptions = subscriptions(members);
            long start = clock.getCurrentThreadCpuTime();
            if (BROKERS.containsKey(name))
                assignOnBroker(BROKERS.get(name), topics, members, answer);
            else
                answer.putAll(client(name).assignPartitions(infos, subscriptions));
            System.out.println((clock.getCurrentThreadCpuTime() - start) + text(answer));
            System.out.flush();
        }
    }

    /** The sticky ones keep the highest generation they have seen: a new one for each case. */
    private static AbstractPartitionAssignor client(String name) {
        return switch (name) {
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> CLIENTS.get(name);
        };
    }

    private static String text(Map<String, List<TopicPartition>> answer) {
        StringBuilder line = new StringBuilder();
        answer.forEach((id, partitions) -> {
            line.append(' ').append(id).append('=');
            TreeSet<String> names = new TreeSet<>();
            partitions.forEach(p -> names.add(p.topic() + ":" + p.partition()));
            line.append(String.join(",", names));
        });
        return line.toString();
    }

    private static List<Set<String>> racks(String word) {
        List<Set<String>> racks = new ArrayList<>();
        for (String names : word.split("\\|"))
            racks.add(new TreeSet<>(list(names)));
        return racks;
    }

    private static Optional<String> optional(String word) {
        return word.equals("-") ? Optional.empty() : Optional.of(word);
    }

    private static List<String> list(String word) {
        return word.equals("-") ? List.of() : List.of(word.split(","));
    }

    private static Member member(String[] words) {
        List<TopicPartition> owned = new ArrayList<>();
        for (String name : list(words[6]))
            owned.add(new TopicPartition(name.split(":")[0], Integer.parseInt(name.split(":")[1])));
        ByteBuffer userData = words[7].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(words[7]));
        return new Member(words[1], optional(words[2]), optional(words[3]), Integer.parseInt(words[4]),
            list(words[5]), owned, userData);
    }

    /** Of the subscribed topics, which are all that Kafka's leader passes to an assignor. */
    private static Map<String, List<PartitionInfo>> infos(Map<String, List<Set<String>>> topics,
                                                          Map<String, Member> members) {
        Map<String, List<PartitionInfo>> infos = new TreeMap<>();
        topics.forEach((topic, partitions) -> {
            List<PartitionInfo> list = new ArrayList<>();
            for (Set<String> racks : partitions) {
                Node[] replicas = racks.stream().map(r -> new Node(r.hashCode(), "host", 1, r)).toArray(Node[]::new);
                list.add(new PartitionInfo(topic, list.size(), Node.noNode(), replicas, replicas));
            }
            if (members.values().stream().anyMatch(m -> m.topics().contains(topic)))
                infos.put(topic, list);
        });
        return infos;
    }

    private static Map<String, Subscription> subscriptions(Map<String, Member> members) {
        Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        members.forEach((id, m) -> {
            Subscription s = new Subscription(m.topics(), m.userData(), m.owned(), m.generation(), m.rack());
            s.setGroupInstanceId(m.instance());
            subscriptions.put(id, s);
        });
        return subscriptions;
    }

    private static void assignOnBroker(ConsumerGroupPartitionAssignor assignor, Map<String, List<Set<String>>> topics,
                                       Map<String, Member> members, Map<String, List<TopicPartition>> answer) {
        // These ids have hash codes that go up with the name, so that hash tables keep the order of names.
        Map<String, Uuid> idOf = new TreeMap<>();
        Map<Uuid, String> nameOf = new TreeMap<>();
        topics.keySet().forEach(topic -> {
            Uuid id = new Uuid(0, idOf.size() + 1);
            idOf.put(topic, id);
            nameOf.put(id, topic);
        });
        Map<String, MemberSubscriptionAndAssignmentImpl> specs = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> holders = new TreeMap<>();
        Set<Set<String>> wishes = new LinkedHashSet<>();
        members.forEach((id, m) -> {
            Map<Uuid, Set<Integer>> owned = new TreeMap<>();
            for (TopicPartition p : m.owned()) {
                owned.computeIfAbsent(idOf.get(p.topic()), x -> new TreeSet<>()).add(p.partition());
                if (m.topics().contains(p.topic()))
                    holders.computeIfAbsent(idOf.get(p.topic()), x -> new TreeMap<>()).put(p.partition(), id);
            }
            Set<Uuid> wanted = new TreeSet<>();
            m.topics().forEach(topic -> wanted.add(idOf.get(topic)));
            wishes.add(new TreeSet<>(m.topics()));
            specs.put(id, new MemberSubscriptionAndAssignmentImpl(m.rack(), m.instance(), wanted, new Assignment(owned)));
        });
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topicId) {
                return nameOf.containsKey(topicId) ? topics.get(nameOf.get(topicId)).size() : -1;
            }

            @Override
            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return topics.get(nameOf.get(topicId)).get(partition);
            }
        };
        SubscriptionType type = wishes.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupAssignment assigned = assignor.assign(new GroupSpecImpl(specs, type, holders), describer);
        members.keySet().forEach(id -> {
            List<TopicPartition> list = new ArrayList<>();
            if (assigned.members().containsKey(id))
                assigned.members().get(id).partitions().forEach((topicId, partitions) ->
                    partitions.forEach(p -> list.add(new TopicPartition(nameOf.get(topicId), p))));
            answer.put(id, list);
        });
    }
}
