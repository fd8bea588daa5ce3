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
import java.util.TreeSet;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyQueryMetadata;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * Instances of a word count with Kafka Streams by the streams protocol, many in one JVM, and Kafka's tools, for
 * kafkas_word_count.py. The argument is a file of settings of all instances. Lines of standard input are "start NAME
 * GROUP INPUT OUTPUT SETTING=VALUE...", "stop NAME leave" or "stop NAME remain", "tasks NAME", "count NAME WORD" and
 * "tool CLASS ARGUMENT...". Lines of standard output are "NAME state STATE", "NAME error CLASS MESSAGE", the answers
 * "NAME answer ...", and "tool print LINE" and "tool ended". The answer to "tasks" is a list such as "active:0_1
 * standby:1_0", that to "count" is the count or "at HOST:PORT". The JVM ends with its input.
 */
class WordCountOfKafka {
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    private static final String STORE = "counts";
    private static final PrintStream OUT = System.out;
    private static final PrintStream ERR = System.err;
    private static final Properties COMMON = new Properties();
    private static final Map<String, KafkaStreams> INSTANCES = new HashMap<>();
    private static final Map<String, String> ENDPOINTS = new HashMap<>();

    private static synchronized void say(String line) {
        OUT.println(line);
    }

    private static void start(String[] words) {
        String name = words[1];
        Properties settings = new Properties();
        settings.putAll(COMMON);
        settings.setProperty("application.id", words[2]);
        settings.setProperty("client.id", name);
        settings.setProperty("group.protocol", "streams");
        for (String setting : Arrays.copyOfRange(words, 5, words.length))
            settings.setProperty(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(words[3])
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("words"))
            .count(Materialized.as(STORE))
            .toStream()
            .mapValues(String::valueOf)
            .to(words[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> say(name + " state " + now));
        streams.setUncaughtExceptionHandler(exception -> {
            say(name + " error " + exception.getClass().getSimpleName() + " " + exception.getMessage());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        INSTANCES.put(name, streams);
        ENDPOINTS.put(name, settings.getProperty("application.server", ""));
        streams.start();
    }

    private static void stop(String name, String how) {
        var leaving = how.equals("leave") ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP
            : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
        INSTANCES.get(name).close(CloseOptions.timeout(TIMEOUT).withGroupMembershipOperation(leaving));
        say(name + " answer stopped");
    }

    private static String tasks(KafkaStreams streams) {
        var found = new TreeSet<String>();
        streams.metadataForLocalThreads().forEach(thread -> {
            for (TaskMetadata task : thread.activeTasks())
                found.add("active:" + task.taskId());
            for (TaskMetadata task : thread.standbyTasks())
                found.add("standby:" + task.taskId());
        });
        return String.join(" ", found);
    }

    private static String count(String name, String word) {
        KafkaStreams streams = INSTANCES.get(name);
        try {
            KeyQueryMetadata where = streams.queryMetadataForKey(STORE, word, Serdes.String().serializer());
            String host = where.activeHost().host() + ":" + where.activeHost().port();
            if (!host.equals(ENDPOINTS.get(name)))
                return "at " + host;
            var store = StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.<String, Long>keyValueStore());
            return String.valueOf(streams.store(store).get(word));
        } catch (RuntimeException exception) {
            return exception.getClass().getSimpleName();
        }
    }

    private static void runTool(String tool, String[] arguments) throws Exception {
        var printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        System.setErr(System.out);
        // The main method of the tool for streams groups ends the JVM.
        String method = tool.endsWith(".StreamsGroupCommand") ? "execute" : "main";
        Class.forName(tool).getMethod(method, String[].class).invoke(null, (Object) arguments);
        System.setOut(OUT);
        System.setErr(ERR);
        printed.toString().lines().forEach(line -> say("tool print " + line));
        say("tool ended");
    }

    public static void main(String[] arguments) throws Exception {
        COMMON.load(new FileReader(arguments[0]));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "start" -> start(words);
                case "stop" -> stop(words[1], words[2]);
                case "tasks" -> say(words[1] + " answer " + tasks(INSTANCES.get(words[1])));
                case "count" -> say(words[1] + " answer " + count(words[1], words[2]));
                default -> runTool(words[1], Arrays.copyOfRange(words, 2, words.length));
            }
        }
        System.exit(0);
    }
}
