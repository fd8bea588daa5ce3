"""Routes and clusters with mapped addresses, in both forms of fastjson's maps."""

import pytest

from kafka_why.remoting.answers import BrokerData, decode_cluster, decode_route, rewrite_addresses
from kafka_why.remoting.strict_json import MalformedFrame

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
    assert [(queue.read_queue_nums, queue.write_queue_nums) for queue in route.queue_datas] == [(7, 8)]
    cluster = decode_cluster(_CLUSTER % b'"0":"127.0.0.1:1"')
    assert cluster.broker_addr_table["brokerAddrs"].broker_addrs == {0: "127.0.0.1:1"}


def test_unmapped_address_is_never_passed() -> None:
    with pytest.raises(KeyError):
        rewrite_addresses(_ROUTE % b'0:"host:3"', _PORTS.__getitem__)


@pytest.mark.parametrize("addresses", [b"0:1", b'0:["host:2"]', b'0:{"a":"host:2"}', b'0:"\xff"'])
def test_address_that_is_no_text_is_refused(addresses: bytes) -> None:
    with pytest.raises(MalformedFrame):
        rewrite_addresses(_ROUTE % addresses, _PORTS.__getitem__)
