import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

/**
 * Kafka's sticky task assignor on standard input and output, for test_live.py. A case is a line with the number
 * of standby replicas, lines "subtopology ID TASKS STATEFUL" and "member ID PROCESS ACTIVE STANDBY OFFSETS" with "-"
 * for what is missing, and an empty line. Tasks are "0:1,1:3", offsets "0:1:500". The answer is one line: ID=ACTIVE/STANDBY.
 */
public class TasksOfKafka {
    private record Subtopology(int tasks, boolean isStateful) { }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String first = in.readLine(); first != null; first = in.readLine()) {
            Map<String, Subtopology> subtopologies = new TreeMap<>();
            Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
            for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
                String[] words = line.split(" ");
                if (words[0].equals("subtopology"))
                    subtopologies.put(words[1], new Subtopology(Integer.parseInt(words[2]), words[3].equals("true")));
                else
                    members.put(words[1], new MemberMetadataAndStateImpl(Optional.empty(), Optional.empty(), words[2],
                        Map.of(), tasks(words[3]), tasks(words[4]), Map.of(), offsets(words[5]), Map.of()));
            }
            AssignmentConfigsImpl configs = new AssignmentConfigsImpl(Integer.parseInt(first), List.of());
            Map<String, MemberAssignment> assigned =
                new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs), describer(subtopologies)).members();
            StringBuilder answer = new StringBuilder();
            new TreeMap<>(members).forEach((id, member) -> {
                MemberAssignment has = assigned.getOrDefault(id, new MemberAssignment(Map.of(), Map.of()));
                answer.append(' ').append(id).append('=').append(text(has.activeTasks())).append('/').append(text(has.standbyTasks()));
            });
            System.out.println(answer.substring(1));
            System.out.flush();
        }
    }

    private static TopologyDescriber describer(Map<String, Subtopology> subtopologies) {
        return new TopologyDescriber() {
            @Override
            public List<String> subtopologies() {
                return List.copyOf(subtopologies.keySet());
            }

            @Override
            public int maxNumInputPartitions(String id) {
                return subtopologies.get(id).tasks();
            }

            @Override
            public boolean isStateful(String id) {
                return subtopologies.get(id).isStateful();
            }
        };
    }

    private static String[] list(String word) {
        return word.equals("-") ? new String[0] : word.split(",");
    }

    private static Map<String, Set<Integer>> tasks(String word) {
        Map<String, Set<Integer>> tasks = new TreeMap<>();
        for (String task : list(word)) {
            String[] parts = task.split(":");
            tasks.computeIfAbsent(parts[0], id -> new TreeSet<>()).add(Integer.parseInt(parts[1]));
        }
        return tasks;
    }

    private static Map<String, Map<Integer, Long>> offsets(String word) {
        Map<String, Map<Integer, Long>> offsets = new TreeMap<>();
        for (String offset : list(word)) {
            String[] parts = offset.split(":");
            offsets.computeIfAbsent(parts[0], id -> new TreeMap<>()).put(Integer.parseInt(parts[1]), Long.parseLong(parts[2]));
        }
        return offsets;
    }

    private static String text(Map<String, Set<Integer>> tasks) {
        StringBuilder text = new StringBuilder();
        new TreeMap<>(tasks).forEach((id, numbers) -> new TreeSet<>(numbers).forEach(
            number -> text.append(text.isEmpty() ? "" : ",").append(id).append(':').append(number)));
        return text.toString();
    }
}
