"""Kafka Connect's assignments: the bytes of Kafka's own classes are read, and nothing that is none is.

`--rewrite` asks Kafka's classes again for the bytes.
"""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.connect_protocol import CONFIG_MISMATCH, ConnectAssignment, Work, decode_assignment
from assignors.kafka.wire import ProtocolError, Writer
from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import java_options_of

RECORDED = Path(__file__).parents[2] / "data" / "connect_assignments.txt"
PEER = Path(__file__).parents[2] / "harness" / "kafkas_connect.java"
LEADER, URL = "connect-127.0.0.1:8083-1f0c", "http://127.0.0.1:8083/"
NOTHING = Work((), {})


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


ALL = [
    assignment(0, 0, 7, Work(("sink", "source"), {"source": (0, 1, 2)})),  # in the order of Java's map
    assignment(0, 0, -1, NOTHING),
    assignment(0, CONFIG_MISMATCH, 12, NOTHING),
    *incremental(1),
    *incremental(2),
]
"""What `kafkas_connect.java` writes, in its order."""


def recorded() -> list[bytes]:
    lines = RECORDED.read_text().split()
    assert lines
    return [bytes.fromhex(line) for line in lines]


def test_the_bytes_of_kafkas_classes_are_read(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rewrite"):
        command = [str(find_java()), *java_options_of(jar_paths("tools")), str(PEER)]
        RECORDED.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert [decode_assignment(data) for data in recorded()] == ALL


def test_no_part_of_an_assignment_is_one_and_none_has_bytes_left_over() -> None:
    for data in recorded():
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode_assignment(data[:size])
        with pytest.raises(ProtocolError, match="1 bytes are left over"):
            decode_assignment(data + b"\0")


def test_a_newer_version_may_have_more() -> None:
    newer = b"\0\3" + recorded()[-1][2:] + b"new field"
    assert decode_assignment(newer).assigned == ALL[-1].assigned
    with pytest.raises(ProtocolError, match="version -1 is not supported"):
        decode_assignment(b"\xff\xff" + recorded()[0][2:])


def test_null_is_nothing_from_version_1_on() -> None:
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


@given(st.binary(max_size=64), st.integers(0, 12), st.integers(0, 200))
def test_whatever_the_bytes_are_it_reads_them_or_refuses(noise: bytes, of: int, at: int) -> None:
    data = recorded()[of]
    for hostile in (noise, data[:at] + noise + data[at + len(noise) :]):
        try:
            decode_assignment(hostile)
        except ProtocolError as error:
            assert 0 <= error.offset <= len(hostile)
