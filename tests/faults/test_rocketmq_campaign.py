"""A sample of the campaign of RocketMQ's clients."""

import pytest

from tests.campaigns.stage import IDENTICAL
from tests.rocketmq.running import campaign

pytestmark = pytest.mark.e2e

SEED = 3
# Each breaks another part between a client and the record of its heartbeat. The others take longer
# (`make rocketmq-campaign`).
KINDS = ("consumers killed", "a gateway stopped")


@pytest.mark.timeout(600)
def test_rocketmq_groups_receive_every_message_whatever_breaks() -> None:
    result = campaign(SEED, len(KINDS), KINDS)
    assert result.is_well, f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert {struck.fault for struck in result.struck} == {*KINDS}
    assert all(result.numbers[name] for name in ("messages", "requests about groups", IDENTICAL))
