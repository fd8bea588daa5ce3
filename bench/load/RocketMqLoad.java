import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages and consumes them with one push consumer.
 *
 *     java -Drocketmq.namesrv.addr=HOST:PORT RocketMqLoad.java TOPIC GROUP RATE:BYTES:SECONDS ...
 *
 * RATE is messages a second, at fixed times, whatever is still under way; 0 is as many as possible with WINDOW under
 * way. Each phase prints a line, `phase` and then: messages sent, failed and received, acknowledged messages a second,
 * and the p50 and p99 in ms from the time at which a message was due until it was acknowledged, and until it was
 * received.
 */
public class RocketMqLoad {
    static final int WINDOW = 64;
    static final long PATIENCE_NS = 20_000_000_000L;
    static volatile Phase current;

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.subscribe(args[0], "*");
        consumer.registerMessageListener(
            (java.util.List<MessageExt> messages,
             org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) -> {
                for (MessageExt message : messages) current.receive(ByteBuffer.wrap(message.getBody()));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        DefaultMQProducer producer = new DefaultMQProducer(args[1] + "-producer");
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        current = new Phase(-1, "0:64:0");
        consumer.start();
        for (int number = 0; number < args.length - 2; number++) {
            current = new Phase(number, args[number + 2]);
            current.run(producer, args[0]);
        }
        System.exit(0); // the messages are received, and an orderly end takes seconds
    }

    static class Phase {
        final int number, bytes;
        final long intervalNs, lengthNs;
        final long[] due, acknowledged, received;
        final AtomicInteger failed = new AtomicInteger(), ended = new AtomicInteger(), arrived = new AtomicInteger();
        final Semaphore window;

        Phase(int number, String text) {
            this.number = number;
            String[] parts = text.split(":");
            int rate = Integer.parseInt(parts[0]);
            bytes = Integer.parseInt(parts[1]);
            lengthNs = Long.parseLong(parts[2]) * 1_000_000_000L;
            intervalNs = rate == 0 ? 0 : 1_000_000_000L / rate;
            window = new Semaphore(rate == 0 ? WINDOW : Integer.MAX_VALUE);
            int most = (int) (lengthNs / 1_000_000_000L * (rate == 0 ? 100_000 : rate));
            due = new long[most];
            acknowledged = new long[most];
            received = new long[most];
        }

        void receive(ByteBuffer body) {
            if (body.remaining() < 8 || body.getInt() != number) return;
            int index = body.getInt();
            if (received[index] == 0) {
                received[index] = System.nanoTime();
                arrived.incrementAndGet();
            }
        }

        void run(DefaultMQProducer producer, String topic) throws Exception {
            long began = System.nanoTime();
            int sent = 0;
            for (; sent < due.length && System.nanoTime() - began < lengthNs; sent++) {
                due[sent] = began + sent * intervalNs;
                for (long ns; intervalNs > 0 && (ns = due[sent] - System.nanoTime()) > 0; ) LockSupport.parkNanos(ns);
                window.acquire();
                if (intervalNs == 0) due[sent] = System.nanoTime();
                send(producer, topic, sent);
            }
            wait(ended, sent);
            long took = System.nanoTime() - began;
            int delivered = sent - failed.get();
            wait(arrived, delivered);
            System.out.printf(
                "phase %d %d %d %.1f %s %s%n", sent, failed.get(), arrived.get(), delivered * 1e9 / took,
                quantiles(acknowledged, sent), quantiles(received, sent));
        }

        void send(DefaultMQProducer producer, String topic, int index) throws Exception {
            byte[] body = ByteBuffer.allocate(bytes).putInt(number).putInt(index).array();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() == SendStatus.SEND_OK) acknowledged[index] = System.nanoTime();
                    else failed.incrementAndGet();
                    end();
                }

                @Override
                public void onException(Throwable error) {
                    if (failed.getAndIncrement() == 0) error.printStackTrace();
                    end();
                }
            });
        }

        void end() {
            ended.incrementAndGet();
            window.release();
        }

        static void wait(AtomicInteger number, int enough) throws InterruptedException {
            long giveUp = System.nanoTime() + PATIENCE_NS;
            while (number.get() < enough && System.nanoTime() < giveUp) Thread.sleep(1);
        }

        String quantiles(long[] times, int sent) {
            double[] waits = new double[sent];
            int found = 0;
            for (int i = 0; i < sent; i++) if (times[i] != 0) waits[found++] = (times[i] - due[i]) / 1e6;
            Arrays.sort(waits, 0, found);
            return found == 0 ? "NaN NaN"
                : String.format("%.3f %.3f", waits[found / 2], waits[Math.min(found - 1, found * 99 / 100)]);
        }
    }
}
