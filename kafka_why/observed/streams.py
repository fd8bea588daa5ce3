"""Derives the history of streams groups: their topology, and the reasons of new epochs (rows OB50 to OB52 of
docs/observe.md).

The record of a group epoch has the topology epoch whose topics were found valid, and the settings of the
assignment. Until the topics are valid, the group is NotReady and no member has a task.
"""

from kafka_why.contract.kafka.history import STREAMS, EntryType
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.observed.group import ACTIVE, Topology, task_key
from kafka_why.observed.observation import Observation
from kafka_why.observed.records import GroupEpoch, MemberSubscription, TopologySent

# Fields of a `MemberSubscription`, and of its `StreamsMember`, with the texts about their changes.
_FIELDS = {
    "instance_id": "its instance id",
    "rack_id": "its rack",
    "client_id": "its client id",
    "client_host": "its host",
    "rebalance_timeout_ms": "its rebalance timeout",
}
_STREAMS_FIELDS = {
    "topology_epoch": "its topology epoch",
    "process_id": "its process",
    "user_endpoint": "its endpoint",
    "client_tags": "its tags",
}


def describe_change(before: MemberSubscription, now: MemberSubscription) -> str:
    """Return a text about the fields that a member changed, or "" if it changed none."""
    changed = [text for name, text in _FIELDS.items() if getattr(before, name) != getattr(now, name)]
    if before.streams is not None and now.streams is not None:
        changed += [
            text
            for name, text in _STREAMS_FIELDS.items()
            if getattr(before.streams, name) != getattr(now.streams, name)
        ]
    return " and ".join(changed)


def observe_topology(seen: Observation, record: TopologySent) -> None:
    """Apply a topology record. The tombstone of a topology is the last record of a group."""
    group = seen.group
    if record.epoch is None:
        if group.epochs is not None and group.epochs.kind == STREAMS:
            group.epochs.topology = Topology()
            seen.view_changed = True
        else:  # the group has ended
            seen.is_over = group.epochs is None and group.classic is None and not group.offsets
        return
    epochs = seen.epochs(STREAMS)
    seen.view_changed = epochs.news.is_new_topology = True
    epochs.topology.epoch, epochs.topology.sources = record.epoch, dict(record.sources)
    record_topology(seen, epochs.topology)


def record_topology(seen: Observation, topology: Topology) -> None:
    """Record the topology, if the group already has a history."""
    subtopologies = [
        f"{name} reads {', '.join(topics) or 'no topic'}" for name, topics in topology.sources.items()
    ]
    seen.record_or_update(
        "OB50",
        EntryType.TOPOLOGY_CHANGED,
        f"the topology of epoch {topology.epoch}: subtopology {'; '.join(subtopologies)}",
        topics=sorted({topic for topics in topology.sources.values() for topic in topics}),
    )


def epoch_reasons(topology: Topology, record: GroupEpoch) -> list[tuple[str, str]]:
    """Return the row and the text of each reason for a new epoch that is not about members.

    `topology` is the one before the record of the new epoch.
    """
    if topology.configs is None:  # the first epoch
        return []
    reasons = []
    if record.validated_topology_epoch != topology.validated_epoch:
        text = (
            "the topics of the topology are missing, or have wrong numbers of partitions"
            if record.validated_topology_epoch < 0
            else f"all topics of topology epoch {record.validated_topology_epoch} exist and are valid"
        )
        reasons.append(("OB51", text))
    new_configs = record.assignment_configs or {}
    for name in sorted({*topology.configs, *new_configs}):
        before, after = topology.configs.get(name, "none"), new_configs.get(name, "none")
        if before != after:
            reasons.append(("OB52", f"{name} changed from {before} to {after}"))
    return reasons


def partitions_read_by(topology: Topology, tasks: Partitions) -> list[TopicPartition]:
    """Return the partitions of topics that the active tasks among `tasks` read."""
    return [
        TopicPartition(topic, number)
        for subtopology, topics in topology.sources.items()
        for topic in topics
        for number in tasks.get(task_key(ACTIVE, subtopology), ())
    ]
