import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Kafka's own writing of records of __consumer_offsets, for test_consumer_offsets_schemas.py. A line of the input is the
 * prefix (the type of a key, or the version of a value), the version of the message, the name of its class and its
 * JSON. A line of the output is the record's bytes in hexadecimal.
 */
public class WriterOfKafka {
    private static final String PACKAGE = "org.apache.kafka.coordinator.group.generated.";

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", 4);
            short prefix = Short.parseShort(words[0]), version = Short.parseShort(words[1]);
            Class<?> converter = Class.forName(PACKAGE + words[2] + "JsonConverter");
            ApiMessage message = (ApiMessage) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, mapper.readTree(words[3]), version);
            ByteBuffer written = prefix(prefix, version, message);
            byte[] bytes = new byte[written.remaining()];
            written.get(bytes);
            System.out.println(HexFormat.of().formatHex(bytes));
        }
    }

    private static ByteBuffer prefix(short prefix, short version, ApiMessage message) {
        ByteBuffer body = MessageUtil.toByteBufferAccessor(message, version).buffer();
        return ByteBuffer.allocate(2 + body.remaining()).putShort(prefix).put(body).flip();
    }
}
