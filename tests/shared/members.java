import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's share consumers, one of each group in one JVM, for tests/shared. Arguments are SERVERS FOLDER TOPIC,TOPIC
 * and groups as NAME:explicit or NAME:implicit. While the file FOLDER/NAME.away exists, the consumer of that group is
 * closed. Records are numbers, from which an explicit consumer knows what to do with them.
 *
 * A file FOLDER/PID.events has a line "NANOSECONDS GROUP EVENT NUMBER WORD..." for each event, with the time of
 * System.nanoTime. Events are "delivered" with the delivery count, "sent" with a type of acknowledgement before the
 * client may send it, "outcome" with that type and "-" or the class of the error, "stuck" when the consumer is closed
 * because a record did not come again after its renewal, and "joined" and "left" without a number. What is "sent" is in the file before the client has it, so a kill hides no acknowledgement.
 */
class ShareMembers {
    private static final Duration POLL = Duration.ofMillis(200);

    private static final long RENEWAL_NS = Duration.ofSeconds(15).toNanos();

    private record Acknowledged(String number, AcknowledgeType type, long atNs) { }

    private static final class Member extends Thread {
        private final String servers;
        private final Path folder;
        private final List<String> topics;
        private final String group;
        private final boolean isExplicit;
        private final OutputStream events;
        private final StringBuilder said = new StringBuilder();
        private final Map<TopicPartition, Map<Long, Acknowledged>> open = new HashMap<>();
        private int polls;

        Member(String servers, Path folder, List<String> topics, String[] group, OutputStream events) {
            this.servers = servers;
            this.folder = folder;
            this.topics = topics;
            this.group = group[0];
            this.isExplicit = group[1].equals("explicit");
            this.events = events;
        }

        @Override
        public void run() {
            Path away = folder.resolve(group + ".away");
            try {
                while (true) {
                    if (!Files.exists(away))
                        consume(away);
                    Thread.sleep(POLL.toMillis());
                }
            } catch (Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(3);  // the test starts it again
            }
        }

        private void consume(Path away) throws IOException {
            Properties settings = new Properties();
            settings.setProperty("bootstrap.servers", servers);
            settings.setProperty("group.id", group);
            settings.setProperty("metadata.max.age.ms", "2000");
            settings.setProperty("max.poll.records", "100");
            settings.setProperty("reconnect.backoff.max.ms", "500");
            settings.setProperty("share.acknowledgement.mode", isExplicit ? "explicit" : "implicit");
            open.clear();
            try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                    offsets.forEach((partition, all) -> all.forEach(
                        offset -> outcome(partition.topicPartition(), offset, error)));
                });
                consumer.subscribe(topics);
                say("joined", "-");
                write();
                while (!Files.exists(away) && !isStuck()) {
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL))
                        take(consumer, record);
                    write();
                    // Acknowledgements ride in the next fetch, or are a request of their own.
                    polls++;
                    if (polls % 3 == 0)
                        consumer.commitAsync();
                    else if (polls % 5 == 0)
                        consumer.commitSync(Duration.ofSeconds(10));
                    write();
                }
            }
            say("left", "-");
            write();
        }

        /**
         * Whether a record whose lock was renewed did not come again. Kafka's consumer 4.4 then returns no records at
         * all any more, at times. Another one takes its place, as an application would have it.
         */
        private boolean isStuck() {
            long before = System.nanoTime() - RENEWAL_NS;
            for (Map<Long, Acknowledged> ofPartition : open.values())
                for (Acknowledged last : ofPartition.values())
                    if (last.type == AcknowledgeType.RENEW && last.atNs - before < 0) {
                        say("stuck", last.number);
                        return true;
                    }
            return false;
        }

        private void take(KafkaShareConsumer<String, String> consumer, ConsumerRecord<String, String> record) {
            int count = record.deliveryCount().orElse((short) 0);
            AcknowledgeType type = isExplicit ? typeFor(record, count) : AcknowledgeType.ACCEPT;
            say("delivered", record.value() + " " + count);
            say("sent", record.value() + " " + type);
            open.computeIfAbsent(new TopicPartition(record.topic(), record.partition()), key -> new HashMap<>())
                .put(record.offset(), new Acknowledged(record.value(), type, System.nanoTime()));
            if (isExplicit)
                consumer.acknowledge(record, type);
        }

        private AcknowledgeType typeFor(ConsumerRecord<String, String> record, int count) {
            var before = open.getOrDefault(new TopicPartition(record.topic(), record.partition()), Map.of())
                .get(record.offset());
            boolean isRenewed = before != null && before.number.equals(record.value())
                && before.type == AcknowledgeType.RENEW;
            return switch ((int) (Long.parseLong(record.value()) % 20)) {
                case 5 -> AcknowledgeType.REJECT;
                case 7 -> count == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                case 9 -> isRenewed ? AcknowledgeType.ACCEPT : AcknowledgeType.RENEW;
                default -> AcknowledgeType.ACCEPT;
            };
        }

        private void outcome(TopicPartition partition, long offset, Exception error) {
            Acknowledged last = open.getOrDefault(partition, Map.of()).get(offset);
            if (last == null)
                return;  // a gap, or a record that was never handed out
            String name = error == null ? "-" : error.getClass().getSimpleName();
            say("outcome", last.number + " " + last.type + " " + name);
            if (last.type != AcknowledgeType.RENEW || error != null)
                open.get(partition).remove(offset);
        }

        private void say(String event, String words) {
            said.append(System.nanoTime()).append(' ').append(group).append(' ').append(event).append(' ')
                .append(words).append('\n');
        }

        private void write() throws IOException {
            if (said.isEmpty())
                return;
            byte[] bytes = said.toString().getBytes(StandardCharsets.UTF_8);
            said.setLength(0);
            synchronized (events) {
                events.write(bytes);
            }
        }
    }

    public static void main(String[] arguments) throws IOException {
        Path folder = Path.of(arguments[1]);
        OutputStream events = new FileOutputStream(folder.resolve(ProcessHandle.current().pid() + ".events").toFile());
        for (String group : Arrays.copyOfRange(arguments, 3, arguments.length))
            new Member(arguments[0], folder, List.of(arguments[2].split(",")), group.split(":"), events).start();
    }
}
