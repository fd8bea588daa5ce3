"""A campaign: one log, cut and killed in many ways, says the same. `--seeds` says how many ways."""

from collections.abc import Callable

from tests.spark.harness import Bench
from tests.spark.test_cuttings import check_cutting, make


def test_log_cut_into_batches_with_kills_has_the_same_outcome(
    make_bench: Callable[..., Bench], campaign_seed: int
) -> None:
    check_cutting(make(make_bench), campaign_seed)
