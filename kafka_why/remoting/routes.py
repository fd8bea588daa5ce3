"""Answers of a name server with addresses of brokers: GET_ROUTEINFO_BY_TOPIC, GET_BROKER_CLUSTER_INFO.

Source: TopicRouteData, ClusterInfo, BrokerData, QueueData.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from kafka_why.remoting import lenient_json
from kafka_why.remoting.strict_json import MalformedFrame

_ADDRESSES = (b'"brokerAddrs"', b":")
# A route has {brokerDatas: [{brokerAddrs: {, and a cluster {brokerAddrTable: {NAME: {brokerAddrs: {.
_DEPTH_OF_ADDRESSES = 4


class BrokerData(Struct, frozen=True, rename="camel"):
    """A broker name with the addresses of its master (id 0) and slaves."""

    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str | None = None


class QueueData(Struct, frozen=True, rename="camel"):
    """The queues of a topic at a broker name. `perm` has the bits of PermName: 4 read, 2 write."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


class TopicRouteData(Struct, frozen=True, rename="camel"):
    """The route of a topic."""

    broker_datas: tuple[BrokerData, ...] = ()
    queue_datas: tuple[QueueData, ...] = ()


class ClusterInfo(Struct, frozen=True, rename="camel"):
    """All brokers by their names, and the names of each cluster's brokers."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}


def decode_route(body: bytes) -> TopicRouteData:
    """Decode an answer to GET_ROUTEINFO_BY_TOPIC. Raises MalformedFrame."""
    route: TopicRouteData = lenient_json.decode(body, TopicRouteData)
    return route


def decode_cluster(body: bytes) -> ClusterInfo:
    """Decode an answer to GET_BROKER_CLUSTER_INFO. Raises MalformedFrame."""
    cluster: ClusterInfo = lenient_json.decode(body, ClusterInfo)
    return cluster


def rewrite_addresses(body: bytes, map_address: Callable[[str], str]) -> bytes:
    """Return the answer with each address of a broker mapped, and every other byte unchanged.

    Raises MalformedFrame, and what `map_address` raises.
    """
    written: list[bytes] = []
    copied, depth, is_addresses = 0, 0, False
    last_two = (b"", b"")
    for token in lenient_json.tokens(body):
        text = token[1]
        if text in (b"{", b"["):
            if is_addresses:
                raise MalformedFrame("an address that is not a string")
            depth += 1
            is_addresses = depth == _DEPTH_OF_ADDRESSES and last_two == _ADDRESSES
        elif text in (b"}", b"]"):
            depth -= 1
            is_addresses = False
        elif is_addresses and last_two[1] == b":":
            written += [body[copied : token.start(1)], _mapped(text, map_address)]
            copied = token.end(1)
        last_two = (last_two[1], text)
    return b"".join((*written, body[copied:]))


def _mapped(text: bytes, map_address: Callable[[str], str]) -> bytes:
    try:
        address = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedFrame("an address that is not a string") from None
    return msgspec.json.encode(map_address(address))
