"""The user data of Kafka Streams' assignments: the bytes of Kafka's own class are read, in all its versions.

`--rewrite` asks Kafka's class again for the bytes.
"""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.streams_protocol import (
    AT_ONCE,
    NEVER,
    AssignmentInfo,
    AssignorError,
    TaskId,
    decode_assignment_info,
)
from assignors.kafka.wire import ProtocolError
from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import java_options_of

RECORDED = Path(__file__).parents[2] / "data" / "streams_assignments.txt"
PEER = Path(__file__).parents[2] / "harness" / "kafkas_streams.java"
STANDBYS = (TaskId(0, 2), TaskId(1, 3))


def of_version(version: int) -> list[AssignmentInfo]:
    """What `kafkas_streams.java` writes in a version, in its order, as far as the version has it."""
    name = "" if version < 10 else "größe-\N{GRINNING FACE}"
    has_error, has_next = version >= 4, version >= 7
    return [
        AssignmentInfo(version, (), ()),
        AssignmentInfo(version, (TaskId(0, 1), TaskId(1, 0, name)), STANDBYS),
        AssignmentInfo(
            version, (TaskId(0, 0),), (), next_rebalance_ms=1_700_000_600_000 if has_next else NEVER
        ),
        AssignmentInfo(
            version,
            (),
            STANDBYS,
            AssignorError.SHUTDOWN_REQUESTED if has_error else AssignorError.NONE,
            AT_ONCE if has_next else NEVER,
        ),
    ]


def recorded() -> list[bytes]:
    lines = RECORDED.read_text().split()
    assert lines
    return [bytes.fromhex(line) for line in lines]


def test_the_bytes_of_kafkas_class_are_read_in_every_version(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rewrite"):
        command = [str(find_java()), *java_options_of(jar_paths("streams")), str(PEER)]
        RECORDED.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert [decode_assignment_info(data) for data in recorded()] == [
        info for version in range(1, 12) for info in of_version(version)
    ]


def test_no_part_of_it_is_read_and_no_bytes_are_left_over() -> None:
    for data in recorded():
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode_assignment_info(data[:size])
        with pytest.raises(ProtocolError, match="1 bytes are left over"):
            decode_assignment_info(data + b"\0")


@pytest.mark.parametrize("version", [-1, 0, 12])
def test_an_unknown_version_is_refused(version: int) -> None:
    data = version.to_bytes(4, "big", signed=True) + recorded()[-1][4:]
    with pytest.raises(ProtocolError, match=f"version {version} is not known"):
        decode_assignment_info(data)


def test_a_task_is_called_as_in_kafka() -> None:
    assert (str(TaskId(0, 12)), str(TaskId(1, 0, "orders"))) == ("0_12", "orders__1_0")


@given(st.binary(max_size=64), st.integers(0, 43), st.integers(0, 300))
def test_whatever_the_bytes_are_it_reads_them_or_refuses(noise: bytes, of: int, at: int) -> None:
    data = recorded()[of]
    for hostile in (noise, data[:at] + noise + data[at + len(noise) :]):
        try:
            decode_assignment_info(hostile)
        except ProtocolError as error:
            assert 0 <= error.offset <= len(hostile)
