import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import java.util.stream.Collectors;

import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.body.QueryAssignmentRequestBody;
import org.apache.rocketmq.remoting.protocol.body.SetMessageRequestModeRequestBody;
import org.apache.rocketmq.remoting.protocol.body.UnlockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;

/**
 * RocketMQ's own reading of frames on standard input and output, for rocketmqs_reader.py. A frame begins with its
 * length of 32 bits. The answer is a frame, too: 0 and what RocketMQ has read, as JSON; or 1 and the exception with
 * which it refuses the frame.
 */
public class ReaderOfRocketmq {
    private static final Map<Integer, Class<?>> BODIES = Map.of(
        34, HeartbeatData.class,
        41, LockBatchRequestBody.class,
        42, UnlockBatchRequestBody.class,
        400, QueryAssignmentRequestBody.class,
        401, SetMessageRequestModeRequestBody.class);

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        System.setOut(new PrintStream(OutputStream.nullOutputStream())); // Logback prints 200 lines when it starts
        while (true) {
            int size;
            try {
                size = in.readInt();
            } catch (EOFException end) {
                out.flush();
                return;
            }
            byte[] answer = answer(in.readNBytes(size));
            out.writeInt(answer.length);
            out.write(answer);
            if (in.available() == 0)
                out.flush();
        }
    }

    private static byte[] answer(byte[] frame) {
        try {
            RemotingCommand command = RemotingCommand.decode(ByteBuffer.wrap(frame));
            Class<?> kind = BODIES.get(command.getCode());
            byte[] body = command.getBody();
            Object read = kind == null ? null : RemotingSerializable.decode(body, kind);
            String text = "{\"header\":" + json(command) + ",\"body\":" + json(read)
                + ",\"bodyLength\":" + (body == null ? 0 : body.length) + "}";
            return ("0" + text).getBytes(StandardCharsets.US_ASCII);
        } catch (Throwable refusal) {
            return ("1" + json(refusal.toString())).getBytes(StandardCharsets.US_ASCII);
        }
    }

    /** The fields that go over the wire, sets in the order of their texts. */
    private static String json(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number)
            return String.valueOf(value);
        if (value instanceof CharSequence || value instanceof Enum)
            return quoted(value.toString());
        if (value instanceof Collection<?> items)
            return items.stream().map(ReaderOfRocketmq::json).sorted().collect(Collectors.joining(",", "[", "]"));
        if (value instanceof Map<?, ?> map)
            return map.entrySet().stream()
                .map(entry -> quoted(String.valueOf(entry.getKey())) + ":" + json(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        StringBuilder text = new StringBuilder("{");
        for (Field field : value.getClass().getDeclaredFields()) {
            if ((field.getModifiers() & (Modifier.STATIC | Modifier.TRANSIENT)) != 0)
                continue;
            field.setAccessible(true);
            try {
                text.append(text.length() > 1 ? "," : "").append(quoted(field.getName())).append(':')
                    .append(json(field.get(value)));
            } catch (IllegalAccessException impossible) {
                throw new AssertionError(impossible);
            }
        }
        return text.append('}').toString();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < ' ' || c > '~' || c == '"' || c == '\\')
                quoted.append(String.format("\\u%04x", (int) c));
            else
                quoted.append(c);
        }
        return quoted.append('"').toString();
    }
}
