"""Record the folder of a coordinator of this version whose last batch is planned and not committed.

    python -m tests.histories.checkpoint tests/data/checkpoints/VERSION.tar.xz

The folder is that of a bench, which reads files where the coordinator reads Kafka. `outcome.json` beside it
has what this version writes when it runs the planned batch again, and then the batches that follow.
"""

import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Committed, Epoch, Identity, KnownOutage, OwnerRecord
from checkpoints.upgrades import code_version
from records.sharding import DEFAULT_SHARDS
from state.config import CoordinatorConfig
from state.inputs import Outage
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.session import Session
from tests.spark.harness import Bench, Written
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, Record, heartbeat, join, leave, sync

GROUPS, LEAVING, SILENT = ("a", "d", "b", "c"), "b", "c"
SESSION_MS = 10_000
PLANNED = 1
IDENTITY = Identity(
    "cluster", LAYOUT.requests_topic, "id", LAYOUT.request_partitions, NAMESPACE, DEFAULT_SHARDS
)
SETTINGS = CoordinatorConfig(group_initial_rebalance_delay_ms=0).settings()
OUTAGES = [KnownOutage(PLANNED, Outage(T0 + 100, T0 + 900))]
"""Only the planned batch and later ones know it."""


def files() -> list[list[Record]]:
    """The log by batches: what is committed, what is planned, and what follows.

    In the planned batch new members join, one member leaves, and the others speak but for that of SILENT.
    """
    log = Log()
    first, members = log.clock(T0, T0), {}
    for group_id in GROUPS:
        records, members[group_id] = log.stable_member(T0 + 1, group_id, session_ms=SESSION_MS)
        first += records
    planned = log.clock(T0 + 3_000, T0 + 2_000)
    planned += [log.request(T0 + 3_000, heartbeat(g, m)) for g, m in members.items() if g != SILENT]
    planned += [log.request(T0 + 3_001, leave(LEAVING, members[LEAVING]))]
    planned += [log.request(T0 + 3_002, join(g, "late", session_ms=SESSION_MS)) for g in ("a", "new")]
    again = log.request(T0 + 5_000, join("a", member_id=members["a"], session_ms=SESSION_MS))
    then = [*log.clock(T0 + 5_000, T0 + 4_900), again]
    then += [log.request(T0 + 5_001, sync("a", members["a"], 2, {members["a"]: b"all of it"}))]
    ends = [
        log.clock(T0 + 12_000, T0 + 11_900),
        log.clock(T0 + 30_000, T0 + 29_000),
        log.clock(T0 + 30_001, T0),
    ]
    return [first, planned, then, *ends]


def operator(epochs: Sequence[Epoch], outages: Sequence[KnownOutage]) -> Operator:
    """The operator, as a coordinator makes it from its folder."""
    base = CoordinatorConfig(member_id_namespace=NAMESPACE)
    configs = [ConfigEpoch(e.from_batch, base.with_settings(e.settings), frozenset(e.skip)) for e in epochs]
    return Operator(LAYOUT, tuple(configs), tuple(outages), shards=DEFAULT_SHARDS)


def write_checkpoint(path: Path) -> None:
    """Write the folder and the outcome."""
    with tempfile.TemporaryDirectory() as name, Session(log_path=Path(name) / "spark.log") as session:
        folder, outcome = Path(name) / "coordinator", Path(name) / "outcome.json"
        epochs = [Epoch(0, SETTINGS, [], code_version())]
        bench = Bench(session.spark, folder, operator(epochs, OUTAGES), failures={PLANNED: [0.5]})
        batches = files()
        bench.run(batches[0])
        Checkpoint.at(folder).create(IDENTITY, OwnerRecord(epochs, OUTAGES, Committed(0, {})))
        with suppress(StreamingQueryException):
            bench.run(batches[PLANNED])
        bench.query = None
        with tarfile.open(path, "w:xz") as tar:
            tar.add(folder, "coordinator", filter=_clean)
            bench.run(*batches[PLANNED + 1 :])
            bench.stop()
            outcome.write_bytes(msgspec.json.encode(said(bench.written)))
            tar.add(outcome, "outcome.json", filter=_clean)


def said(written: Sequence[Written]) -> list[tuple[int, str, int | None, str | None, str | None]]:
    """What was written from the planned batch on: a record once, in the order of the first time."""
    return list(
        dict.fromkeys(
            (w.batch, w.topic, w.partition, _text(w.key), _text(w.value))
            for w in written
            if w.batch >= PLANNED
        )
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def _clean(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
