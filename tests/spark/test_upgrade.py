"""This version goes on with the folder of an earlier one whose last batch is planned and not committed.

`tests/data/checkpoints/VERSION.tar.xz` was recorded by that version's own code
(`tests.histories.checkpoint`).
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.damage import describe_damage
from checkpoints.upgrades import SAME_RULES, check_planned, code_version
from tests.histories import checkpoint as recorded
from tests.spark.harness import Bench
from tests.spark.log import LAYOUT

FIXTURES = sorted((Path(__file__).parents[1] / "data" / "checkpoints").glob("*.tar.xz"))


def unpack(fixture: Path, folder: Path) -> list[tuple[object, ...]]:
    """Unpack the folder to where it is used, and return the outcome that the earlier version had."""
    with tarfile.open(fixture) as tar:
        tar.extractall(folder.parent, filter="data")
    (folder.parent / "coordinator").rename(folder)
    for entries in (folder / "spark" / "sources" / "0").glob("[0-9]*"):
        version, entry = entries.read_text().splitlines()
        file = msgspec.json.decode(entry)
        file["path"] = (folder / "input" / Path(file["path"]).name).as_uri()
        entries.write_text(f"{version}\n{json.dumps(file)}")
        entries.with_name(f".{entries.name}.crc").unlink()
    outcome = msgspec.json.decode((folder.parent / "outcome.json").read_bytes())
    return [tuple(record) for record in outcome]


def test_the_last_release_has_its_folder() -> None:
    assert [path.name.removesuffix(".tar.xz") for path in FIXTURES][-1] in SAME_RULES


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_a_batch_that_an_earlier_version_planned_has_the_same_outcome(
    make_bench: Callable[..., Bench], tmp_path: Path, fixture: Path
) -> None:
    """Its configuration, its outage and its watermark hold. The batches after it follow as they did."""
    bench = make_bench(_files=2)
    folder = bench.folder
    outcome = unpack(fixture, folder)
    checkpoint = Checkpoint.at(folder)
    assert (checkpoint.last_batch("offsets"), checkpoint.last_batch("commits")) == (recorded.PLANNED, 0)
    check_planned(checkpoint, code_version())
    assert checkpoint.pin(recorded.IDENTITY) == recorded.IDENTITY
    checkpoint.own(1)
    assert checkpoint.record().committed is not None
    epochs = checkpoint.epochs(recorded.SETTINGS, [], code_version(), after_ms=0)
    outages = checkpoint.outages(0, 0)
    assert outages == recorded.OUTAGES
    bench.operator = recorded.operator(epochs, outages)
    batches = recorded.files()
    bench.run()
    assert {written.batch for written in bench.written} == {recorded.PLANNED}
    bench.run(*batches[recorded.PLANNED + 1 :])
    bench.stop()
    assert recorded.said(bench.written) == outcome
    assert describe_damage(checkpoint.files) == []


def test_other_settings_hold_from_the_batch_after_the_planned_one(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    unpack(FIXTURES[-1], folder)
    checkpoint = Checkpoint.at(folder)
    checkpoint.own(1)
    settings = recorded.SETTINGS | {"group.min.session.timeout.ms": 20_000}
    first, second = checkpoint.epochs(settings, [], code_version(), after_ms=0)
    of_the_consumer_protocol = ("group.consumer.", "group.coordinator.", "coordinator.")
    pinned = {n: v for n, v in recorded.SETTINGS.items() if not n.startswith(of_the_consumer_protocol)}
    assert (first.from_batch, first.settings) == (0, pinned), "settings of a later version are not pinned"
    assert (second.from_batch, second.settings) == (recorded.PLANNED + 1, settings)
    assert LAYOUT.requests_topic == checkpoint.identity().requests_topic
