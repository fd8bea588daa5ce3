"""The requests of the consumer protocol, from scenario commands.

A member's ConsumerGroupHeartbeat is `NAME eEPOCH`, with the instance id in brackets behind the name:

    A e0                                joins with everything set: names of all topics, or as it joined before
    A(ia) e0 names[foo,bar] assignor=range rack=r1 timeout=60s
    A e0 regex=foo.*                    or `regex=`: no pattern
    A e2                                a keep-alive
    A e2 owned[0,1]                     or `owned[foo 0-2; bar 1]`; `owned[]`: none
    A e2 names[foo]                     only the given fields are sent
    A e2 full owned[0,1]                all fields are sent again
    A -1                                leaves; `A(ia) -2` for a while

`id=` sends another member id than the name, `api=0` another version. With `facts=none` the gateway could not
reach the brokers. With `may=foo.*` it lets the client DESCRIBE only these topics. `look=foo.*` sends the
result of a check. `names=none`, `regex=none`, `owned=none` and `timeout=-1` leave a field out.
"""

import re
from collections.abc import Callable

from msgspec import UNSET, structs

from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    AnyRequest,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    DescribeGroupConfigs,
    RegexResolution,
    RegexResolved,
    TopicIdPartitions,
    TopicMetadata,
)
from records.topic_patterns import digest
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness import options, partition_text
from tests.harness.cluster import Cluster
from tests.harness.common import Common
from tests.harness.offset_requests import topic_id

_SHORTHAND = re.compile(
    r"(?P<name>[A-Z]\w*)(?:\((?P<instance>\w*)\))? (?:e(?=-?\d)|(?=-[12]))(?P<epoch>-?\d+)"
)
_BRACKETS = re.compile(r"(\w+)\[([^\]]*)\]")

JOINED_WITH = ("names", "regex", "timeout", "assignor", "rack")
"""The options that a member sends again with `full`, and when it joins again."""


def expand(command: str) -> str:
    """Return a member's heartbeat as a command with a verb, any other command unchanged.

    `A(ia) e2 owned[0, 1]` becomes `member A instance=ia epoch=2 owned="0, 1"`.
    """
    match = _SHORTHAND.match(command)
    if match is None:
        return bracketed(command)
    instance = "" if match["instance"] is None else f" instance={match['instance']}"
    rest = bracketed(command[match.end() :]).replace(" full", " full=yes")
    return f"member {match['name']}{instance} epoch={match['epoch']}{rest}"


def bracketed(command: str) -> str:
    """Return the command with each `name[text]` as `name="text"`."""
    return _BRACKETS.sub(r'\1="\2"', command)


def member_heartbeat(
    common: Common, given: dict[str, str], joined_with: dict[str, str], cluster: Cluster, now_ms: int
) -> AnyRequest:
    """Return the heartbeat of `expand`. `joined_with` are the member's options so far."""
    epoch = int(given["epoch"])
    is_full = epoch == 0 or "full" in given
    sent = {**joined_with, **given} if is_full else given
    names = _value_or_none(sent, "names")
    regex = _value_or_none(sent, "regex")
    if is_full and "names" not in sent and regex is None:
        names = ",".join(sorted(cluster.topics))
    topics = None if names is None else [name.strip() for name in names.split(",") if name]
    is_reachable = given.get("facts") != "none"
    look = given.get("look")
    looked = None
    if look is not None and is_reachable:
        looked = cluster.resolve_for_client(look, now_ms, given.get("may", ".*"))
    return ConsumerGroupHeartbeat(
        **common,
        member_id=given["id"],
        member_epoch=epoch,
        instance_id=_value_or_none(given, "instance"),
        rack_id=_value_or_none(sent, "rack"),
        rebalance_timeout_ms=options.milliseconds(sent.get("timeout", "60s" if is_full else "-1")),
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        server_assignor=_value_or_none(sent, "assignor"),
        topic_partitions=_owned(given, cluster, "" if is_full else None),
        topics=cluster.topic_metadata(topics) if is_reachable else None,
        regex=cluster.resolve_for_client(regex, now_ms, given.get("may")) if regex and is_reachable else None,
        checks_topics=True if "may" in given else UNSET,
        looked={str(look): looked} if looked is not None else UNSET,
    )


def _value_or_none(given: dict[str, str], name: str) -> str | None:
    value = given.get(name)
    return None if value == "none" else value


def _owned(given: dict[str, str], cluster: Cluster, default: str | None) -> list[TopicIdPartitions] | None:
    text = given.get("owned", default)
    if text is None or text == "none":
        return None
    ids = {label: id_ for id_, label in cluster.labels.items()}
    return [
        TopicIdPartitions(ids.get(topic) or topic_id(topic), numbers)
        for topic, numbers in partition_text.parse(text).items()
    ]


def changed_topics(group: object, group_id: str, cluster: Cluster) -> TopicMetadata | None:
    """Return the metadata that the watcher sends the group, or None if the group has that of the cluster."""
    changed = (
        cluster.differences(group) if isinstance(group, ConsumerGroup | ShareGroup | StreamsGroup) else {}
    )
    return TopicMetadata(group_id=group_id, topics=changed) if changed else None


def regexes_resolved(
    given: dict[str, str], group: object, group_id: str, cluster: Cluster, now_ms: int
) -> RegexResolved:
    """Return the watcher's results for the given patterns (default: those of all members). The option `at=5s`
    is the time at which the topics were read. The topics are not filtered by rights, as if the watcher did
    not know yet which patterns gateways check.
    """
    members = group.members.values() if isinstance(group, ConsumerGroup) else ()
    patterns = sorted({member.subscribed_topic_regex for member in members} - {""})
    if "patterns" in given:
        patterns = given["patterns"].split(",")
    at_ms = options.milliseconds(given["at"]) if "at" in given else now_ms
    results = {
        pattern: cluster.resolve(pattern, at_ms) or RegexResolution(at_ms=at_ms) for pattern in patterns
    }
    for pattern in getattr(group, "checked_regexes", {}).keys() & results.keys():
        results[pattern] = structs.replace(results[pattern], seen=digest(sorted(results[pattern].topics)))
    return RegexResolved(group_id=group_id, patterns=results)


def _alter(common: Common, given: dict[str, str]) -> AnyRequest:
    """Parse `consumer.session.timeout.ms=50000`. `none` restores the coordinator's value."""
    configs = {name: _value_or_none(given, name) for name in given if "." in name}
    return AlterGroupConfigs(**common, configs=configs, validate_only=given.get("validate-only") == "yes")


# By the command's verb.
REQUESTS: dict[str, Callable[[Common, dict[str, str]], AnyRequest]] = {
    "describe-consumer": lambda common, _: ConsumerGroupDescribe(**common),
    "describe-configs": lambda common, _: DescribeGroupConfigs(**common),
    "alter-configs": _alter,
}
