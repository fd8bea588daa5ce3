"""The rows of docs/benchmarks.md, in the order in which they are measured."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from bench.rows import (
    applications,
    browser,
    checkpoint,
    deadlines,
    endurance,
    gateways,
    growth,
    hostile,
    idle,
    joining,
    latency,
    mixed,
    overload,
    pages,
    partial,
    passthrough,
    restart,
    restarts,
    resting,
    rocketmq,
    settling,
    through_gateway,
)
from bench.rows.bench import Bench, RowResult

# Rows with the same initial rebalance delay are together, because they share systems, unless a row starts new
# ones.
ROWS: Mapping[str, Callable[[Bench], RowResult]] = MappingProxyType(
    {
        "latency": latency.measure,
        "mixed": mixed.measure,
        "gateway": through_gateway.measure,
        "gateways": gateways.measure,
        "pipelined": through_gateway.measure_pipelined,
        "partial": partial.measure,
        "applications": applications.measure,
        "overload": overload.measure,
        "passthrough": passthrough.measure,
        "rocketmq": rocketmq.measure,
        "hostile": hostile.measure,
        "pages": pages.measure,
        "browser": browser.measure,
        "idle": idle.measure,
        "deadlines": deadlines.measure,
        "joining": joining.measure,
        "settling": settling.measure,
        "restart": restart.measure,
        "growth": growth.measure,
        "resting": resting.measure,
        "restarts": restarts.measure,
        "endurance": endurance.measure,
        "checkpoint": checkpoint.measure,
    }
)
