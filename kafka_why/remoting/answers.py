"""Bodies of answers from name servers, brokers and clients, with only the fields that are used.

They are decoded leniently, because servers are trusted and fastjson does not always write valid JSON. Source:
ConsumerConnection, ConsumerRunningInfo, MessageRequestModeSerializeWrapper, ProcessQueueInfo,
SubscriptionGroupConfig, TopicList, TopicRouteData, ClusterInfo, BrokerData, QueueData.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from kafka_why.contract.rocketmq.requests import MessageQueue, MessageRequestMode, SubscriptionGroupConfig
from kafka_why.remoting.strict_json import MalformedFrame, decode_leniently, tokens


class _Answer(Struct, frozen=True, kw_only=True, rename="camel"):
    """A decoded body or a part of it. Unknown fields are skipped."""


class ClientConnection(_Answer, frozen=True):
    """A connection of a group's client."""

    client_id: str | None = None
    client_addr: str | None = None  # `ip:port`
    language: str | None = None
    version: int = 0  # ordinal of RocketMQ's MQVersion


class TopicSubscription(_Answer, frozen=True):
    """A topic of a group and the filter of its messages."""

    topic: str
    sub_string: str | None = None
    expression_type: str | None = "TAG"
    tags_set: tuple[str, ...] | None = ()


class ConsumerConnection(_Answer, frozen=True):
    """The answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: dict[str, TopicSubscription] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProcessQueueInfo(_Answer, frozen=True):
    """The state of a queue at the client that holds it."""

    cached_msg_count: int = 0
    locked: bool = False
    droped: bool = False  # RocketMQ's own spelling
    last_consume_timestamp: int = 0  # in ms; 0 if the client has consumed nothing


class RunningInfo(Struct, frozen=True):
    """A client's answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str]
    subscription_set: tuple[TopicSubscription, ...]
    mq_table: dict[MessageQueue, ProcessQueueInfo]
    # Queues from which the client pops messages, without counts and times.
    mq_pop_table: dict[MessageQueue, ProcessQueueInfo]


class _GroupConfig(_Answer, frozen=True):
    notify_consumer_ids_changed_enable: bool = True


class RequestModeSetting(_Answer, frozen=True):
    """The request mode of a group's clients for a topic."""

    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


class _RequestModes(_Answer, frozen=True):
    message_request_mode_map: dict[str, dict[str, RequestModeSetting]] = {}


class _TopicList(_Answer, frozen=True):
    topic_list: tuple[str, ...] = ()


class _RunningInfo(_Answer, frozen=True):
    properties: dict[str, str | None] = {}
    subscription_set: tuple[TopicSubscription, ...] = ()
    mq_table: dict[str, ProcessQueueInfo] = {}
    mq_pop_table: dict[str, ProcessQueueInfo] = {}


class _QueueKey(_Answer, frozen=True):
    topic: str
    broker_name: str
    queue_id: int


def decode_consumer_connection(body: bytes) -> ConsumerConnection:
    """Decode the answer to GET_CONSUMER_CONNECTION_LIST. Raises MalformedFrame."""
    return decode_leniently(body, ConsumerConnection)


def decode_running_info(body: bytes) -> RunningInfo:
    """Decode a client's answer to GET_CONSUMER_RUNNING_INFO. Raises MalformedFrame."""
    info = decode_leniently(body, _RunningInfo)
    return RunningInfo(
        {name: value for name, value in info.properties.items() if value is not None},
        info.subscription_set,
        _by_queue(info.mq_table),
        _by_queue(info.mq_pop_table),
    )


def decode_topic_list(body: bytes) -> tuple[str, ...]:
    """Decode an answer with a list of topics' names. Raises MalformedFrame."""
    return decode_leniently(body, _TopicList).topic_list


def decode_group_config(body: bytes) -> SubscriptionGroupConfig:
    """Decode the answer to GET_SUBSCRIPTIONGROUP_CONFIG. Raises MalformedFrame."""
    config = decode_leniently(body, _GroupConfig)
    return SubscriptionGroupConfig(config.notify_consumer_ids_changed_enable)


def decode_request_modes(body: bytes) -> dict[str, dict[str, RequestModeSetting]]:
    """Decode the answer to GET_ALL_MESSAGE_REQUEST_MODE: by topic and group. Raises MalformedFrame."""
    return decode_leniently(body, _RequestModes).message_request_mode_map


def _by_queue(table: dict[str, ProcessQueueInfo]) -> dict[MessageQueue, ProcessQueueInfo]:
    """Decode the keys of a table, which are queues in JSON."""
    queues: dict[MessageQueue, ProcessQueueInfo] = {}
    for key, info in table.items():
        queue = decode_leniently(key.encode(), _QueueKey)
        queues[MessageQueue(queue.topic, queue.broker_name, queue.queue_id)] = info
    return queues


_BEFORE_ADDRESSES = (b'"brokerAddrs"', b":")  # the tokens before the object with addresses
# A route has {brokerDatas: [{brokerAddrs: {, and a cluster {brokerAddrTable: {NAME: {brokerAddrs: {.
_DEPTH_OF_ADDRESSES = 4


class BrokerData(Struct, frozen=True, rename="camel"):
    """The brokers with one broker name: a master and its slaves."""

    broker_name: str
    broker_addrs: dict[int, str]  # of the master (id 0) and the slaves
    cluster: str | None = None


class QueueData(Struct, frozen=True, rename="camel"):
    """The queues of a topic at a broker name."""

    broker_name: str
    read_queue_nums: int
    perm: int  # bits of PermName: 4 read, 2 write


class TopicRouteData(Struct, frozen=True, rename="camel"):
    """The route of a topic."""

    broker_datas: tuple[BrokerData, ...] = ()
    queue_datas: tuple[QueueData, ...] = ()


class ClusterInfo(Struct, frozen=True, rename="camel"):
    """All brokers of a cluster, by broker name."""

    broker_addr_table: dict[str, BrokerData] = {}


def decode_route(body: bytes) -> TopicRouteData:
    """Decode an answer to GET_ROUTEINFO_BY_TOPIC. Raises MalformedFrame."""
    return decode_leniently(body, TopicRouteData)


def decode_cluster(body: bytes) -> ClusterInfo:
    """Decode an answer to GET_BROKER_CLUSTER_INFO. Raises MalformedFrame."""
    return decode_leniently(body, ClusterInfo)


def rewrite_addresses(body: bytes, map_address: Callable[[str], str]) -> bytes:
    """Return the answer with each broker's address mapped, and every other byte unchanged.

    Raises MalformedFrame, and the errors of `map_address`.
    """
    written: list[bytes] = []
    copied_to, depth = 0, 0
    is_addresses = False  # the current object is a `brokerAddrs`
    second_last, last = b"", b""
    for token in tokens(body):
        text = token[1]
        if text in (b"{", b"["):
            if is_addresses:
                raise MalformedFrame("an address that is not a string")
            depth += 1
            is_addresses = depth == _DEPTH_OF_ADDRESSES and (second_last, last) == _BEFORE_ADDRESSES
        elif text in (b"}", b"]"):
            depth -= 1
            is_addresses = False
        elif is_addresses and last == b":":  # a value, not a key
            written += [body[copied_to : token.start(1)], _map_address_token(text, map_address)]
            copied_to = token.end(1)
        second_last, last = last, text
    return b"".join((*written, body[copied_to:]))


def _map_address_token(text: bytes, map_address: Callable[[str], str]) -> bytes:
    """Map the address in a JSON string. `text` and the result include the quotes."""
    try:
        address = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedFrame("an address that is not a string") from None
    return msgspec.json.encode(map_address(address))
