"""The expectations of a scenario about an answer, a group or a member, apart from the printed outcome.

`COMMAND => e3 [0-2]` is about the answer to a command: `e3 -` without an assignment, `e3 []` with an empty
one, the name of an error, `gen 4` of a JoinGroup, `[0,1]` of a SyncGroup, `waits`, or `NONE`.

`expect group Stable gE4 aE4` and `expect A e3 p2 UNREVOKED [0-2] pending[3,4] target[0] session@45s` are
about the state. Only what is named is checked. `epochs[0,1@2; 2@3]` are assignment epochs, `consumer` and
`classic` are protocols, `generation=3` is that of a classic group. `expect A gone` means that A is no member.
For a share group, `ing[0,1]`, `ed[0,1]` and `del[0,1]` are partitions that are initializing, initialized and
deleting. `INIT:foo(0,1@2/-1)` is a task with its state epoch and start offset, `DELETE:foo(0)` a task to
delete. `idle` means no task.
"""

import re

from kafka_why.contract.kafka.responses import (
    AnyResponse,
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    ShareGroupHeartbeatResponse,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeatResponse
from kafka_why.contract.protocols.subscriptions import decode_assignment
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import KafkaGroup
from state.kafka.share_group import ShareGroup, ShareMember
from state.kafka.streams_group import StreamsGroup, StreamsGroupMember
from tests.harness import consumer_story, partition_text, share_story, streams_story
from tests.harness.consumer_story import Labels

_BRACKETS = re.compile(r'(\w*)\[([^\]]*)\]|(\w+)="([^"]*)"')


def gist(response: AnyResponse | None, labels: Labels) -> str:
    """Return the text of an answer with which an expectation is compared."""
    match response:
        case None:
            return "waits"
        case _ if response.error_code:
            return response.error_code.name
        case StreamsGroupHeartbeatResponse():
            return f"e{response.member_epoch}"
        case ConsumerGroupHeartbeatResponse() | ShareGroupHeartbeatResponse():
            return consumer_story.epoch_and_assignment(response, labels)
        case JoinGroupResponse():
            return f"gen {response.generation_id}"
        case SyncGroupResponse():
            partitions: dict[str, list[int]] = {}
            for topic, number in decode_assignment(response.assignment).partitions:
                partitions.setdefault(topic, []).append(number)
            return f"[{partition_text.text_of(partitions)}]"
        case LeaveGroupResponse():
            return " ".join(member.error_code.name for member in response.members)
        case OffsetCommitResponse():
            return " ".join(p.error_code.name for topic in response.topics for p in topic.partitions)
    return "NONE"


def check_answer(expected: str, response: AnyResponse | None, labels: Labels) -> None:
    """Raise AssertionError if the answer is not the expected one."""
    if (
        isinstance(response, StreamsGroupHeartbeatResponse)
        and not response.error_code
        and response.member_epoch >= 0
    ):
        return streams_story.check_answer(expected, response)
    actual = gist(response, labels)
    assert canonical(expected) == actual, f"expected {canonical(expected)}, the answer is {actual}"


def canonical(text: str) -> str:
    """Return the text with its partitions in the order and form of `partition_text`."""

    def replace(match: re.Match[str]) -> str:
        name, content = (match[1], match[2]) if match[2] is not None else (match[3], match[4])
        if name == "epochs":
            return f"epochs[{partition_text.text_of_epochs(partition_text.parse_epochs(content))}]"
        return f"{name}[{partition_text.text_of(partition_text.parse(content))}]"

    return _BRACKETS.sub(replace, text.strip())


def check_group(expected: str, group: KafkaGroup | None) -> None:
    """Raise AssertionError if the group is not as expected."""
    _check(expected, _of_group(group))


def check_member(expected: str, group: KafkaGroup | None, member_id: str, labels: Labels) -> None:
    """Raise AssertionError if the member is not as expected."""
    member = None if group is None else group.members.get(member_id)
    if isinstance(group, ConsumerGroup) and isinstance(member, ConsumerMember):
        return _check(expected, _of_member(group, member, labels))
    if isinstance(group, ShareGroup) and isinstance(member, ShareMember):
        return _check(expected, share_story.of_member(group, member, labels))
    if isinstance(group, StreamsGroup) and isinstance(member, StreamsGroupMember):
        return streams_story.check(expected, streams_story.of_member(group, member))
    return _check(expected, {"gone"} if member is None else {"classic"})


def _check(expected: str, actual: set[str]) -> None:
    tokens = re.findall(r"\S*\[[^\]]*\]|\S+", canonical(expected))
    missing = [token for token in tokens if token not in actual]
    assert not missing, f"expected {' '.join(missing)}, found {' '.join(sorted(actual))}"


def _of_group(group: KafkaGroup | None) -> set[str]:
    if group is None:
        return {"gone"}
    if isinstance(group, ClassicGroup):
        return {"classic", str(group.state), f"generation={group.generation}"}
    if isinstance(group, ShareGroup):
        return share_story.of_group(group)
    if isinstance(group, StreamsGroup):
        return streams_story.of_group(group)
    epochs = {f"gE{group.group_epoch}", f"aE{group.assignment_epoch}"}
    return {"consumer", str(group.state), *epochs}


def _of_member(group: ConsumerGroup, member: ConsumerMember, labels: Labels) -> set[str]:
    target = group.target.get(member.member_id, {})
    return {
        f"e{member.member_epoch}",
        f"p{member.previous_epoch}",
        member.state.name.removesuffix("_PARTITIONS"),
        consumer_story.by_label(member.assigned, labels),
        f"epochs{consumer_story.epochs_of(member, labels)}",
        f"pending{consumer_story.by_label(member.pending_revocation, labels)}",
        f"target{consumer_story.by_label(target, labels)}",
        "consumer" if member.classic is None else "classic",
        *(f"{kind}@{at}" for kind, at in consumer_story.deadlines(member).items()),
    }
