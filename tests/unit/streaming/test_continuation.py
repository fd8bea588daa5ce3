"""The configurations and outages of the one batch that replaces all batches since an earlier one."""

import pytest

from checkpoints.checkpoint import SAME_RULES
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.contract.codec import encode
from kafka_why.errors import UserFacingError
from state.protocol import Outage
from streaming.service.stored_state.continuation import (
    answered_requests,
    check_versions,
    renumbered_epochs,
    renumbered_outages,
)

BATCH, LAST = 10, 14


def epoch(from_batch: int, code_version: str = SAME_RULES[-1], **settings: int) -> Epoch:
    return Epoch(from_batch, settings, [], code_version)


def test_continuation_by_code_with_other_rules_is_refused() -> None:
    """Only the rules of the replaced batches count."""
    check_versions([epoch(0, "0.0.1"), epoch(BATCH + 1)], BATCH, LAST)
    with pytest.raises(UserFacingError, match=r"version 0\.0\.1 ran batches after batch 10"):
        check_versions([epoch(0), epoch(12, "0.0.1")], BATCH, LAST)
    check_versions([epoch(0), epoch(12, "0.0.1")], LAST, LAST)


def test_configurations_are_renumbered_to_the_replacing_batch() -> None:
    """All of them, because each is in force at its own time."""
    epochs = [epoch(0), epoch(7), epoch(12, x=3), epoch(14, x=4), epoch(LAST + 1, x=5)]
    renumbered = renumbered_epochs(epochs, BATCH, LAST)
    assert [(e.from_batch, e.settings.get("x")) for e in renumbered] == [
        (0, None),
        (7, None),
        (BATCH + 1, 3),
        (BATCH + 1, 4),
        (BATCH + 2, 5),
    ]
    assert renumbered_epochs(epochs, LAST, LAST) == epochs


def test_outages_are_renumbered_to_the_replacing_batch() -> None:
    outages = [KnownOutage(at, Outage(at, at + 1)) for at in (3, 12, LAST, LAST + 1)]
    assert [(o.from_batch, o.outage.after_ms) for o in renumbered_outages(outages, BATCH, LAST)] == [
        (3, 3),
        (BATCH + 1, 12),
        (BATCH + 1, LAST),
    ]


def test_offsets_of_answered_requests_are_read_from_outputs() -> None:
    outputs = [
        encode({"request": "eu-requests-0-41", "error_code": 0}),
        encode({"request": "eu-requests-2-7#3"}),
        encode({"cause": "eu-requests-1-5", "group_id": "g"}),
        encode({"cause": "heartbeat deadline of m at 5"}),
        encode({"request": "us-requests-0-99"}),
        encode({"request": 5}),
        b"no JSON",
    ]
    assert list(answered_requests(outputs, "eu-requests")) == [(0, 41), (2, 7), (1, 5)]
