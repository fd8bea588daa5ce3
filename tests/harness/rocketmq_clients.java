import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.util.TypeUtils;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's clients, many in one JVM, for rocketmq_clients.py. A line of standard input is a JSON object: a command
 * "do" with its arguments, and an "id". A line of standard output is one, too: the answer of a command has its "id",
 * an event has "client", "at_ns" (of System.nanoTime) and "event". Events are "queues", which a consumer holds from
 * now on, "message", and "check" of a transaction. Compiles with RocketMQ 4.9 and 5. The JVM ends with its input.
 */
class RocketMqClients {
    private static final PrintStream OUT = System.out;
    private static final long TIMEOUT_MS = 10_000;
    private static final long LOOK_MS = 50;
    private static final int TOPIC_NOT_EXIST = 17;
    private static final ScheduledExecutorService TIMER = Executors.newScheduledThreadPool(2, RocketMqClients::daemon);
    private static final ExecutorService POOL = Executors.newCachedThreadPool(RocketMqClients::daemon);
    private static final Map<String, Client> CLIENTS = new ConcurrentHashMap<>();

    private static Thread daemon(Runnable runnable) {
        Thread thread = new Thread(runnable);
        thread.setDaemon(true);
        return thread;
    }

    /** Prints a line. Threads of all clients call this. */
    private static void print(Map<String, Object> line) {
        synchronized (OUT) {
            OUT.println(JSON.toJSONString(line));
        }
    }

    private interface Lookup {
        TreeSet<String> held() throws Exception;
    }

    private static final class Client {
        final String name;
        final JSONObject settings;
        final String topic;
        Object client;
        private TreeSet<String> held = new TreeSet<>();
        private final Map<String, Integer> failures = new ConcurrentHashMap<>();
        private ScheduledFuture<?> watching;
        private volatile boolean isStopped;

        Client(JSONObject settings) {
            this.settings = settings;
            name = settings.getString("client");
            topic = settings.getString("topic");
        }

        void event(String event, Map<String, Object> more) {
            Map<String, Object> line = new HashMap<>(more);
            line.put("client", name);
            line.put("at_ns", System.nanoTime());
            line.put("event", event);
            print(line);
        }

        RPCHook hook() {
            String key = settings.getString("access_key");
            return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, settings.getString("secret_key")));
        }

        /** Sets the client's address of the name server, and its properties by their names. */
        <C extends ClientConfig> C configured(C config) throws Exception {
            config.setNamesrvAddr(settings.getString("name_server"));
            config.setInstanceName(name);
            JSONObject properties = settings.getJSONObject("properties");
            for (String property : properties.keySet()) {
                Method setter = null;
                String wanted = "set" + Character.toUpperCase(property.charAt(0)) + property.substring(1);
                for (Method method : config.getClass().getMethods())
                    if (method.getName().equals(wanted) && method.getParameterCount() == 1)
                        setter = method;
                if (setter == null)
                    throw new IllegalArgumentException("no property " + property);
                Object value = TypeUtils.cast(properties.get(property), setter.getGenericParameterTypes()[0], null);
                setter.invoke(config, value);
            }
            return config;
        }

        /** Reports the queues whenever they are others than at the last look. */
        void watch(Lookup lookup) {
            watching = TIMER.scheduleWithFixedDelay(() -> {
                try {
                    TreeSet<String> now = lookup.held();
                    if (!now.equals(held) && !isStopped)
                        event("queues", Map.of("queues", now));
                    held = now;
                } catch (Exception exception) {
                    exception.printStackTrace();
                }
            }, LOOK_MS, LOOK_MS, TimeUnit.MILLISECONDS);
        }

        /** Reports a message. False if it is one of those that are to fail. */
        boolean take(MessageExt message) {
            Map<String, Object> what = new HashMap<>();
            what.put("topic", message.getTopic());
            what.put("queue", queueOf(message.getBrokerName(), message.getQueueId()));
            what.put("offset", message.getQueueOffset());
            what.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            what.put("times", message.getReconsumeTimes());
            what.put("message_id", message.getMsgId());
            event("message", what);
            return failures.merge(what.get("body").toString(), 1, Integer::sum) > settings.getIntValue("failures");
        }

        void startPush() throws Exception {
            var strategy = settings.getBooleanValue("circle") ? new AllocateMessageQueueAveragelyByCircle() : new AllocateMessageQueueAveragely();
            var consumer = configured(new DefaultMQPushConsumer(settings.getString("group"), hook(), strategy));
            client = consumer;
            if (!settings.getJSONObject("properties").containsKey("consumeFromWhere"))
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            if (settings.containsKey("sql"))
                consumer.subscribe(topic, MessageSelector.bySql(settings.getString("sql")));
            else
                consumer.subscribe(topic, settings.getString("tags"));
            DefaultMQProducer replies = settings.getBooleanValue("replies") ? producer(new DefaultMQProducer(name + "-replies", hook())) : null;
            boolean isOrderly = settings.getBooleanValue("orderly");
            if (isOrderly)
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    messages.stream().allMatch(this::take) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            else
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    boolean isDone = true;
                    for (MessageExt message : messages) {
                        isDone &= take(message);
                        if (replies != null)
                            reply(replies, message);
                    }
                    return isDone ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
                });
            var rebalance = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
            watch(() -> {
                TreeSet<String> queues = new TreeSet<>();
                for (var entry : rebalance.getProcessQueueTable().entrySet()) {
                    ProcessQueue queue = entry.getValue();
                    if (entry.getKey().getTopic().equals(topic) && !queue.isDropped() && (!isOrderly || queue.isLocked() && !queue.isLockExpired()))
                        queues.add(queueOf(entry.getKey()));
                }
                for (Object queue : popQueues(rebalance))
                    if (((MessageQueue) queue).getTopic().equals(topic))
                        queues.add(queueOf((MessageQueue) queue));
                return queues;
            });
            consumer.start();
        }

        private static void reply(DefaultMQProducer replies, MessageExt message) {
            try {
                replies.send(MessageUtil.createReplyMessage(message, ("re: " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8)));
            } catch (Exception exception) {
                exception.printStackTrace();
            }
        }

        /** RocketMQ 4.9 has no such table. */
        private static Iterable<?> popQueues(Object rebalance) throws Exception {
            for (Method method : rebalance.getClass().getMethods())
                if (method.getName().equals("getPopProcessQueueTable"))
                    return ((Map<?, ?>) method.invoke(rebalance)).keySet();
            return List.of();
        }

        void startLitePull() throws Exception {
            var consumer = configured(new DefaultLitePullConsumer(settings.getString("group"), hook()));
            client = consumer;
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, settings.getString("tags"));
            consumer.start();
            watch(() -> {
                TreeSet<String> queues = new TreeSet<>();
                for (MessageQueue queue : consumer.assignment())
                    if (queue.getTopic().equals(topic))
                        queues.add(queueOf(queue));
                return queues;
            });
            daemon(() -> {
                while (!isStopped)
                    for (MessageExt message : consumer.poll(100))
                        take(message);
            }).start();
        }

        <P extends DefaultMQProducer> P producer(P producer) throws Exception {
            configured(producer).start();
            client = producer;
            return producer;
        }

        void startTransactions() throws Exception {
            var producer = new TransactionMQProducer(settings.getString("group"), hook());
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return LocalTransactionState.valueOf((String) argument);
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    event("check", Map.of("body", new String(message.getBody(), StandardCharsets.UTF_8)));
                    return LocalTransactionState.valueOf(settings.getString("checked"));
                }
            });
            producer(producer);
        }

        Object send(JSONObject command) throws Exception {
            List<String> queues = new ArrayList<>();
            for (Object body : command.getJSONArray("bodies")) {
                Message message = new Message(command.getString("topic"), command.getString("tags"), ((String) body).getBytes(StandardCharsets.UTF_8));
                JSONObject properties = command.getJSONObject("message_properties");
                for (String property : properties.keySet())
                    message.putUserProperty(property, properties.getString(property));
                Integer shard = command.getInteger("shard");
                if (command.containsKey("transaction"))
                    ((TransactionMQProducer) client).sendMessageInTransaction(message, command.getString("transaction"));
                else if (shard != null)
                    queues.add(queueOf(((DefaultMQProducer) client).send(message, (all, m, a) -> all.get(shard % all.size()), null).getMessageQueue()));
                else
                    queues.add(queueOf(((DefaultMQProducer) client).send(message).getMessageQueue()));
            }
            return queues;
        }

        void stop() {
            isStopped = true;
            if (watching != null)
                watching.cancel(false);
            if (client instanceof DefaultMQPushConsumer)
                ((DefaultMQPushConsumer) client).shutdown();
            else if (client instanceof DefaultLitePullConsumer)
                ((DefaultLitePullConsumer) client).shutdown();
            else
                ((DefaultMQProducer) client).shutdown();
            CLIENTS.remove(name);
        }

        MQClientAPIImpl api() {
            if (client instanceof DefaultMQPushConsumer)
                return ((DefaultMQPushConsumer) client).getDefaultMQPushConsumerImpl().getmQClientFactory().getMQClientAPIImpl();
            return ((DefaultMQProducer) client).getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
        }
    }

    private static String queueOf(String broker, int queue) {
        return broker + ":" + queue;
    }

    private static String queueOf(MessageQueue queue) {
        return queueOf(queue.getBrokerName(), queue.getQueueId());
    }

    /** Creates a topic at a broker. */
    private static Object createTopic(MQClientAPIImpl api, JSONObject command) throws Exception {
        int queues = command.getIntValue("queues");
        String topic = command.getString("topic");
        api.createTopic(command.getString("broker"), "TBW102", new TopicConfig(topic, queues, queues, 6), TIMEOUT_MS);
        return null;
    }

    /** Addresses of the brokers that the name server has for a topic, by name/id. */
    private static Object brokersOf(MQClientAPIImpl api, String topic) throws Exception {
        Map<String, String> addresses = new HashMap<>();
        try {
            api.getTopicRouteInfoFromNameServer(topic, TIMEOUT_MS).getBrokerDatas().forEach(data ->
                data.getBrokerAddrs().forEach((id, address) -> addresses.put(data.getBrokerName() + "/" + id, address)));
        } catch (MQClientException exception) {
            if (exception.getResponseCode() != TOPIC_NOT_EXIST)
                throw exception;
        }
        return addresses;
    }

    /** Returns what mqadmin prints. RocketMQ 4.9's jars do not have it. */
    private static synchronized Object mqadmin(JSONArray arguments) throws Exception {
        var printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true));
        try {
            Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup").getMethod("main0", String[].class, RPCHook.class)
                .invoke(null, arguments.toArray(new String[0]), null);
        } finally {
            System.setOut(before);
        }
        return printed.toString();
    }

    private static Object execute(JSONObject command) throws Exception {
        String what = command.getString("do");
        if (what.startsWith("start-")) {
            Client client = new Client(command);
            CLIENTS.put(client.name, client);
            switch (what) {
                case "start-push": client.startPush(); break;
                case "start-lite-pull": client.startLitePull(); break;
                case "start-transactions": client.startTransactions(); break;
                default: client.producer(new DefaultMQProducer(command.getString("group"), client.hook()));
            }
            return null;
        }
        if (what.equals("mqadmin"))
            return mqadmin(command.getJSONArray("arguments"));
        if (what.equals("stop-all-but")) {
            var kept = command.getJSONArray("names");
            CLIENTS.values().stream().filter(client -> !kept.contains(client.name)).forEach(client -> POOL.execute(client::stop));
            return null;
        }
        Client client = CLIENTS.get(command.getString("client"));
        switch (what) {
            case "stop": client.stop(); return null;
            case "send": return client.send(command);
            case "request":
                Message asked = new Message(command.getString("topic"), command.getString("body").getBytes(StandardCharsets.UTF_8));
                return new String(((DefaultMQProducer) client.client).request(asked, TIMEOUT_MS).getBody(), StandardCharsets.UTF_8);
            case "create-topic": return createTopic(client.api(), command);
            case "brokers-of": return brokersOf(client.api(), command.getString("topic"));
            case "clients-of": return client.api().getConsumerIdListByGroup(command.getString("broker"), command.getString("group"), TIMEOUT_MS);
            default: throw new IllegalArgumentException(what);
        }
    }

    private static Map<String, Object> answer(JSONObject command) {
        Map<String, Object> answer = new HashMap<>();
        answer.put("id", command.get("id"));
        try {
            answer.put("result", execute(command));
        } catch (Throwable thrown) {
            Throwable cause = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            cause.printStackTrace();
            answer.put("error", cause.toString());
            if (cause instanceof MQBrokerException)
                answer.put("code", ((MQBrokerException) cause).getResponseCode());
            if (cause instanceof MQClientException)
                answer.put("code", ((MQClientException) cause).getResponseCode());
        }
        return answer;
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            POOL.execute(() -> print(answer(command)));
        }
        Runtime.getRuntime().halt(0);
    }
}
