import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.nio.ByteBuffer;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.requests.RequestHeader;

/**
 * Kafka's own reading of requests on standard input and output, for kafkas_reader.py. A request is a frame: a size of
 * 32 bits, a byte, and header and body. The answer is a frame, too: 0, the number of bytes that Kafka leaves unread,
 * and what it writes for what it has read (nothing for tags that it reads and cannot write); or 1 and the
 * exception with which it refuses the request. If the byte is 1, what Kafka reads is written without unknown tags, by
 * way of its JSON. The generated classes are read as AbstractRequest.parseRequest reads them, without the checks of
 * the request classes.
 */
public class ReaderOfKafka {
    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        while (true) {
            int size;
            try {
                size = in.readInt();
            } catch (EOFException end) {
                out.flush();
                return;
            }
            byte[] frame = in.readNBytes(size);
            byte[] answer = answer(ByteBuffer.wrap(frame));
            out.writeInt(answer.length);
            out.write(answer);
            if (in.available() == 0)
                out.flush();
        }
    }

    private static byte[] answer(ByteBuffer frame) {
        try {
            boolean isKnownOnly = frame.get() == 1;
            RequestHeader header = RequestHeader.parse(frame);
            ApiMessage body = header.apiKey().messageType.newRequest();
            body.read(new ByteBufferAccessor(frame), header.apiVersion());
            int unread = frame.remaining();
            if (isKnownOnly) {
                header.data().unknownTaggedFields().clear();
                body = known(body, header.apiVersion());
            }
            return written(header, body, unread);
        } catch (RuntimeException | ReflectiveOperationException | OutOfMemoryError refusal) {
            byte[] name = (refusal.getClass().getSimpleName() + ": " + refusal.getMessage()).getBytes();
            return ByteBuffer.allocate(1 + name.length).put((byte) 1).put(name).array();
        }
    }

    /** The message by way of its JSON. */
    private static ApiMessage known(ApiMessage body, short version) throws ReflectiveOperationException {
        Class<?> converter = Class.forName(body.getClass().getName() + "JsonConverter");
        Object json = converter.getMethod("write", body.getClass(), short.class).invoke(null, body, version);
        return (ApiMessage) converter.getMethod("read", JsonNode.class, short.class).invoke(null, json, version);
    }

    private static byte[] written(RequestHeader header, ApiMessage body, int unread) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        short headerVersion = header.headerVersion(), version = header.apiVersion();
        ByteBuffer read = ByteBuffer.allocate(5).put((byte) 0).putInt(unread);
        try {
            int headerBytes = header.data().size(cache, headerVersion);
            ByteBuffer out = ByteBuffer.allocate(5 + headerBytes + body.size(cache, version)).put(read.flip());
            ByteBufferAccessor accessor = new ByteBufferAccessor(out);
            header.data().write(accessor, cache, headerVersion);
            body.write(accessor, cache, version);
            return out.array();
        } catch (RuntimeException notWritable) {
            return read.array();
        }
    }
}
