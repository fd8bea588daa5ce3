"""Which configurations and outages belong to the one batch that stands for all since a batch."""

import pytest
from msgspec.structs import replace

from checkpoints.metadata import Epoch, KnownOutage
from checkpoints.upgrades import SAME_RULES
from records.codec import encode
from state.inputs import Outage
from streaming.service.answered import answered
from streaming.service.continuing import (
    NotContinued,
    check_settings,
    renumbered_epochs,
    renumbered_outages,
)

BATCH, LAST = 10, 14


def epoch(from_batch: int, code_version: str = SAME_RULES[-1], **settings: int) -> Epoch:
    return Epoch(from_batch, settings, [], code_version)


def test_code_with_other_rules_is_refused() -> None:
    """Of the batches since; not of those before."""
    check_settings([epoch(0, "0.0.1"), epoch(BATCH + 1)], BATCH, LAST)
    with pytest.raises(NotContinued, match=r"version 0\.0\.1 ran batches after batch 10"):
        check_settings([epoch(0), epoch(12, "0.0.1")], BATCH, LAST)
    check_settings([epoch(0), epoch(12, "0.0.1")], LAST, LAST)


@pytest.mark.parametrize("at", [BATCH + 2, LAST])
def test_a_configuration_that_began_since_is_refused_with_the_batch_that_is_possible(at: int) -> None:
    with pytest.raises(NotContinued, match=rf"changed at batch {at}.* Batch {at - 1} is the earliest"):
        check_settings([epoch(0), epoch(at, x=1)], BATCH, LAST)
    check_settings([epoch(0), epoch(at, x=1)], at - 1, LAST)


def test_records_to_skip_are_a_configuration_too() -> None:
    with pytest.raises(NotContinued, match="changed at batch 12"):
        check_settings([epoch(0), replace(epoch(12), skip=["r-0-1"])], BATCH, LAST)


@pytest.mark.parametrize("at", [BATCH + 1, LAST + 1])
def test_a_configuration_of_the_batches_before_or_after_does_not_matter(at: int) -> None:
    check_settings([epoch(0, x=1), epoch(at)], BATCH, LAST)


def test_configurations_begin_with_the_batch_that_stands_for_theirs() -> None:
    epochs = [epoch(0, "1"), epoch(7, "2"), epoch(12, "3"), epoch(14, "4"), epoch(LAST + 1, "1", x=1)]
    renumbered = renumbered_epochs(epochs, BATCH, LAST)
    assert [(e.from_batch, e.code_version, e.settings) for e in renumbered] == [
        (0, "1", {}),
        (7, "2", {}),
        (BATCH + 1, "4", {}),
        (BATCH + 2, "1", {"x": 1}),
    ]
    assert [e.from_batch for e in renumbered_epochs(epochs, LAST, LAST)] == [0, 7, 12, 14, LAST + 1]


def test_outages_that_a_planned_batch_knew_are_known_by_the_one_that_stands_for_it() -> None:
    outages = [KnownOutage(at, Outage(at, at + 1)) for at in (3, 12, LAST, LAST + 1)]
    assert [(o.from_batch, o.outage.after_ms) for o in renumbered_outages(outages, BATCH, LAST)] == [
        (3, 3),
        (BATCH + 1, 12),
        (BATCH + 1, LAST),
    ]


def test_requests_that_outputs_name() -> None:
    outputs = [
        encode({"request": "eu-requests-0-41", "error_code": 0}),
        encode({"request": "eu-requests-2-7#3"}),
        encode({"cause": "eu-requests-1-5", "group_id": "g"}),
        encode({"cause": "heartbeat deadline of m at 5"}),
        encode({"request": "us-requests-0-99"}),
        encode({"request": 5}),
        b"no JSON",
    ]
    assert list(answered(outputs, "eu-requests")) == [(0, 41), (2, 7), (1, 5)]
