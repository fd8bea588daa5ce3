"""Groups that change their protocol or end. Rows OB12 and OB13.

Kafka removes the records of the old protocol and writes those of the new one at one time. A group with
members is never deleted, so the removal of its records is a conversion.
"""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.states import ConsumerGroupState, GroupState
from kafka_why.contract.protocols.subscriptions import by_topic
from kafka_why.observed.classic import store
from kafka_why.observed.group import CONSUMER, CREATION, Epochs
from kafka_why.observed.observation import Observation
from kafka_why.observed.records import ClassicGeneration

# A group without members makes way for one of another type: GroupMetadataManager.getOrMaybeCreate*Group.
_ENDED = (
    "its coordinator removed the records of the group: it was deleted, had expired, or made way for a group "
    "of another type"
)


def remove_classic(seen: Observation) -> None:
    """The record of a classic group was removed."""
    group = seen.group
    if group.classic is None and group.seq == CREATION:  # it may have been converted
        seen.is_over = True
        return
    if group.classic is None or not group.classic.members:
        seen.delete("OB12", _ENDED)
        return
    targets = {m.member_id: by_topic(group.held_by(m)) for m in group.classic.members}
    group.classic, group.epochs, group.sightings = None, Epochs(CONSUMER), []
    seen.record(
        "OB13",
        EntryType.GROUP_CONVERTED,
        "the group became a group of the consumer protocol",
        to_state=ConsumerGroupState.RECONCILING.value,
        members=list(targets),
        targets=targets,
    )


def remove_epochs(seen: Observation) -> None:
    """The group epoch was removed. The records of members were removed before."""
    group = seen.group
    if group.epochs is None or not group.epochs.subscriptions:
        seen.delete("OB12", _ENDED)


def become_classic(seen: Observation, now: ClassicGeneration) -> None:
    """The group of the consumer protocol is a classic group from this record on."""
    group = seen.group
    had = {} if group.epochs is None else group.epochs.subscriptions
    group.epochs = None
    store(seen, now)
    targets = {m.member_id: by_topic(group.held_by(m)) for m in now.members}
    seen.record(
        "OB13",
        EntryType.GROUP_CONVERTED,
        "the group became a classic group",
        to_state=(GroupState.STABLE if now.members else GroupState.EMPTY).value,
        members=list(targets),
        targets=targets,
    )
    for member_id, was in had.items():
        if member_id not in targets:
            seen.record(
                "OB3",
                EntryType.MEMBER_REMOVED,
                f"member {member_id} left or expired: the last one of the consumer protocol",
                member_id=member_id,
                client_id=was.client_id,
                client_host=was.client_host,
                group_instance_id=was.instance_id,
            )
