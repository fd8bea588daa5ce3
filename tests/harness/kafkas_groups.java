import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupMemberAssignment.TaskIds;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Members of share and streams groups, and Kafka's own description of these groups, for kafkas_groups.py. The arguments
 * are settings of all clients, as NAME=VALUE. Lines of standard input are "share NAME GROUP TOPIC", "streams NAME GROUP
 * TOPIC FOLDER", "stop NAME", "describe-classic GROUP", "describe-share GROUP", "describe-streams GROUP" and "delete-share GROUP". Each is
 * answered by one line: the state, the group epoch, the epoch of the target assignment, and a word for each member, its
 * client id and what it has; or "done", or the class of an error. The JVM ends with its input.
 *
 * A streams application counts records by key in a store in memory, so each task has a changelog.
 */
public class GroupsOfKafka {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Properties COMMON = new Properties();
    private static final Map<String, AutoCloseable> MEMBERS = new HashMap<>();

    private static final class ShareMember extends Thread implements AutoCloseable {
        private final KafkaShareConsumer<String, String> consumer;
        private volatile boolean isStopped;

        ShareMember(String name, String group, String topic) {
            Properties settings = settings(name);
            settings.setProperty("group.id", group);
            consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic));
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!isStopped)
                    consumer.poll(POLL);
            }
        }

        @Override
        public void close() throws InterruptedException {
            isStopped = true;
            join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (String setting : arguments) {
            String[] pair = setting.split("=", 2);
            COMMON.setProperty(pair[0], pair[1]);
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(COMMON)) {
            for (String line = in.readLine(); line != null; line = in.readLine())
                System.out.println(answerOrError(admin, line.split(" ")));
        }
    }

    private static String answerOrError(Admin admin, String[] words) throws Exception {
        try {
            return answer(admin, words);
        } catch (ExecutionException refused) {
            return refused.getCause().getClass().getSimpleName();
        }
    }

    private static String answer(Admin admin, String[] words) throws Exception {
        List<String> group = List.of(words[1]);
        switch (words[0]) {
            case "share":
                MEMBERS.put(words[1], new ShareMember(words[1], words[2], words[3]));
                return "done";
            case "streams":
                MEMBERS.put(words[1], streams(words[1], words[2], words[3], words[4]));
                return "done";
            case "stop":
                MEMBERS.remove(words[1]).close();
                return "done";
            case "describe-classic":
                return text(admin.describeClassicGroups(group).all().get().get(words[1]));
            case "describe-share":
                return text(admin.describeShareGroups(group).all().get().get(words[1]));
            case "describe-streams":
                return text(admin.describeStreamsGroups(group).all().get().get(words[1]));
            case "delete-share":
                admin.deleteShareGroups(group).all().get();
                return "done";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static AutoCloseable streams(String name, String group, String topic, String folder) {
        Properties settings = settings(name);
        settings.setProperty("application.id", group);
        settings.setProperty("group.protocol", "streams");
        settings.setProperty("state.dir", folder);
        settings.setProperty("num.stream.threads", "1");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(topic).groupByKey()
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()));
        settings.setProperty("default.key.serde", Serdes.StringSerde.class.getName());
        settings.setProperty("default.value.serde", Serdes.StringSerde.class.getName());
        KafkaStreams member = new KafkaStreams(builder.build(), settings);
        member.start();
        return () -> member.close(CloseOptions.groupMembershipOperation(GroupMembershipOperation.LEAVE_GROUP));
    }

    private static Properties settings(String name) {
        Properties settings = new Properties();
        settings.putAll(COMMON);
        settings.setProperty("client.id", name);
        return settings;
    }

    private static String text(ClassicGroupDescription group) {
        return text(group.state(), 0, 0, group.members().stream().map(m -> m.clientId() + " "));
    }

    private static String text(ShareGroupDescription group) {
        return text(group.groupState(), group.groupEpoch(), group.targetAssignmentEpoch(), group.members().stream()
            .map(m -> m.clientId() + " " + m.assignment().topicPartitions().stream()
                .map(p -> p.topic() + ":" + p.partition()).sorted().collect(Collectors.joining(","))));
    }

    private static String text(StreamsGroupDescription group) {
        return text(group.groupState(), group.groupEpoch(), group.targetAssignmentEpoch(), group.members().stream()
            .map(m -> m.clientId() + " " + Stream.of(
                tasks("active ", m.assignment().activeTasks()), tasks("standby ", m.assignment().standbyTasks()),
                tasks("warm-up ", m.assignment().warmupTasks())).flatMap(Function.identity())
                .sorted().collect(Collectors.joining(","))));
    }

    private static Stream<String> tasks(String role, Collection<TaskIds> tasks) {
        return tasks.stream().flatMap(t -> t.partitions().stream().map(p -> role + t.subtopologyId() + ":" + p));
    }

    private static String text(Object state, int epoch, int targetEpoch, Stream<String> members) {
        return Stream.concat(Stream.of(state, epoch, targetEpoch).map(String::valueOf), members.sorted())
            .collect(Collectors.joining("|"));
    }
}
