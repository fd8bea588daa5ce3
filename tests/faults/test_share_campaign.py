"""A sample of the campaign of share groups."""

import pytest

from tests.shared.judge import Violation
from tests.shared.kinds import PLANTED
from tests.shared.running import campaign
from tests.shared.stage import OUTCOMES

pytestmark = pytest.mark.e2e

SEED = 3
# A quarter of the records of `make share-campaign`.
PAUSE_S = 1.0
# Each breaks another part of the way from a producer to an acknowledgement. The others take longer
# (`make share-campaign`), or other tests play them: `test_campaign` kills the coordinator's processes, and
# `test_gateway_cluster` moves leaders and kills a broker below a share group.
KINDS = ("members killed", "partitions added", "topic deleted and made again", "gateway killed")


@pytest.mark.timeout(600)
def test_share_group_accepts_each_record_once_whatever_breaks() -> None:
    """After the other faults, offsets are reset without the judge's knowledge. It finds the consequences, and
    nothing else.
    """
    result = campaign(SEED, len(KINDS), KINDS, last=[PLANTED], pause_s=PAUSE_S, is_sample=True)
    where = f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert not result.failure, where
    assert set(result.wrongs) == {PLANTED.name}, where
    found = {wrong for wrong, number in result.wrongs[PLANTED.name].items() if number}
    assert found == {Violation.TWICE, Violation.RESET}, where
    assert {struck.fault for struck in result.struck} == {*KINDS, PLANTED.name}
    assert all(result.numbers.get(kind) for kind in OUTCOMES), where
    result.remove_folder()
