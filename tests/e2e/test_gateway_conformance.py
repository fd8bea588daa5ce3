"""Requests whose answer needs no story: the broker's own coordinator and the gateway have to say the same.

Behind the gateway is the coordinator's core in this process, so no case waits for a batch. What differs by
its nature is left out of the comparison, see `comparable`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from gateway.net.options import GatewayOptions
from gateway.net.server import Gateway
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.wire import codec
from records.layout import TopicLayout
from tests.e2e.harness import create_topic, wait_until
from tests.harness.gateway import HOST, CoreBackend, RawClient

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

COMMIT, FETCH, FIND, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16
DELETE, OFFSET_DELETE = 42, 47
NOT_YET = {14, 15, 16}  # errors of a coordinator that is just starting

# Names that stand for others, which are not known before the test runs.
TOPIC, TOPIC_ID = "<topic>", UUID(int=1)
NO_TOPIC, NO_TOPIC_ID = "no-such-topic", UUID(int=2)
SIMPLE = "<group with offsets>"  # of partition 0 of the topic, committed by no member
ABSENT = "no-such-group"


@dataclass(frozen=True)
class Case:
    """One request of one version. `label` is what is special about it."""

    api_key: int
    version: int
    label: str
    body: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{codec.REQUESTS[self.api_key].name}-{self.version}-{self.label}"


def cases() -> Iterator[Case]:
    for make in (finding, joining, being_a_member, committing, fetching, deleting_offsets, administering):
        yield from make()


def each(api_key: int, label: str, versions: range | None = None, **body: Any) -> Iterator[Case]:
    """The same request in several versions, all of them by default; fields a version has not are left out."""
    for version in versions or codec.versions(api_key):
        yield Case(api_key, version, label, body)


def finding() -> Iterator[Case]:
    for key_type, label in ((0, "group"), (2, "share-group"), (7, "unknown-type")):
        first = 1 if key_type else 0
        yield from each(FIND, label, range(first, 4), key="g", key_type=key_type)
        yield from each(FIND, label, range(4, 7), coordinator_keys=["g:t:0", "h"], key_type=key_type)
    yield from each(FIND, "no-keys", range(4, 7), coordinator_keys=[], key_type=0)


def joining() -> Iterator[Case]:
    good: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    }
    changes: dict[str, dict[str, Any]] = {
        "short-session": {"session_timeout_ms": 1, "member_id": "m"},
        "absent-group-with-member-id": {"group_id": ABSENT, "member_id": "m"},
        "empty-group-id": {"group_id": ""},
        "no-protocols": {"protocols": []},
        "no-protocol-type": {"protocol_type": ""},
    }
    for label, change in changes.items():
        yield from each(JOIN, label, **good | change)


def being_a_member() -> Iterator[Case]:
    protocol: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    for group_id, label in ((ABSENT, "absent"), ("", "empty-group-id"), (SIMPLE, "simple")):
        me: dict[str, Any] = {"group_id": group_id, "generation_id": 1, "member_id": "m"}
        yield from each(SYNC, label, **me, **protocol, assignments=[])
        yield from each(BEAT, label, **me)
        yield from each(LEAVE, label, range(3), group_id=group_id, member_id="m")
        members = [{"member_id": "m", "group_instance_id": "i"}, {"member_id": ""}]
        yield from each(LEAVE, label, range(3, 6), group_id=group_id, members=members)
        yield from each(LEAVE, f"{label}-nobody", range(3, 6), group_id=group_id, members=[])
    yield Case(SYNC, 5, "no-protocol", {"group_id": ABSENT, "generation_id": 1, "member_id": "m"})


def committed(topic: str | UUID, *partitions: int, offset: int = 5, note: str | None = "x") -> dict[str, Any]:
    entries = [
        {"partition_index": p, "committed_offset": offset, "committed_metadata": note} for p in partitions
    ]
    return {"topic_id" if isinstance(topic, UUID) else "name": topic, "partitions": entries}


def committing() -> Iterator[Case]:
    by_name = range(2, 10)
    somebody: dict[str, Any] = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    mixed = [committed(TOPIC, 0, 9, 0), committed(NO_TOPIC, 0), committed(TOPIC, 0)]
    yield from each(COMMIT, "nothing", by_name, group_id=SIMPLE, topics=[])
    yield from each(COMMIT, "some-not-there", by_name, group_id=SIMPLE, topics=mixed)
    yield from each(COMMIT, "by-somebody", by_name, group_id=SIMPLE, **somebody, topics=mixed)
    yield from each(COMMIT, "absent", by_name, group_id=ABSENT, **somebody, topics=[committed(TOPIC, 0)])
    odd = [committed(TOPIC, 0, note="x" * 5_000), committed(TOPIC, 1, offset=-7, note=None)]
    yield from each(COMMIT, "long-metadata", by_name, group_id="odd", topics=odd)
    ids = [committed(TOPIC_ID, 0, 9), committed(NO_TOPIC_ID, 0), committed(UUID(int=0), 0)]
    yield Case(COMMIT, 10, "by-id", {"group_id": SIMPLE, "topics": ids})


def wanted(topic: str | UUID, *partitions: int) -> dict[str, Any]:
    return {"topic_id" if isinstance(topic, UUID) else "name": topic, "partition_indexes": list(partitions)}


def fetching() -> Iterator[Case]:
    some = [wanted(TOPIC, 0, 1, 9), wanted(NO_TOPIC, 0)]
    for group_id, label in ((SIMPLE, "simple"), (ABSENT, "absent")):
        yield from each(FETCH, label, range(1, 8), group_id=group_id, topics=some)
        yield from each(FETCH, f"{label}-nothing", range(1, 8), group_id=group_id, topics=[])
        yield from each(FETCH, f"{label}-all", range(2, 8), group_id=group_id, topics=None)
    groups = [{"group_id": g, "topics": t} for g in (SIMPLE, ABSENT) for t in (some, None, [])]
    yield from each(FETCH, "several-groups", range(8, 10), groups=groups, require_stable=True)
    member = {"group_id": SIMPLE, "member_id": "m", "member_epoch": 4, "topics": some}
    yield Case(FETCH, 9, "with-a-member", {"groups": [member]})
    ids = [wanted(TOPIC_ID, 0, 9), wanted(NO_TOPIC_ID, 0)]
    by_id = [{"group_id": g, "topics": t} for g in (SIMPLE, ABSENT) for t in (ids, None)]
    yield Case(FETCH, 10, "by-id", {"groups": by_id})


def deleting_offsets() -> Iterator[Case]:
    for group_id, label in ((SIMPLE, "simple"), (ABSENT, "absent")):
        for topics in ([(TOPIC, [1, 9]), (NO_TOPIC, [0])], [(NO_TOPIC, [0])], []):
            named = [{"name": n, "partitions": [{"partition_index": p} for p in ps]} for n, ps in topics]
            body = {"group_id": group_id, "topics": named}
            yield Case(OFFSET_DELETE, 0, f"{label}-{len(topics)}-topics", body)


def administering() -> Iterator[Case]:
    for operations in (False, True):
        label = "with-operations" if operations else "plain"
        groups = [ABSENT, SIMPLE]
        yield from each(DESCRIBE, label, groups=groups, include_authorized_operations=operations)
    yield from each(DELETE, "absent-twice", groups_names=[ABSENT, "other", ABSENT])
    for states, types in (
        (["Empty "], []),
        ([], ["CLASSIC"]),
        (["stable"], []),
        (["odd"], []),
        ([], ["odd"]),
    ):
        label = "-".join(["filtered", *states, *types]).strip()
        yield Case(LIST, 5, label, {"states_filter": states, "types_filter": types})
    yield from each(LIST, "all")


class Pair:
    """The broker and the gateway in front of it, asked the same."""

    def __init__(
        self, runner: asyncio.Runner, addresses: Sequence[Address], names: Mapping[Any, Any]
    ) -> None:
        self._runner = runner
        self._addresses = addresses
        self._names = names

    def ask(self, case: Case) -> list[Any]:
        """The broker's answer, and the gateway's."""
        return self._runner.run(self._ask(case))

    async def _ask(self, case: Case) -> list[Any]:
        body = renamed(case.body, self._names)
        return [await ask(address, case.api_key, case.version, body) for address in self._addresses]


async def ask(address: Address, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
    """An answer as nested dicts."""
    client = RawClient(*await asyncio.open_connection(address.host, address.port))
    try:
        return (await client.ask(api_key, version, **body)).to_dict(json=False)
    finally:
        client.writer.close()


def renamed(value: Any, names: Mapping[Any, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value)


def comparable(case: Case, answer: dict[str, Any], group_ids: set[str]) -> dict[str, Any]:
    """The answer without addresses (the gateway's are its own), the words of FindCoordinator's errors, the
    order of groups (a broker's is that of its hash tables), and groups of other tests.
    """
    if case.api_key == FIND:
        for found in answer.get("coordinators", [answer]):
            for name in ("host", "port", *(["error_message"] if found["error_code"] else [])):
                found.pop(name, None)
    elif case.api_key in (DELETE, DESCRIBE):
        answer["results" if case.api_key == DELETE else "groups"].sort(key=lambda one: one["group_id"])
    elif case.api_key == LIST:
        mine = [group for group in answer["groups"] if group["group_id"] in group_ids]
        answer["groups"] = sorted(mine, key=lambda group: group["group_id"])
    return answer


@pytest.fixture(scope="module")
def names(broker: EmbeddedBroker) -> dict[Any, Any]:
    topic = f"topic-{uuid4()}"
    create_topic(broker.client_config, topic, 2, {})
    return {TOPIC: topic, SIMPLE: f"simple-{uuid4()}"}


@pytest.fixture(scope="module")
def pair(broker: EmbeddedBroker, names: dict[Any, Any]) -> Iterator[Pair]:
    """Both, with the same offsets committed."""
    upstream, core = Address.parse(broker.bootstrap_servers), CoreBackend()
    options = GatewayOptions(broker.client_config, TopicLayout.named(), Address(HOST, 0))
    with asyncio.Runner() as runner:

        async def start() -> Gateway:
            gateway = Gateway(options, Cluster([upstream], options.limits), core, core)
            await gateway.start()
            return gateway

        gateway = runner.run(start())
        metadata = {"topics": [{"name": names[TOPIC]}], "allow_auto_topic_creation": False}
        (topic,) = runner.run(ask(upstream, ApiKey.Metadata, 12, metadata))["topics"]
        names[TOPIC_ID] = topic["topic_id"]
        pair = Pair(runner, [upstream, gateway.address], names)
        # The first that is asked for a coordinator makes the broker create the topic for it.
        wait_until(lambda: pair.ask(Case(FIND, 0, "", {"key": "g"}))[0]["error_code"] == 0, "a coordinator")
        first = Case(COMMIT, 9, "", {"group_id": SIMPLE, "topics": [committed(TOPIC, 0)]})
        wait_until(lambda: error_of(pair.ask(first)[0]) not in NOT_YET, "the coordinator's loading")
        # The others may be in other partitions of that topic, which are loaded one by one.
        others = Case(DESCRIBE, 5, "", {"groups": ["g", "h", "odd", "other", ABSENT]})
        wait_until(lambda: not errors_of(pair.ask(others)[0]) & NOT_YET, "the loading of all partitions")
        yield pair
        runner.run(gateway.close())


def error_of(commit: dict[str, Any]) -> int:
    return int(commit["topics"][0]["partitions"][0]["error_code"])


def errors_of(described: dict[str, Any]) -> set[int]:
    return {group["error_code"] for group in described["groups"]}


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_the_gateway_says_what_a_broker_says(pair: Pair, names: dict[Any, Any], case: Case) -> None:
    group_ids = {names[SIMPLE], "odd"}
    from_broker, from_gateway = (comparable(case, answer, group_ids) for answer in pair.ask(case))
    assert from_gateway == from_broker
