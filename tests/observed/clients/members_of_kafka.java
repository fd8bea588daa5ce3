import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;

/**
 * A member with Kafka's own KafkaConsumer, KafkaShareConsumer or KafkaStreams, which --library names: see
 * tests/observed/clients/__init__.py. The application of Kafka Streams counts the records of each key.
 */
class MembersOfKafka {
    private static final Duration POLL = Duration.ofMillis(100), TIMEOUT = Duration.ofSeconds(30);
    private static final BlockingQueue<String> COMMANDS = new LinkedBlockingQueue<>();
    private static final Map<String, String> OPTIONS = new HashMap<>();
    private static final Properties SETTINGS = new Properties();

    public static void main(String[] arguments) throws Exception {
        for (int place = 0; place < arguments.length; place += 2) {
            String name = arguments[place].substring(2), value = arguments[place + 1];
            if (name.equals("setting"))
                SETTINGS.setProperty(value.split("=", 2)[0], value.split("=", 2)[1]);
            else
                OPTIONS.put(name, value);
        }
        SETTINGS.setProperty("bootstrap.servers", OPTIONS.get("servers"));
        SETTINGS.setProperty("client.id", OPTIONS.get("client-id"));
        if (OPTIONS.containsKey("instance-id"))
            SETTINGS.setProperty("group.instance.id", OPTIONS.get("instance-id"));
        Thread reader = new Thread(MembersOfKafka::read);
        reader.setDaemon(true);
        reader.start();
        String error = "";
        try {
            switch (OPTIONS.get("library")) {
                case "streams" -> streams();
                case "share" -> share();
                default -> consume();
            }
        } catch (Exception exception) {
            error = exception.getClass().getSimpleName();
            exception.printStackTrace();
        }
        say("ended", error);
        System.exit(0);
    }

    private static void read() {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        in.lines().forEach(COMMANDS::add);
        COMMANDS.add("leave");
    }

    private static synchronized void say(String event, String words) {
        System.out.println(System.currentTimeMillis() + " " + event + " " + words);
    }

    private static List<String> topics(String text) {
        return List.of(text.split(","));
    }

    private static void consume() {
        SETTINGS.setProperty("group.id", OPTIONS.get("group"));
        try (var consumer = new KafkaConsumer<>(SETTINGS, new StringDeserializer(), new StringDeserializer())) {
            var listener = new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    say("came", names(partitions));
                    say("generation", "" + consumer.groupMetadata().generationId());
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    say("went", names(partitions));
                }
            };
            consumer.subscribe(topics(OPTIONS.get("topics")), listener);
            for (String command = ""; !command.equals("leave"); command = next()) {
                if (command.startsWith("subscribe "))
                    consumer.subscribe(topics(command.split(" ")[1]), listener);
                if (command.equals("commit")) {
                    consumer.commitSync();
                    say("committed", "");
                }
                consumer.poll(POLL);
            }
        }
    }

    private static String next() {
        String command = COMMANDS.poll();
        return command == null ? "" : command;
    }

    private static String names(Collection<TopicPartition> partitions) {
        return partitions.stream().map(p -> p.topic() + ":" + p.partition()).sorted().collect(Collectors.joining(" "));
    }

    /** The partitions of a share consumer are known by the records that it gets. */
    private static void share() {
        SETTINGS.setProperty("group.id", OPTIONS.get("group"));
        try (var consumer =
                 new KafkaShareConsumer<>(SETTINGS, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(topics(OPTIONS.get("topics")));
            TreeSet<String> seen = new TreeSet<>();
            for (String command = ""; !command.equals("leave"); command = next())
                for (ConsumerRecord<String, String> record : consumer.poll(POLL))
                    if (seen.add(record.topic() + ":" + record.partition()))
                        say("came", record.topic() + ":" + record.partition());
        }
    }

    private static void streams() throws InterruptedException {
        SETTINGS.setProperty("application.id", OPTIONS.get("group"));
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(topics(OPTIONS.get("topics"))).groupByKey().count();
        KafkaStreams streams = new KafkaStreams(builder.build(), SETTINGS);
        streams.setUncaughtExceptionHandler(exception -> {
            exception.printStackTrace();
            COMMANDS.add("leave");
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_CLIENT;
        });
        streams.start();
        String shown = "";
        while (!next().equals("leave")) {
            String tasks = tasks(streams);
            if (!tasks.equals(shown)) {
                say("tasks", tasks);
                shown = tasks;
            }
            Thread.sleep(POLL.toMillis());
        }
        streams.close(CloseOptions.timeout(TIMEOUT)
            .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
    }

    private static String tasks(KafkaStreams streams) {
        List<String> tasks = new ArrayList<>();
        streams.metadataForLocalThreads().forEach(thread -> {
            thread.activeTasks().forEach(task -> tasks.add("active:" + id(task)));
            thread.standbyTasks().forEach(task -> tasks.add("standby:" + id(task)));
        });
        return tasks.stream().sorted().collect(Collectors.joining(" "));
    }

    private static String id(TaskMetadata task) {
        return task.taskId().toString();
    }
}
