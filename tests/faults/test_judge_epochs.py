"""The judge on consumer groups: it finds nothing in correct topics, and each error in doctored ones."""

from collections.abc import Callable
from typing import Any, Self
from uuid import UUID

import pytest

from tests.faults.campaign.judge.verdicts import Violation
from tests.faults.judged_topics import SESSION_MS, Topics

ORDERS = str(UUID(int=1))
HEARTBEAT = "ConsumerGroupHeartbeat"
SILENT = "no heartbeat within the session timeout of 10000 ms"
UNREVOKED = "did not revoke its partitions within its rebalance timeout of 60000 ms"


def shares(partitions: list[int]) -> list[dict[str, Any]]:
    return [{"topic_id": ORDERS, "partitions": partitions}] if partitions else []


class Group(Topics):
    """Requests to a group of the consumer protocol."""

    def beat(
        self,
        member: str,
        epoch: int,
        to: int | None = None,
        *,
        given: list[int] | None = None,
        owned: list[int] | None = None,
        **more: Any,
    ) -> Self:
        """Append a heartbeat with `epoch`, answered with the epoch `to` and the partitions `given`."""
        answer = {
            "member_id": member,
            "member_epoch": epoch if to is None else to,
            "assignment": None if given is None else shares(given),
        }
        return self._beat(answer, member, epoch, owned, more)

    def refused(
        self, error: int, member: str, epoch: int, *, owned: list[int] | None = None, **more: Any
    ) -> Self:
        answer = {"error_code": error, "error_message": "no", "member_id": None, "assignment": None}
        return self._beat(answer, member, epoch, owned, more)

    def _beat(
        self, answer: dict[str, Any], member: str, epoch: int, owned: list[int] | None, more: dict[str, Any]
    ) -> Self:
        more |= {} if owned is None else {"topic_partitions": shares(owned)}
        return self.ask(HEARTBEAT, answer, member_id=member, member_epoch=epoch, **more)

    def static(self, member: str, *partitions: int) -> Self:
        """Let a member join with the instance id `i`."""
        return self.beat(member, 0, 2, given=[*partitions], owned=[], instance_id="i")

    def removed(self, member: str, reason: str = SILENT) -> Self:
        return self.event("MemberRemoved", member_id=member, reason=reason, group_type="consumer")

    def fetched(self, offset: int, error: int = 0) -> Self:
        return self.fetch(offset, error=error, member_id="m1", member_epoch=2)


def sound() -> Group:
    """m1 has both partitions, and gives one up for m2. A static member joins and falls silent."""
    group = Group().event("GroupCreated", group_type="consumer")
    group.beat("m1", 0, 1, given=[0, 1], owned=[], rebalance_timeout_ms=60_000).commit(5)
    group.beat("m2", 0, 2, given=[], owned=[], rebalance_timeout_ms=60_000)
    group.beat("m1", 1, 1, given=[0]).commit(6).beat("m1", 1, 2, owned=[0]).beat("m2", 2, 2, given=[1])
    group.static("s1")
    for offset in range(7, 12):
        group.beat("m1", 2).beat("m2", 2).commit(offset, epoch=2).fetched(offset)
    return group.removed("s1")


Doctor = Callable[[Group], Topics]
DOCTORED: dict[str, tuple[Violation, Doctor]] = {
    "request without an answer": (Violation.LOST, lambda it: it.ask(HEARTBEAT, None, member_id="m1")),
    "another answer": (Violation.DIFFERENT, lambda it: it.beat("m1", 2).answer(error_code=27)),
    "expired in spite of a heartbeat": (
        Violation.EXPIRED,
        lambda it: it.beat("m1", 2).later(SESSION_MS - 1).removed("m1"),
    ),
    "expired in spite of a heartbeat that is then refused": (
        Violation.EXPIRED,
        lambda it: it.refused(25, "m1", 2).later(SESSION_MS - 1).removed("m1"),
    ),
    "expired because of an outage": (
        Violation.EXPIRED,
        lambda it: it.outage(1, 60_000).later(65_000).removed("m1"),
    ),
    "removed with nothing to revoke": (Violation.EXPIRED, lambda it: it.removed("m1", UNREVOKED)),
    "removed with time left to revoke": (
        Violation.EXPIRED,
        lambda it: it.beat("m1", 2, given=[]).later(59_000).removed("m1", UNREVOKED),
    ),
    "forgotten": (Violation.EXPIRED, lambda it: it.refused(25, "m1", 2)),
    "fenced with its epoch": (Violation.EXPIRED, lambda it: it.refused(110, "m1", 2)),
    "fenced after a lost answer": (
        Violation.EXPIRED,
        lambda it: it.beat("m1", 2, 3).refused(110, "m1", 2, owned=[0]),
    ),
    "commit with its epoch refused": (Violation.EXPIRED, lambda it: it.commit(12, epoch=2, error=113)),
    "fetch with its epoch refused": (Violation.EXPIRED, lambda it: it.fetched(-1, error=113)),
    "instance id of nobody else": (
        Violation.EXPIRED,
        lambda it: it.static("s2").refused(82, "s2", 2, instance_id="i"),
    ),
    "offset rolled back": (Violation.OFFSET, lambda it: it.fetched(3)),
    "commit that is acknowledged and in no log": (Violation.OFFSET, lambda it: it.acknowledge(77)),
    "partition of two": (Violation.OWNERS, lambda it: it.beat("m2", 2, 3, given=[0, 1])),
    "partition that is not given up yet": (
        Violation.OWNERS,
        lambda it: it.beat("m1", 2, given=[]).beat("m2", 2, 3, given=[0, 1]),
    ),
    "partitions of a static member that is there": (
        Violation.OWNERS,
        lambda it: it.static("s2", 2).static("s3", 2),
    ),
}


def removed_when_the_time_to_revoke_was_over(group: Group) -> Topics:
    group.beat("m1", 2, given=[])
    for _ in range(60):
        group.beat("m1", 2)
    return group.removed("m1", UNREVOKED)


ALLOWED: dict[str, Doctor] = {
    "nothing more": lambda it: it,
    "expired when time was over": lambda it: (
        it.beat("m1", 2).later(SESSION_MS).removed("m1").refused(25, "m1", 2).beat("m2", 2, 3, given=[0, 1])
    ),
    "removed when the time to revoke was over": removed_when_the_time_to_revoke_was_over,
    "left and gave its partition up": lambda it: (
        it.beat("m1", -1).removed("m1", "left the group").refused(25, "m1", 2).beat("m2", 2, 3, given=[0, 1])
    ),
    "static member came back with another id": lambda it: (
        it.static("s2", 2)
        .beat("s2", -2, instance_id="i")
        .static("s3", 2)
        .refused(82, "s2", 2, instance_id="i")
    ),
    # Its leaving does not renew its session.
    "static member did not come back": lambda it: (
        it.static("s2", 2)
        .later(SESSION_MS - 2_000)
        .beat("s2", -2, instance_id="i")
        .later(1_000)
        .removed("s2", "left for a while and did not come back within the session timeout of 10000 ms")
    ),
    # After two answers that the client did not get.
    "fenced with an epoch of long ago": lambda it: (
        it.beat("m1", 2, 3).beat("m1", 2, 4, owned=[0]).refused(110, "m1", 2, owned=[0])
    ),
    "fenced with more than it was given": lambda it: it.beat("m1", 2, 3).refused(110, "m1", 2, owned=[0, 1]),
}


@pytest.mark.parametrize(("wrong", "doctor"), DOCTORED.values(), ids=DOCTORED)
def test_judge_finds_the_planted_error_in_doctored_epochs(wrong: Violation, doctor: Doctor) -> None:
    assert doctor(sound()).violations() == {wrong}


@pytest.mark.parametrize("doctor", ALLOWED.values(), ids=ALLOWED)
def test_allowed_deviation_of_epoch_groups_passes_the_judge(doctor: Doctor) -> None:
    assert doctor(sound()).violations() == set()
