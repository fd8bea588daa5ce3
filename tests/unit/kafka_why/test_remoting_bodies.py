"""Bodies of requests and answers. What RocketMQ's own classes read is compared in tests/e2e/test_fuzz.py."""

import json

import pytest

from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    MessageRequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kafka_why.remoting import answers, bodies
from kafka_why.remoting.answers import BrokerData, decode_cluster, decode_route, rewrite_addresses
from kafka_why.remoting.strict_json import MalformedFrame

_CONSUMER = {
    "groupName": "g",
    "messageModel": "CLUSTERING",
    "consumeType": "CONSUME_PASSIVELY",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
}
_SUBSCRIPTION = {"topic": "t", "subString": "a || b", "subVersion": 7}
_QUEUE = MessageQueue("t", "b", 1)


def _heartbeat(consumer: dict[str, object], subscription: dict[str, object]) -> bodies.HeartbeatData:
    sent = {**_CONSUMER, "subscriptionDataSet": [{**_SUBSCRIPTION, **subscription}], **consumer}
    return bodies.decode_heartbeat(json.dumps({"clientID": "c", "consumerDataSet": [sent]}).encode())


def test_heartbeat_of_a_java_client_is_decoded() -> None:
    body = b"""{"clientID":"10.0.0.1@7#9","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",
        "consumeType":"CONSUME_POP","groupName":"g","messageModel":"BROADCASTING","subscriptionDataSet":[
        {"classFilterMode":false,"codeSet":[97,-98],"expressionType":"SQL92","subString":"a > 1",
        "subVersion":1700000000000,"tagsSet":["a","b"],"topic":"t"}],"unitMode":false}],
        "heartbeatFingerprint":-5,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":true}"""
    assert bodies.decode_heartbeat(body) == bodies.HeartbeatData(
        client_id="10.0.0.1@7#9",
        consumer_data_set=(
            bodies.ConsumerData(
                group_name="g",
                message_model=MessageModel.BROADCASTING,
                consume_type=ConsumeType.CONSUME_POP,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                subscription_data_set=(
                    SubscriptionData("t", "a > 1", 1_700_000_000_000, "SQL92", ("a", "b"), (97, -98)),
                ),
            ),
        ),
        producer_groups=("CLIENT_INNER_PRODUCER",),
        heartbeat_fingerprint=-5,
        is_without_sub=True,
    )


def test_heartbeats_of_other_languages_are_decoded() -> None:
    cpp: dict[str, object] = {"messageModel": 1, "consumeType": 1, "consumeFromWhere": 4}
    (consumer,) = _heartbeat(cpp, {"subVersion": "1700000000000"}).consumer_data_set
    assert (consumer.message_model, consumer.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set[0].sub_version == 1_700_000_000_000
    go = _heartbeat(
        {"messageModel": "Clustering"}, {"codeSet": ["97", "-98"], "tagsSet": None, "later": [{"a": 1}]}
    )
    (consumer,) = go.consumer_data_set
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.subscription_data_set[0].code_set == (97, -98)
    assert consumer.subscription_data_set[0].tags_set == ()


@pytest.mark.parametrize(
    ("consumer", "subscription"),
    [
        ({"groupName": "x" * 256}, {}),
        ({"groupName": ""}, {}),
        ({"messageModel": "X"}, {}),
        ({"messageModel": 2}, {}),
        ({"messageModel": -1}, {}),
        ({"messageModel": True}, {}),
        ({"messageModel": None}, {}),
        ({"consumeFromWhere": "CONSUME_FROM_T\u0131MESTAMP"}, {}),
        ({"subscriptionDataSet": None}, {}),
        ({"group_name": "x"}, {}),
        ({"isUnitMode": True, "later": 1}, {}),
        ({"later": {"@type": "x"}}, {}),
        ({}, {"topic": "x" * 256}),
        ({}, {"subVersion": "+5"}),
        ({}, {"subVersion": "9223372036854775808"}),
        ({}, {"subVersion": 1.0}),
        ({}, {"codeSet": [2147483648]}),
        ({}, {"tagsSet": [None]}),
        ({}, {"subString": None}),
        ({}, {"$ref": "$"}),
    ],
)
def test_ambiguous_heartbeat_is_refused(consumer: dict[str, object], subscription: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame):
        _heartbeat(consumer, subscription)


def _sent(subscriptions: int, consumers: int = 1, start: int = 0) -> bytes:
    topics = [{**_SUBSCRIPTION, "topic": f"t{start + number}"} for number in range(subscriptions)]
    sent = [
        {**_CONSUMER, "groupName": f"g{number}", "subscriptionDataSet": topics} for number in range(consumers)
    ]
    return json.dumps({"clientID": "c", "consumerDataSet": sent}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"clientID":"c","clientID":"c"}',
        b'{"clientID":"%s"}' % (b"x" * 1_025),
        json.dumps({"clientID": "c", "consumerDataSet": [_CONSUMER, _CONSUMER]}).encode(),
        json.dumps(
            {"clientID": "c", "consumerDataSet": [{**_CONSUMER, "subscriptionDataSet": [_SUBSCRIPTION] * 2}]}
        ).encode(),
        b'{"clientID":"c","producerDataSet":[%s]}' % b",".join([b'{"groupName":"p"}'] * 1_001),
        b'{"clientID":"c"}' + b" " * bodies.BODY_MAX_BYTES,
        _sent(101, 100),
        b'{"consumerDataSet":' + b"[" * 500_000,
    ],
)
def test_rocketmq_heartbeat_with_too_many_entries_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        bodies.decode_heartbeat(body)


def test_rocketmq_lock_assignment_and_mode_requests_are_decoded() -> None:
    queue = b'{"topic":"t","brokerName":"b","queueId":1}'
    lock = b'{"consumerGroup":"g","clientId":"c","onlyThisBroker":false,"mqSet":[%s]}'
    assert bodies.decode_lock_batch(lock % b",".join([queue] * 2)) == bodies.LockBatch("g", "c", (_QUEUE,))
    with pytest.raises(MalformedFrame):
        bodies.decode_lock_batch(lock % b",".join([queue] * 10_001))
    assert bodies.decode_query_assignment(
        b'{"topic":"t","consumerGroup":"g","clientId":"c","strategyName":"AVG","messageModel":"CLUSTERING"}'
    ) == bodies.AssignmentQuery("t", "g", "c", "AVG", MessageModel.CLUSTERING)
    assert bodies.decode_set_message_request_mode(
        b'{"topic":"t","consumerGroup":"g","mode":"POP","popShareQueueNum":-1}'
    ) == bodies.ModeSetting("t", "g", MessageRequestMode.POP, -1)


def test_answers_are_encoded_as_by_rocketmq() -> None:
    queue = {"brokerName": "b", "queueId": 1, "topic": "t"}
    assert json.loads(bodies.encode_consumer_list(("c", "c"))) == {"consumerIdList": ["c", "c"]}
    assert json.loads(bodies.encode_lock_ok([_QUEUE])) == {"lockOKMQSet": [queue]}
    assignment = MessageQueueAssignment(_QUEUE, MessageRequestMode.POP)
    assert json.loads(bodies.encode_assignments([assignment])) == {
        "messageQueueAssignments": [{"messageQueue": queue, "mode": "POP"}]
    }
    assert bodies.encode_assignments(None) == b"{}"


def test_running_info_with_queues_as_keys_is_decoded() -> None:
    body = (
        b'{"mqPopTable":{{"brokerName":"b","queueId":-1,"topic":"t"}:{"droped":true,"waitAckCount":0}},"mqTable":'
        b'{{"brokerName":"b","queueId":1,"topic":"t"}:{"cachedMsgCount":3,"droped":false,"locked":true},'
        b'{"brokerName":"b","queueId":2,"topic":"t"}:{"lastConsumeTimestamp":7}},'
        b'"properties":{"a":"x:{y","b":null},"statusTable":{"t":{"consumeRT":0.5}},"subscriptionSet":['
        b'{"codeSet":[],"subString":"*","subVersion":1,"tagsSet":[],"topic":"t"}]}'
    )
    info = answers.decode_running_info(body)
    assert info.properties == {"a": "x:{y"}
    assert [one.topic for one in info.subscription_set] == ["t"]
    assert info.mq_table == {
        _QUEUE: answers.ProcessQueueInfo(cached_msg_count=3, locked=True),
        MessageQueue("t", "b", 2): answers.ProcessQueueInfo(last_consume_timestamp=7),
    }
    assert info.mq_pop_table == {MessageQueue("t", "b", -1): answers.ProcessQueueInfo(droped=True)}


def test_topic_list_and_group_config_are_decoded() -> None:
    assert answers.decode_topic_list(b'{"topicList":["a","b"]}') == ("a", "b")
    assert answers.decode_group_config(b'{"notifyConsumerIdsChangedEnable":false,"x":{}}') == (
        SubscriptionGroupConfig(notify_consumer_ids_changed_enable=False)
    )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{{{:", b'{"mqTable":{{"topic":1}:{}}}', b'{"properties":"\xff"}']
)
def test_malformed_answer_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        answers.decode_running_info(body)


_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{%s},"brokerName":"brokerAddrs","cluster":"127.0.0.1:1"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":7,"writeQueueNums":8}]}'
)
_CLUSTER = (
    b'{"brokerAddrTable":{"brokerAddrs":{"brokerAddrs":{%s},"brokerName":"brokerAddrs","cluster":"c"}},'
    b'"clusterAddrTable":{"brokerAddrs":["127.0.0.1:1"]}}'
)
_PORTS = {"127.0.0.1:1": "front:100", "host:2": "front:103"}


@pytest.mark.parametrize("body", [_ROUTE, _CLUSTER])
@pytest.mark.parametrize("keys", [(b"0", b"1"), (b'"0"', b'"1"')])
def test_only_broker_addresses_are_rewritten(body: bytes, keys: tuple[bytes, bytes]) -> None:
    before = body % b'%s : "127.0.0.1:1",%s:"host:2"' % keys
    assert rewrite_addresses(before, _PORTS.__getitem__) == body % (b'%s : "front:100",%s:"front:103"' % keys)


def test_route_and_cluster_name_the_brokers() -> None:
    broker = BrokerData("brokerAddrs", {0: "127.0.0.1:1", 1: "host:2"}, "127.0.0.1:1")
    route = decode_route(_ROUTE % b'0:"127.0.0.1:1",1:"host:2"')
    assert route.broker_datas == (broker,)
    assert [(queue.read_queue_nums, queue.perm) for queue in route.queue_datas] == [(7, 6)]
    cluster = decode_cluster(_CLUSTER % b'"0":"127.0.0.1:1"')
    assert cluster.broker_addr_table["brokerAddrs"].broker_addrs == {0: "127.0.0.1:1"}


def test_broker_address_without_a_mapping_is_never_forwarded() -> None:
    with pytest.raises(KeyError):
        rewrite_addresses(_ROUTE % b'0:"host:3"', _PORTS.__getitem__)


@pytest.mark.parametrize("addresses", [b"0:1", b'0:["host:2"]', b'0:{"a":"host:2"}', b'0:"\xff"'])
def test_address_that_is_no_text_is_refused(addresses: bytes) -> None:
    with pytest.raises(MalformedFrame):
        rewrite_addresses(_ROUTE % addresses, _PORTS.__getitem__)
