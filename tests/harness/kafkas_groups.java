import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.List;
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

/**
 * Kafka's own description of groups, for kafkas_groups.py. The arguments are settings of the client, as NAME=VALUE.
 * Lines of standard input are "describe-classic GROUP", "describe-share GROUP" and "describe-streams GROUP". Each is
 * answered by one line: the state, the group epoch, the epoch of the target assignment, and a word for each member, its
 * client id and what it has; or the class of an error. The JVM ends with its input.
 */
public class GroupsOfKafka {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String setting : arguments) {
            String[] pair = setting.split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(settings)) {
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
            case "describe-classic":
                return text(admin.describeClassicGroups(group).all().get().get(words[1]));
            case "describe-share":
                return text(admin.describeShareGroups(group).all().get().get(words[1]));
            case "describe-streams":
                return text(admin.describeStreamsGroups(group).all().get().get(words[1]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
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
