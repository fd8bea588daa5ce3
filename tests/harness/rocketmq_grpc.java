import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collections;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * A push consumer and a producer of RocketMQ's gRPC client. Arguments: the Proxy's address, a topic, a group. Prints
 * "ready", and the body of each message that is received. A line of standard input is the body of a message to send.
 * The JVM ends with its input.
 */
class RocketMqGrpc {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(arguments[2])
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                System.out.println(text(message.getBody()));
                return ConsumeResult.SUCCESS;
            })
            .build();
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String body = input.readLine(); body != null; body = input.readLine()) {
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            producer.send(provider.newMessageBuilder().setTopic(topic).setBody(bytes).build());
        }
        Runtime.getRuntime().halt(0);
    }

    private static String text(ByteBuffer body) {
        return StandardCharsets.UTF_8.decode(body).toString();
    }
}
