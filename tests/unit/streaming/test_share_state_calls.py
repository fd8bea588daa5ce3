"""Requests of the share-state thread to share coordinators: rows SP11, SP13, SP18, SI10, SI11, SK5, SK8.

`tests/e2e/test_share_state.py` has the messages, at a real share coordinator.
"""

import pytest

from kafka_why.contract.kafka.share_requests import ShareStatePartition
from kafka_why.contract.messages import ErrorCode
from streaming.service.share_state.partition_tasks import NoOutcome, PartitionTask, carry_out
from tests.harness.share_coordinators import TOPIC, Coordinators, State, deletion, done, item, key


def test_partition_without_state_is_initialized_after_reading_it() -> None:
    """Row SP11: in one request per coordinator and group."""
    brokers = Coordinators()
    others = [PartitionTask("t", key(n, "h"), "foo", False, 2, -1) for n in range(2)]
    assert carry_out([item(0), item(1), item(2), *others], brokers) == {
        **{key(n): done(n) for n in range(3)},
        **{key(n, "h"): done(n) for n in range(2)},
    }
    assert brokers.calls[0] == ("find", 5)
    assert [name for name, _ in brokers.calls[1:]] == ["read", "initialize"] * 4
    assert sum(size for name, size in brokers.calls if name == "initialize") == 5


FENCED = done(code=ErrorCode.FENCED_STATE_EPOCH, state_epoch=7, start_offset=40)


@pytest.mark.parametrize(
    ("state", "asked", "told", "left"),
    [
        # A thread was killed after InitializeShareGroupState, before its record.
        pytest.param(State(2, 40, 5), item(epoch=2), done(), State(2, 40, 5), id="SK8, SP13 of this epoch"),
        pytest.param(State(7, 40), item(epoch=2), FENCED, State(7, 40), id="SK11 of a later epoch"),
        # The brokers' own coordinator had the group.
        pytest.param(State(3, 40, 5), item(epoch=4), done(), State(3, 40, 5), id="SK11 of an earlier epoch"),
        pytest.param(
            State(3, 40, 5),
            item(epoch=4, offset=20, altered=True),
            done(),
            State(4, 20),
            id="SO10 an administrator replaces it",
        ),
    ],
)
def test_only_an_administrator_replaces_a_state(
    state: State, asked: PartitionTask, told: ShareStatePartition, left: State
) -> None:
    brokers = Coordinators(states={key(): state})
    assert carry_out([asked], brokers) == {key(): told}
    assert brokers.states == {key(): left}
    assert brokers.count("initialize") == asked.is_altered


@pytest.mark.parametrize("code", [3, 14, 15, 16, 31])
@pytest.mark.parametrize("what", [item(), deletion()])
def test_retriable_error_leaves_the_task_open(code: int, what: PartitionTask) -> None:
    """Row SI10. CLUSTER_AUTHORIZATION_FAILED passes, too: the permission may be granted."""
    assert carry_out([what], Coordinators(find_codes={key(): code})) == {key(): NoOutcome(code)}
    assert carry_out([what], Coordinators(codes={key(): code})) == {key(): NoOutcome(code)}


@pytest.mark.parametrize("code", [42, -1])
def test_fatal_error_ends_the_task(code: int) -> None:
    assert carry_out([item()], Coordinators(find_codes={key(): code})) == {key(): done(code=code)}
    assert carry_out([item()], Coordinators(codes={key(): code})) == {key(): done(code=code)}
    assert carry_out([deletion()], Coordinators(codes={key(): code})) == {key(): done(code=code)}


def test_state_of_a_deleted_topic_counts_as_deleted() -> None:
    """Row SK5."""
    assert carry_out([deletion(), deletion(1)], Coordinators(gone_topics={TOPIC})) == {
        key(n): done(n) for n in range(2)
    }


def test_coordinator_without_ownership_changes_no_share_state() -> None:
    """Row SP18. What was not reached has no result."""
    brokers = Coordinators(is_owner=False, states={key(1): State(2, -1)})
    assert carry_out([item(0), deletion(2)], brokers) == {}
    assert carry_out([item(1)], brokers) == {key(1): done(1)}, "this needs no change"


def test_unavailable_broker_is_waited_for_only_once() -> None:
    brokers = Coordinators(lossy=1.0)
    assert carry_out([item(n) for n in range(3_000)], brokers) == {key(n): NoOutcome() for n in range(3_000)}
    assert brokers.calls == [("find", 1_000)]


def test_large_requests_are_sent_in_parts() -> None:
    brokers = Coordinators()
    carry_out([item(n) for n in range(5_000)], brokers)
    assert max(size for _, size in brokers.calls) == 1_000
