import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's share consumers, many in one JVM, and Kafka's tools, for kafkas_shares.py. The argument is a file of
 * settings of all consumers. Lines of standard input are "start NAME GROUP TOPIC HOW", "stop NAME" and "tool CLASS
 * ARGUMENT...". HOW is "accept", "release", which gives each record back once, "reject", or a value: the records of that
 * value are given back always. Lines of standard output are "NAME record VALUE DELIVERIES", when the record is
 * acknowledged, and "NAME ended", with the class of the exception if one ended the consumer, and "tool print LINE" and
 * "tool ended". The JVM ends with its input.
 */
public class SharesOfKafka {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final PrintStream OUT = System.out;
    private static final PrintStream ERR = System.err;
    private static final Properties COMMON = new Properties();

    private static final class Member extends Thread {
        private final String name;
        private final String topic;
        private final String how;
        private final Properties settings = new Properties();
        private volatile boolean isStopped;

        Member(String[] words) {
            name = words[1];
            topic = words[3];
            how = words[4];
            settings.putAll(COMMON);
            settings.setProperty("group.id", words[2]);
            settings.setProperty("share.acknowledgement.mode", "explicit");
            setDaemon(true);
        }

        @Override
        public void run() {
            String error = "";
            var texts = new StringDeserializer();
            try (var consumer = new KafkaShareConsumer<>(settings, texts, texts)) {
                consumer.subscribe(List.of(topic));
                while (!isStopped) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    for (ConsumerRecord<String, String> record : records)
                        consumer.acknowledge(record, acknowledgement(record.value(), deliveries(record)));
                    if (!records.isEmpty())
                        consumer.commitSync();
                    for (ConsumerRecord<String, String> record : records)
                        say(name + " record " + record.value() + " " + deliveries(record));
                }
            } catch (Exception exception) {
                error = exception.getClass().getSimpleName();
            }
            say(name + " ended " + error);
        }

        private static int deliveries(ConsumerRecord<String, String> record) {
            return record.deliveryCount().orElseThrow();
        }

        private AcknowledgeType acknowledgement(String value, int deliveries) {
            if (how.equals("reject"))
                return AcknowledgeType.REJECT;
            boolean isReleased = how.equals("release") ? deliveries == 1 : how.equals(value);
            return isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
        }
    }

    private static synchronized void say(String line) {
        OUT.println(line);
    }

    /** The jars of 4.3 have no tools, so the class is found when it is asked for. */
    private static void runTool(String tool, String[] arguments) throws Exception {
        var printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        System.setErr(System.out);
        Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        System.setOut(OUT);
        System.setErr(ERR);
        printed.toString().lines().forEach(line -> say("tool print " + line));
        say("tool ended");
    }

    public static void main(String[] arguments) throws Exception {
        COMMON.load(new FileReader(arguments[0]));
        Map<String, Member> members = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                members.put(words[1], new Member(words));
                members.get(words[1]).start();
            } else if (words[0].equals("stop")) {
                members.get(words[1]).isStopped = true;
            } else {
                runTool(words[1], Arrays.copyOfRange(words, 2, words.length));
            }
        }
    }
}
