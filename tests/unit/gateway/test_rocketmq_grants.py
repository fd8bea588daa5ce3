"""The grants of queue locks, as a function of time."""

from gateway.rocketmq.grants import GRANT_VALID_S, LockHolder, QueueGrants
from kafka_why.contract.rocketmq.requests import MessageQueue

HOLDER = LockHolder("g", "c1")
QUEUES = tuple(MessageQueue("T", "b", number) for number in range(4))


def granted(grants: QueueGrants, now_s: float, holder: LockHolder = HOLDER) -> list[int]:
    return [queue.queue_id for queue in grants.granted(holder, QUEUES, now_s)]


def test_queue_lock_is_valid_from_its_request_time_and_is_renewed() -> None:
    grants = QueueGrants()
    first = grants.start_request(HOLDER, QUEUES[:2], 100.0)
    second = grants.start_request(HOLDER, QUEUES[1:3], 110.0)
    assert granted(grants, 110.0) == []
    grants.settle(second, QUEUES[1:3])
    grants.settle(first, QUEUES[:2])
    assert granted(grants, 124.9) == [0, 1, 2]
    assert granted(grants, 100.0 + GRANT_VALID_S) == [1, 2]
    assert (
        granted(grants, 124.9, LockHolder("g", "c2")) == granted(grants, 124.9, LockHolder("h", "c1")) == []
    )
    grants.settle(grants.start_request(HOLDER, QUEUES[3:], 136.0), QUEUES[3:])
    assert len(grants._requested_at_s) == 1, "expired grants are forgotten"


def test_refused_renewal_ends_a_queue_lock_but_a_missing_answer_does_not() -> None:
    grants = QueueGrants()
    grants.settle(grants.start_request(HOLDER, QUEUES, 0.0), QUEUES)
    grants.settle(grants.start_request(HOLDER, QUEUES, 10.0), None)
    assert granted(grants, 20.0) == [0, 1, 2, 3]
    grants.settle(grants.start_request(HOLDER, QUEUES[:3], 11.0), QUEUES[:1])
    assert granted(grants, 20.0) == [0, 3]


def test_earlier_lock_request_does_not_lock_a_queue_unlocked_since() -> None:
    grants = QueueGrants()
    grants.settle(grants.start_request(HOLDER, QUEUES, 0.0), QUEUES)
    renewal = grants.start_request(HOLDER, QUEUES, 1.0)
    grants.release(HOLDER, QUEUES[:1])
    again = grants.start_request(HOLDER, QUEUES[:1], 2.0)
    grants.settle(renewal, QUEUES)
    assert granted(grants, 3.0) == [1, 2, 3]
    grants.settle(again, QUEUES[:1])
    assert granted(grants, 3.0) == [0, 1, 2, 3]
