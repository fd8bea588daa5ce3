import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's consumers, many in one JVM, for kafkas_consumers.py. Lines of standard input are "start NAME TOPIC
 * SETTING=VALUE...", "hold NAME", after which it does not poll, and "stop NAME".
 * Lines of standard output are "NAME NANOSECONDS EVENT WORDS" with the time of System.nanoTime. The events are
 * "came" and "went" with partitions as TOPIC:NUMBER, "record" with the value, and "ended", with the class of the
 * exception if one ended the consumer. The JVM ends with its input.
 */
public class ConsumersOfKafka {
    private static final Duration POLL = Duration.ofMillis(100);

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final String name;
        private final String topic;
        private final Properties settings = new Properties();
        private boolean isHeld;
        private boolean isStopped;

        Member(String[] words) {
            name = words[1];
            topic = words[2];
            for (String setting : Arrays.copyOfRange(words, 3, words.length)) {
                String[] pair = setting.split("=", 2);
                settings.setProperty(pair[0], pair[1]);
            }
            setDaemon(true);
        }

        @Override
        public void run() {
            String error = "";
            try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic), this);
                while (mayPoll())
                    for (ConsumerRecord<String, String> record : consumer.poll(POLL))
                        say("record", record.value());
            } catch (Exception exception) {
                error = exception.getClass().getSimpleName();
            }
            say("ended", error);
        }

        /** Waits while the member is held. False when it is to stop. */
        private synchronized boolean mayPoll() throws InterruptedException {
            while (isHeld && !isStopped)
                wait();
            return !isStopped;
        }

        synchronized void hold() {
            isHeld = true;
        }

        synchronized void halt() {
            isStopped = true;
            notifyAll();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("came", names(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say("went", names(partitions));
        }

        private static String names(Collection<TopicPartition> partitions) {
            return partitions.stream().map(p -> p.topic() + ":" + p.partition()).collect(Collectors.joining(" "));
        }

        private void say(String event, String words) {
            System.out.println(name + " " + System.nanoTime() + " " + event + " " + words);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Member> members = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                members.put(words[1], new Member(words));
                members.get(words[1]).start();
            } else if (words[0].equals("hold")) {
                members.get(words[1]).hold();
            } else {
                members.get(words[1]).halt();
            }
        }
    }
}
