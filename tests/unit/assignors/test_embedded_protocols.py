"""The bytes of Kafka's own classes for what is in an assignment: Connect's work, and Streams' tasks.

`--rewrite` asks Kafka's classes again for the bytes. Nothing else is read.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.jars import jar_paths
from embedded.java import find_java
from kafka_why.contract.protocols.connect_protocol import (
    CONFIG_MISMATCH,
    ConnectAssignment,
    Work,
    decode_assignment,
)
from kafka_why.contract.protocols.streams_protocol import (
    AT_ONCE,
    NEVER,
    AssignmentInfo,
    AssignorError,
    TaskId,
    decode_assignment_info,
)
from kafka_why.contract.protocols.wire import ProtocolError, Writer
from tests.harness.java_tools import java_options_of

DATA = Path(__file__).parents[2] / "data"
HARNESS = Path(__file__).parents[2] / "harness"
LEADER, URL = "connect-127.0.0.1:8083-1f0c", "http://127.0.0.1:8083/"
NOTHING = Work((), {})
STANDBYS = (TaskId(0, 2), TaskId(1, 3))


def assignment(
    version: int, error: int, offset: int, assigned: Work, revoked: Work = NOTHING, delay_ms: int = 0
) -> ConnectAssignment:
    return ConnectAssignment(version, error, LEADER, URL, offset, assigned, revoked, delay_ms)


def incremental(version: int) -> list[ConnectAssignment]:
    return [
        assignment(version, 0, 7, Work(("source",), {"source": (0, 1)})),
        assignment(version, 0, 8, Work((), {"sink": (0,)}), Work(("sink",), {"source": (0, 1, 2, 3)})),
        assignment(version, 0, 9, NOTHING, delay_ms=300_000),
        assignment(version, CONFIG_MISMATCH, 9, NOTHING),
        assignment(version, 0, 2**63 - 1, Work(("größe-\u4e2d",), {}), delay_ms=1),
    ]


def of_version(version: int) -> list[AssignmentInfo]:
    """Return what `kafkas_streams.java` writes in a version, as far as the version has it."""
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


class Embedded(NamedTuple):
    """A protocol, the Java program that writes its bytes, and what they are, in the program's order."""

    name: Literal["connect", "streams"]
    decode: Callable[[bytes], object]
    expected: list[object]

    @property
    def path(self) -> Path:
        return DATA / f"{self.name}_assignments.txt"

    def recorded(self) -> list[bytes]:
        return [bytes.fromhex(line) for line in self.path.read_text().split()]


CONNECT = Embedded(
    "connect",
    decode_assignment,
    [
        assignment(0, 0, 7, Work(("sink", "source"), {"source": (0, 1, 2)})),  # in the order of Java's map
        assignment(0, 0, -1, NOTHING),
        assignment(0, CONFIG_MISMATCH, 12, NOTHING),
        *incremental(1),
        *incremental(2),
    ],
)
STREAMS = Embedded(
    "streams", decode_assignment_info, [info for version in range(1, 12) for info in of_version(version)]
)
each = pytest.mark.parametrize("of", [CONNECT, STREAMS], ids=lambda of: of.name)


@each
def test_the_bytes_of_kafkas_classes_are_read(of: Embedded, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rewrite"):
        peer = HARNESS / f"kafkas_{of.name}.java"
        command = [str(find_java()), *java_options_of(jar_paths(of.name)), str(peer)]
        of.path.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert [of.decode(data) for data in of.recorded()] == of.expected


@each
def test_truncated_or_overlong_assignment_is_refused(of: Embedded) -> None:
    assert of.recorded()
    for data in of.recorded():
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                of.decode(data[:size])
        with pytest.raises(ProtocolError, match="1 bytes are left over"):
            of.decode(data + b"\0")


@each
@given(noise=st.binary(max_size=64), n=st.integers(0, 12), at=st.integers(0, 300))
def test_any_bytes_are_decoded_or_raise_protocol_error(of: Embedded, noise: bytes, n: int, at: int) -> None:
    data = of.recorded()[-n]
    for hostile in (noise, data[:at] + noise + data[at + len(noise) :]):
        try:
            of.decode(hostile)
        except ProtocolError as error:
            assert 0 <= error.offset <= len(hostile)


def test_newer_connect_assignment_may_have_more_fields() -> None:
    newest, oldest = CONNECT.recorded()[-1], CONNECT.recorded()[0]
    assert decode_assignment(b"\0\3" + newest[2:] + b"new field").assigned == Work(("größe-\u4e2d",), {})
    with pytest.raises(ProtocolError, match="version -1 is not supported"):
        decode_assignment(b"\xff\xff" + oldest[2:])


def test_null_assignment_means_no_work_from_version_1_on() -> None:
    for version, is_allowed in ((0, False), (1, True)):
        writer = Writer()
        for number in (version, 0):
            writer.int16(number, "")
        for text in (LEADER, URL):
            writer.string(text, "")
        writer.data += (9).to_bytes(8, "big")
        for length in (-1, -1, 0) if version else (-1,):
            writer.int32(length, "")
        if is_allowed:
            assert decode_assignment(bytes(writer.data)) == assignment(version, 0, 9, NOTHING)
        else:
            with pytest.raises(ProtocolError, match="assignment is null"):
                decode_assignment(bytes(writer.data))


@pytest.mark.parametrize("version", [-1, 0, 12])
def test_an_unknown_version_of_streams_is_refused(version: int) -> None:
    data = version.to_bytes(4, "big", signed=True) + STREAMS.recorded()[-1][4:]
    with pytest.raises(ProtocolError, match=f"version {version} is not known"):
        decode_assignment_info(data)


def test_task_id_is_formatted_as_by_kafka() -> None:
    assert (str(TaskId(0, 12)), str(TaskId(1, 0, "orders"))) == ("0_12", "orders__1_0")
