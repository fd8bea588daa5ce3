"""Builds the request bodies of a script's steps, from the step's options and the client's earlier answers.

Options have shortened names of the protocol's fields. In an id, `@A` stands for A's latest member id and
`@A1` for A's first; any other text is sent unchanged. Without options a client sends what a correct client
would: its own id, generation and protocol from its last JoinGroup answer.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.conformance.script import Step

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
    "list": (16, 5),
    "delete": (42, 2),
    "forget": (47, 0),
    "begin": (22, 4),
    "add": (25, 4),
    "end": (26, 5),
    "txn": (28, 5),
}
"""The key of each api, and the version that a step without a version sends."""

_FIRST_BATCHED_LEAVE = 3
_FIRST_FETCH_OF_GROUPS = 8
_FIRST_BY_TOPIC_ID = 10
_FIRST_FIND_OF_SEVERAL = 4
NOBODY = UUID(int=7)

Body = dict[str, Any]


@dataclass
class Told:
    """What the clients of a case know about one server.

    `prefix` begins the ids of the case's groups. `side` begins transactional ids, because both servers have
    the same brokers behind them. `producers` are producer id and epoch by client. `names` maps member ids to
    `@A1`; `ids` maps `@A1` and `@A` to member ids. `generations` and `protocols` (type, name) are by client.
    """

    prefix: str
    topic_ids: Mapping[str, UUID]
    side: str = ""
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    protocols: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def learn(self, client: str, join_answer: Any) -> None:
        """Take the member id from a JoinGroup answer, and without an error the generation and protocol."""
        member_id = join_answer.member_id
        if member_id and member_id not in self.names:
            count = sum(name.startswith(f"@{client}") for name in self.names.values())
            self.names[member_id] = name = f"@{client}{count + 1}"
            self.ids[name] = member_id
        self.ids[f"@{client}"] = member_id
        if join_answer.error_code == 0:
            self.generations[client] = join_answer.generation_id
            self.protocols[client] = (join_answer.protocol_type, join_answer.protocol_name)

    def learn_producer(self, client: str, answer: Any) -> None:
        """Take the producer's id and epoch from the answer to InitProducerId or EndTxn."""
        if answer.error_code == 0 and answer.producer_id >= 0:
            self.producers[client] = answer.producer_id, answer.producer_epoch

    def transactional_id(self, client: str) -> str:
        """The transactional id of a client."""
        return f"{self.side}-{self.prefix}{client}"

    def id(self, text: str) -> str:
        """Return the member id that `text` stands for, or `text` itself."""
        return self.ids.get(text, text)

    def group(self, name: str) -> str:
        """Return the group id of a name in this case. The empty name stays empty."""
        return f"{self.prefix}{name}" if name else ""

    def own(self, client: str) -> str:
        """Return the client's latest member id, or an empty text if it has none."""
        return self.ids.get(f"@{client}", "")


def body(step: Step, version: int, told: Told) -> Body:
    """Return the body of the step's request. Raises KeyError if the api is unknown."""
    return _BODIES[step.api](step, version, told)


def subscription(*topics: str) -> bytes:
    """A consumer's metadata (ConsumerProtocolSubscription, version 0)."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


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
    protocols = step.options.get("protocols", "range").split(",")
    fields = _member(step, told) | {
        "session_timeout_ms": int(step.options.get("session", TIMEOUT_MS)),
        "rebalance_timeout_ms": int(step.options.get("rebalance", TIMEOUT_MS)),
        "protocol_type": step.options.get("type", "consumer"),
        "protocols": [_protocol(text) for text in protocols if text],
        "reason": step.options.get("reason"),
    }
    del fields["generation_id"]
    return fields


def _protocol(text: str) -> Body:
    """`range`: subscribed to orders; `range:+payments`: to payments; `range:x`: with these bytes."""
    name, colon, metadata = text.partition(":")
    if not colon:
        return {"name": name, "metadata": subscription("orders")}
    topic = metadata.removeprefix("+")
    return {"name": name, "metadata": metadata.encode() if topic == metadata else subscription(topic)}


def _sync(step: Step, version: int, told: Told) -> Body:
    known_type, known_name = told.protocols.get(step.client, ("consumer", "range"))
    pairs = [item.split(":") for item in step.options.get("assign", "").split(",") if item]
    return _member(step, told) | {
        "protocol_type": _nullable(step.options.get("type", known_type or "consumer")),
        "protocol_name": _nullable(step.options.get("protocol", known_name)),
        "assignments": [
            {"member_id": told.id(member), "assignment": assigned.encode()} for member, assigned in pairs
        ],
    }


def _nullable(text: str | None) -> str | None:
    return None if text == "null" else text


def _heartbeat(step: Step, version: int, told: Told) -> Body:
    return _member(step, told)


def _leave(step: Step, version: int, told: Told) -> Body:
    """`members=@A,@B/i1,/i2`: ids and instance ids; the default is the client itself."""
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
    """`topics=orders:0:5,orders:1:6:text`: topic, partition, offset, metadata (`*9`: nine letters)."""
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
                "partition_index": int(partition),
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
    return {"topic_id": told.topic_ids.get(name, NOBODY)}


def _fetch(step: Step, version: int, told: Told) -> Body:
    """`topics=orders:0,payments:0` or `topics=all`; from version 8 on `groups=g,h` too."""
    wanted = step.options.get("topics", "orders:0")
    stable = {"require_stable": step.options.get("stable") == "yes"}
    topics: list[Body] | None = None
    if wanted != "all":
        indexes: dict[str, list[int]] = {}
        for text in filter(None, wanted.split(",")):
            name, partition = text.split(":")
            indexes.setdefault(name, []).append(int(partition))
        topics = [
            {**_topic(name, version, told), "partition_indexes": partitions}
            for name, partitions in indexes.items()
        ]
    if version < _FIRST_FETCH_OF_GROUPS:
        return {"group_id": _group(step, told), "topics": topics, **stable}
    names = step.options.get("groups", step.options.get("group", "g")).split(",")
    return {"groups": [{"group_id": told.group(name), "topics": topics} for name in names], **stable}


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
    """InitProducerId, as a new producer."""
    return {
        "transactional_id": told.transactional_id(step.options.get("of", step.client)),
        "transaction_timeout_ms": int(step.options.get("timeout", "60000")),
    }


def _add(step: Step, version: int, told: Told) -> Body:
    """AddOffsetsToTxn."""
    return {**_producer(step, told), "group_id": _group(step, told)}


def _txn(step: Step, version: int, told: Told) -> Body:
    """TxnOffsetCommit, without a member unless `gen`, `id` or `instance` is given."""
    fields = _commit(step, version, told)
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
    """EndTxn: `commit=no` aborts."""
    return {**_producer(step, told), "committed": step.options.get("commit") != "no"}


_BODIES: Mapping[str, Callable[[Step, int, Told], Body]] = {
    "add": _add,
    "begin": _begin,
    "commit": _commit,
    "delete": _delete,
    "describe": _describe,
    "end": _end,
    "fetch": _fetch,
    "find": _find,
    "forget": _forget,
    "heartbeat": _heartbeat,
    "join": _join,
    "leave": _leave,
    "list": _list,
    "sync": _sync,
    "txn": _txn,
}
