"""A group's log from a recording, and the recordings that cannot be used."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoints.codec import STATE_VERSION, encode_group
from checkpoints.export_file import ExportedGroup
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.rocketmq.requests import ConnectionClosed
from operations.replay.recording import (
    Line,
    RecordBytes,
    RecordingFile,
    RecordingHeader,
    RequestLine,
    StartLine,
)
from operations.whatif.run import GroupLog, WhatIfError, log_of, open_loop
from operations.whatif.text import answer
from operations.whatif.validation import MatchKind
from state.config import Configs, CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row
from tests.harness.recordings import Lines

RECORDING = RecordingFile(Path(__file__).parents[2] / "data" / "demo_recording.zst")


def recording(header: RecordingHeader, first: Iterable[Line] = ()) -> Lines:
    return Lines(header, [*first, *RECORDING.log(), *RECORDING.outputs()])


def test_simulation_reproduces_recorded_clients() -> None:
    """Real processes of kafka-python, a kill of a consumer, and two kills of the coordinator."""
    validation = answer(log_of(RECORDING, "demo"), []).validation
    assert [pair.match for pair in validation.pairs] == [MatchKind.MATCHED] * 6
    assert validation.worst_ms() == 0
    assert validation.objections == []


def test_whatif_refuses_a_log_without_its_beginning() -> None:
    """Without the first requests the clients cannot be found."""
    header = replace(RECORDING.header, begins={0: 10_000}, is_first=[])
    with pytest.raises(WhatIfError, match="the beginning of the log of group demo is gone"):
        log_of(recording(header), "demo")


def test_whatif_refuses_a_recording_that_begins_with_a_state() -> None:
    group = ClassicGroup("demo", "group-coordinator-requests-0-1")
    start = StartLine(ExportedGroup("demo", STATE_VERSION, encode_group(group, None).group))
    with pytest.raises(WhatIfError, match="begins while group demo already exists"):
        log_of(recording(replace(RECORDING.header, starts_from="an export"), [start]), "demo")


def test_whatif_refuses_a_rocketmq_group() -> None:
    closed = ConnectionClosed(group_id="g", connection="c1")
    log = GroupLog("g", [Row(1_000, "requests-0-0", closed)], Configs(CoordinatorConfig()), 2_000)
    with pytest.raises(WhatIfError, match="is a request of RocketMQ"):
        open_loop(log)


def test_whatif_refuses_a_consumer_protocol_group() -> None:
    """There is no model of its clients, so the command says so instead of simulating others."""
    beat = ConsumerGroupHeartbeat(
        correlation_id="c",
        reply_partition=0,
        client_id="c",
        client_host="/h",
        api_version=1,
        group_id="demo",
        member_epoch=0,
    )
    log = [
        replace(line, value=RecordBytes.of(encode(beat)))
        if isinstance(line, RequestLine) and b'"group_id":"demo"' in line.value.get()
        else line
        for line in RECORDING.log()
    ]
    refused = r"its first member of the consumer protocol at .*; what-if can simulate clients of the classic"
    with pytest.raises(WhatIfError, match=refused):
        log_of(Lines(RECORDING.header, [*log, *RECORDING.outputs()]), "demo")
