"""Builds the request bodies of a script's steps, from the step's options and the client's earlier answers.

Options have shortened names of the protocol's fields. In an id, `@A` stands for A's latest member id and
`@A1` for A's first; any other text is sent unchanged. Without options a client sends what a correct client
would: its own id, generation and protocol from its last JoinGroup answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)
from tests.conformance import consumer_requests, share_requests, streams_requests
from tests.conformance.script import Step
from tests.conformance.told import Partition, Told

TIMEOUT_MS = "300000"
NEWEST: Mapping[str, tuple[int, int]] = {
    "commit": (8, 9),
    "fetch": (9, 9),
    "find": (10, 6),
    "join": (11, 9),
    "heartbeat": (12, 4),
    "leave": (13, 5),
    "sync": (14, 5),
    "describe": (15, 6),
    "beat": (68, 1),
    "inspect": (69, 1),
    "configure": (44, 1),
    "configs": (32, 4),
    "list": (16, 5),
    "delete": (42, 2),
    "forget": (47, 0),
    "begin": (22, 4),
    "add": (25, 4),
    "end": (26, 5),
    "txn": (28, 5),
    "share": (76, 1),
    "sharers": (77, 1),
    "offsets": (90, 1),
    "reset": (91, 0),
    "clear": (92, 0),
    "stream": (88, 1),
    "tasks": (89, 1),
    "make": (19, 7),
    "grow": (37, 3),
    "drop": (20, 6),
}
"""The key of each api, and the version that a step without a version sends."""

_FIRST_BATCHED_LEAVE = 3
_FIRST_FETCH_OF_GROUPS = 8
_FIRST_BY_TOPIC_ID = 10
_FIRST_TXN_BY_TOPIC_ID = 6  # of TxnOffsetCommit (KIP-1319)
_FIRST_FIND_OF_SEVERAL = 4
_FIRST_FETCH_BY_EPOCH = 9
_FIRST_WITH_OWNED, _FIRST_WITH_RACK = 1, 3

Body = dict[str, Any]


def body(step: Step, version: int, told: Told) -> Body:
    """Return the body of the step's request. Raises KeyError if the api is unknown."""
    return _BODIES[step.api](step, version, told)


def _group(step: Step, told: Told) -> str:
    return told.group(step.options.get("group", "g"))


def _member(step: Step, told: Told) -> Body:
    generation = step.options.get("gen", str(told.generations.get(step.client, -1)))
    return {
        "group_id": _group(step, told),
        "member_id": told.id(step.options.get("id", told.own(step.client))),
        "group_instance_id": step.options.get("instance"),
        "generation_id": int(generation),
    }


def _join(step: Step, version: int, told: Told) -> Body:
    """`owned` (see `Holding.owned`): what the member owns, in a subscription of version 1; with `rack` 3."""
    protocols = step.options.get("protocols", "range").split(",")
    owned = step.options.get("owned")
    partitions = None if owned is None else told.holding(step.client).owned(owned)
    rack = step.options.get("rack")
    fields = _member(step, told) | {
        "session_timeout_ms": int(step.options.get("session", TIMEOUT_MS)),
        "rebalance_timeout_ms": int(step.options.get("rebalance", TIMEOUT_MS)),
        "protocol_type": step.options.get("type", "consumer"),
        "protocols": [_protocol(text, partitions, rack) for text in protocols if text],
        "reason": step.options.get("reason"),
    }
    del fields["generation_id"]
    return fields


def _protocol(text: str, owned: Sequence[Partition] | None, rack: str | None) -> Body:
    """`range`: subscribed to orders; `range:+trips+taxis`: to these; `range:x`: with these bytes."""
    name, colon, metadata = text.partition(":")
    if colon and not metadata.startswith("+"):
        return {"name": name, "metadata": metadata.encode()}
    topics = tuple(metadata.removeprefix("+").split("+")) if colon else ("orders",)
    version = _FIRST_WITH_RACK if rack else 0 if owned is None else _FIRST_WITH_OWNED
    subscription = Subscription(
        topics=topics,
        user_data=None,
        owned_partitions=tuple(TopicPartition(*partition) for partition in owned or ()),
        rack_id=rack,
    )
    return {"name": name, "metadata": encode_subscription(subscription, version)}


def _sync(step: Step, version: int, told: Told) -> Body:
    """Parse `assign=@A:all,@B:trips/2`: each member's assignment."""
    known_type, known_name = told.protocols.get(step.client, ("consumer", "range"))
    pairs = [item.split(":") for item in step.options.get("assign", "").split(",") if item]
    return _member(step, told) | {
        "protocol_type": _nullable(step.options.get("type", known_type or "consumer")),
        "protocol_name": _nullable(step.options.get("protocol", known_name)),
        "assignments": [
            {"member_id": told.id(member), "assignment": _assignment(text)} for member, text in pairs
        ],
    }


def _assignment(text: str) -> bytes:
    """`trips/3`: an assignment of the consumer protocol, the topic's first three partitions; other text: its
    bytes.
    """
    topic, slash, count = text.partition("/")
    if not slash:
        return text.encode()
    return encode_assignment(Assignment(tuple(TopicPartition(topic, index) for index in range(int(count)))))


def _nullable(text: str | None) -> str | None:
    return None if text == "null" else text


def _heartbeat(step: Step, version: int, told: Told) -> Body:
    return _member(step, told)


def _leave(step: Step, version: int, told: Told) -> Body:
    """Parse `members=@A,@B/i1,/i2`: ids and instance ids. The default is the client itself."""
    if version < _FIRST_BATCHED_LEAVE:
        return {"group_id": _group(step, told), "member_id": _member(step, told)["member_id"]}
    members = []
    for text in step.options.get("members", told.own(step.client)).split(","):
        member_id, _, instance_id = text.partition("/")
        reason = step.options.get("reason")
        members.append(
            {"member_id": told.id(member_id), "group_instance_id": instance_id or None, "reason": reason}
        )
    return {"group_id": _group(step, told), "members": members}


def _commit(step: Step, version: int, told: Told) -> Body:
    """`topics=orders:0:5,orders:1:6:text`: topic, partition (a number, or see `Holding.index`), offset,
    metadata (`*9`: nine letters).
    """
    fields = _member(step, told)
    fields["generation_id_or_member_epoch"] = fields.pop("generation_id")
    topics: dict[str, list[Body]] = {}
    for text in step.options.get("topics", "orders:0:5").split(","):
        if not text:
            continue
        name, partition, offset, *metadata = text.split(":")
        note = metadata[0] if metadata else ""
        topics.setdefault(name, []).append(
            {
                "partition_index": told.holding(step.client).index(name, partition),
                "committed_offset": int(offset),
                "committed_leader_epoch": int(step.options.get("epoch", "-1")),
                "committed_metadata": "x" * int(note[1:]) if note.startswith("*") else _nullable(note),
            }
        )
    return fields | {
        "retention_time_ms": int(step.options.get("retention", "-1")),
        "topics": [
            {**_topic(name, version, told), "partitions": partitions} for name, partitions in topics.items()
        ],
    }


def _topic(name: str, version: int, told: Told) -> Body:
    if version < _FIRST_BY_TOPIC_ID:
        return {"name": name}
    return {"topic_id": told.topic_id(name)}


def _fetch(step: Step, version: int, told: Told) -> Body:
    """`topics=orders:0,payments:0` or `topics=all`; from version 8 on `groups=g,h` too."""
    wanted = step.options.get("topics", "orders:0")
    stable = {"require_stable": step.options.get("stable") == "yes"}
    topics: list[Body] | None = None
    if wanted != "all":
        indexes: dict[str, list[int]] = {}
        for text in filter(None, wanted.split(",")):
            name, partition = text.split(":")
            indexes.setdefault(name, []).append(told.holding(step.client).index(name, partition))
        topics = [
            {**_topic(name, version, told), "partition_indexes": partitions}
            for name, partitions in indexes.items()
        ]
    if version < _FIRST_FETCH_OF_GROUPS:
        return {"group_id": _group(step, told), "topics": topics, **stable}
    names = step.options.get("groups", step.options.get("group", "g")).split(",")
    member = _fetching_member(step, told) if version >= _FIRST_FETCH_BY_EPOCH else {}
    return {
        "groups": [{"group_id": told.group(name), "topics": topics, **member} for name in names],
        **stable,
    }


def _fetching_member(step: Step, told: Told) -> Body:
    """`by=member`: with the client's member id and epoch, of which each can be given, too."""
    if not {"by", "id", "epoch"} & step.options.keys():
        return {}
    member_id = told.id(step.options.get("id", told.own(step.client)))
    epoch = step.options.get("epoch", told.generations.get(step.client, -1))
    return {"member_id": _nullable(member_id), "member_epoch": int(epoch)}


def _find(step: Step, version: int, told: Told) -> Body:
    names = step.options.get("groups", "g").split(",")
    if version < _FIRST_FIND_OF_SEVERAL:
        return {"key": told.group(names[0]), "key_type": 0}
    return {"coordinator_keys": [told.group(name) for name in names], "key_type": 0}


def _describe(step: Step, version: int, told: Told) -> Body:
    return {
        "groups": [told.group(name) for name in step.options.get("groups", "g").split(",")],
        "include_authorized_operations": step.options.get("operations") == "yes",
    }


def _list(step: Step, version: int, told: Told) -> Body:
    return {
        "states_filter": [text for text in step.options.get("states", "").split(",") if text],
        "types_filter": [text for text in step.options.get("types", "").split(",") if text],
    }


def _delete(step: Step, version: int, told: Told) -> Body:
    return {"groups_names": [told.group(name) for name in step.options.get("groups", "g").split(",")]}


def _forget(step: Step, version: int, told: Told) -> Body:
    topics: dict[str, list[Body]] = {}
    for text in step.options.get("topics", "orders:0").split(","):
        name, partition = text.split(":")
        topics.setdefault(name, []).append({"partition_index": int(partition)})
    return {
        "group_id": _group(step, told),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _producer(step: Step, told: Told) -> Body:
    """`of=A`: the transactional id of A. `pid=1`, `epoch=-1`: that much above the client's own."""
    producer_id, epoch = told.producers.get(step.client, (-1, -1))
    return {
        "transactional_id": told.transactional_id(step.options.get("of", step.client)),
        "producer_id": producer_id + int(step.options.get("pid", "0")),
        "producer_epoch": epoch + int(step.options.get("epoch", "0")),
    }


def _begin(step: Step, version: int, told: Told) -> Body:
    """Build the InitProducerId of a new producer."""
    return {
        "transactional_id": told.transactional_id(step.options.get("of", step.client)),
        "transaction_timeout_ms": int(step.options.get("timeout", "60000")),
    }


def _add(step: Step, version: int, told: Told) -> Body:
    """Build an AddOffsetsToTxn."""
    return {**_producer(step, told), "group_id": _group(step, told)}


def _txn(step: Step, version: int, told: Told) -> Body:
    """Build a TxnOffsetCommit, without a member unless `gen`, `id` or `instance` is given."""
    fields = _commit(step, _FIRST_BY_TOPIC_ID if version >= _FIRST_TXN_BY_TOPIC_ID else 0, told)
    del fields["generation_id_or_member_epoch"], fields["retention_time_ms"]
    for topic in fields["topics"]:
        for partition in topic["partitions"]:
            partition["committed_leader_epoch"] = -1
    return {
        **fields,
        **_producer(step, told),
        "generation_id": int(step.options.get("gen", "-1")),
        "member_id": told.id(step.options.get("id", "")),
    }


def _end(step: Step, version: int, told: Told) -> Body:
    """Build an EndTxn. `commit=no` aborts the transaction."""
    return {**_producer(step, told), "committed": step.options.get("commit") != "no"}


_BODIES: Mapping[str, Callable[[Step, int, Told], Body]] = {
    "add": _add,
    "beat": consumer_requests.beat,
    "begin": _begin,
    "clear": share_requests.clear,
    "commit": _commit,
    "configs": consumer_requests.configs,
    "configure": consumer_requests.configure,
    "delete": _delete,
    "describe": _describe,
    "drop": share_requests.drop,
    "end": _end,
    "fetch": _fetch,
    "find": _find,
    "forget": _forget,
    "grow": share_requests.grow,
    "heartbeat": _heartbeat,
    "inspect": consumer_requests.inspect,
    "join": _join,
    "leave": _leave,
    "list": _list,
    "make": share_requests.make,
    "offsets": share_requests.offsets,
    "reset": share_requests.reset,
    "share": share_requests.share,
    "sharers": share_requests.sharers,
    "stream": streams_requests.stream,
    "sync": _sync,
    "tasks": streams_requests.tasks,
    "txn": _txn,
}
