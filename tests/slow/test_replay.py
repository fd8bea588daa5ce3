"""The replay of what a real coordinator did: every group of random logs is identical. The coordinator is
killed in a batch, and one with other rules than those that planned the batch does not start.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Union

import msgspec
import pytest
from msgspec.structs import replace

from bench.memory import WORKERS, parts_of
from checkpoints.checkpoint import Checkpoint
from cli import main
from cli.demo.story import wait_until_gone
from cli.processes.child import Child, ChildFailed, Children
from clients.answers import AnswerReader
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, AnyRequest, encode
from kafka_why.contract.kafka.requests import ANSWERS, JoinGroup, Unanswered
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorResponse
from kafka_why.contract.pack import pack, pack_key, slot_of, unpack
from kafka_why.contract.rocketmq.requests import ConnectionClosed
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import layout_on
from operations.replay.judge import judge
from operations.replay.live import recorded
from operations.replay.read_topics import Part
from operations.replay.recording import Answer, Bytes, Event, Line
from operations.replay.recording_file import RecordingFile
from operations.replay.verdict import How, Verdict
from tests.e2e.harness import START_TIMEOUT_S, wait_until, waits_for_a_request
from tests.harness import form, random_log, rocketmq_log
from tests.harness.commands import invoke
from tests.harness.recordings import Lines

FASTER = 20
PAUSE_MAX_S = 0.5
REPLY_PARTITION = 0
# Sessions are short, too. A RocketMQ client or lock expires within some of the longest pauses.
SETTINGS = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "150",
    "rocketmq.channel.expired.timeout.ms": "700",
    "rocketmq.lock.max.live.ms": "500",
    "rocketmq.scan.interval.ms": "200",
}

_response: msgspec.json.Decoder[AnyResponse] = msgspec.json.Decoder(Union[(*ANSWERS, ErrorResponse)])


@dataclass
class _Player:
    """One seed's log: when its next request is due, and its clients by group."""

    seed: int
    moves: Iterator[tuple[float, AnyRequest | random_log.Move]]
    clients: dict[str, list[random_log.Client]] = field(default_factory=dict)
    due_s: float = 0.0


class LiveLogs:
    """Plays the logs of many seeds at once, half of them of RocketMQ's groups, until all have ended."""

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, seeds: Sequence[int], length: int
    ) -> None:
        self.requests = 0
        self._layout = layout
        self._random = Random(len(seeds))
        self._producer = kafka_clients.producer(client_config)
        self._answers = AnswerReader(client_config, layout, REPLY_PARTITION, 0)
        self._players = {
            seed: _Player(seed, _kafka_moves(seed, length) if seed % 2 else _rocketmq_moves(seed, length))
            for seed in seeds
        }

    def play(self, for_s: float | None = None) -> bool:
        """Play for some time, or to the end. Returns whether all logs have ended."""
        end_s = float("inf") if for_s is None else time.monotonic() + for_s
        while self._players and time.monotonic() < end_s:
            self._learn()
            for player in list(self._players.values()):
                if player.due_s <= time.monotonic():
                    self._move(player)
        self._producer.flush()
        return not self._players

    def close(self) -> None:
        self._producer.close(timeout=5)
        self._answers.close()

    def _move(self, player: _Player) -> None:
        found = next(player.moves, None)
        if found is None:
            del self._players[player.seed]
            return
        pause_s, what = found
        player.due_s = time.monotonic() + pause_s
        if isinstance(what, random_log.Move):
            clients = player.clients.setdefault(what.group_id, [random_log.Client() for _ in range(5)])
            request = _quick(random_log.request_of(what, clients))
        else:
            request = what
        self._append(_named(request, player.seed))

    def _append(self, request: AnyRequest) -> None:
        key, value = request.group_id.encode(), encode(request)
        if self._random.random() < 0.5:
            key, value = pack_key(slot_of(request.group_id)), pack([value])
        partition = partition_of(request.group_id, self._layout.request_partitions)
        self._producer.send(self._layout.requests_topic, key=key, value=value, partition=partition)
        self.requests += 1

    def _learn(self) -> None:
        for record in self._answers.poll(0.01):
            for value in unpack(record):
                try:
                    response = _response.decode(value)
                except UNREADABLE:
                    continue  # an answer of RocketMQ's protocol
                seed, group_id, client = response.correlation_id.split("/")
                player = self._players.get(int(seed))
                if player is not None and group_id in player.clients:
                    player.clients[group_id][int(client)].learn(response)


def _kafka_moves(seed: int, length: int) -> Iterator[tuple[float, random_log.Move]]:
    for move in random_log.script(seed, length):
        yield min(move.pause_ms / FASTER / 1000, PAUSE_MAX_S), move


def _rocketmq_moves(seed: int, length: int) -> Iterator[tuple[float, AnyRequest]]:
    at_ms = None
    for row in rocketmq_log.realise(seed, length):
        pause_ms = 0 if at_ms is None else row.at_ms - at_ms
        at_ms = row.at_ms
        yield min(pause_ms / FASTER / 1000, PAUSE_MAX_S), row.request


def _quick(request: AnyRequest) -> AnyRequest:
    if not isinstance(request, JoinGroup):
        return request
    return replace(
        request,
        session_timeout_ms=request.session_timeout_ms // FASTER,
        rebalance_timeout_ms=request.rebalance_timeout_ms // FASTER,
    )


def _named(request: AnyRequest, seed: int) -> AnyRequest:
    """The request for a group of this seed. Its answer says whose it is."""
    group_id = f"seed-{seed}-{request.group_id}"
    if isinstance(request, Unanswered):
        return replace(request, group_id=group_id)
    if isinstance(request, ConnectionClosed):
        return replace(request, group_id=group_id)
    client = request.correlation_id if request.correlation_id.isdecimal() else "0"
    return replace(request, group_id=group_id, correlation_id=f"{seed}/{request.group_id}/{client}")


pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quick_java")]

PREFIX = "replay-test"
SEEDS = range(6)
LENGTH = 60
# Kafka's logs last some 2 to 6 s, RocketMQ's 15 to 25 s, so the kill comes in the middle of both.
PLAYED_BEFORE_KILL_S = 2.0
PLAYED_WITHOUT_BATCHES_S = 2.0
PLAYED_AFTER_OUTAGE_S = 1.0
# Another configuration begins in the middle of the log.
OTHER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "rocketmq.scan.interval.ms": "300"}


class Run:
    """A coordinator on its own folder, killed and started again while random logs are played."""

    def __init__(self, servers: str, children: Children, folder: Path) -> None:
        self._servers = servers
        self._children = children
        self._folder = folder
        self._starts = 0
        self._child: Child | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self._folder / "coordinator")

    @property
    def layout(self) -> TopicLayout:
        return layout_on(ClientConfig(self._servers), PREFIX)

    def start(self, settings: dict[str, str], logs: LiveLogs | None = None) -> None:
        """Start it. After a kill its groups' sessions begin with the first request, which is of `logs`."""
        self._starts += 1
        arguments = ["run", "--json", "--no-gateway", "--bootstrap-servers", self._servers]
        arguments += ["--prefix", PREFIX, "--data-dir", str(self._folder), "--request-partitions", "2"]
        arguments += form.arguments()
        for setting in settings.items():
            arguments += ["-c", "=".join(setting)]
        self._child = self._children.start(f"coordinator-{self._starts}", *arguments)
        if logs is not None:
            waits = partial(waits_for_a_request, self._folder / "coordinator")
            wait_until(waits, "its wait for a request", START_TIMEOUT_S)
            logs.play(PLAYED_AFTER_OUTAGE_S)
        self._child.wait_for_line(lambda line: "requests_topic" in line, START_TIMEOUT_S)

    def kill_in_a_batch(self, logs: LiveLogs) -> None:
        """Let the Python workers stand still, so that no batch ends. Kill everything when one is planned."""
        assert self._child is not None
        for pid in parts_of(self._child.pid)[WORKERS]:
            os.kill(pid, signal.SIGSTOP)
        logs.play(PLAYED_WITHOUT_BATCHES_S)
        last = self.checkpoint.last_batch
        wait_until(lambda: last("offsets") > last("commits"), "a planned batch")
        self._child.kill()
        wait_until_gone(self._folder / "coordinator")

    def check_other_rules_are_refused(self) -> None:
        """As if a version with other rules had planned the batch. Nothing is written into its folder."""
        written = self.checkpoint.record()
        epochs = [replace(epoch, code_version="0.0.1") for epoch in written.epochs]
        self.checkpoint.rewrite(other := replace(written, epochs=epochs))
        with pytest.raises(ChildFailed, match=r"was planned by version 0\.0\.1 and is not committed"):
            self.start(SETTINGS)
        assert (self.checkpoint.newest_owner(), self.checkpoint.record()) == (1, other)
        wait_until_gone(self._folder / "coordinator")
        self.checkpoint.rewrite(written)

    def stop(self) -> None:
        assert self._child is not None
        self._child.stop()


@pytest.fixture(scope="module")
def folder(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a coordinator that random logs were played to, and that was killed once."""
    folder = tmp_path_factory.mktemp("replayed")
    with Children(folder) as children:
        run = Run(broker.bootstrap_servers, children, folder)
        run.start(SETTINGS)
        logs = LiveLogs(broker.client_config, run.layout, SEEDS, LENGTH)
        logs.play(PLAYED_BEFORE_KILL_S)
        run.kill_in_a_batch(logs)
        run.check_other_rules_are_refused()
        run.start(SETTINGS | OTHER_SETTINGS, logs)
        assert logs.play()
        logs.close()
        assert logs.requests > len(SEEDS) * LENGTH * 0.9
        run.stop()
    return folder


@pytest.fixture(scope="module")
def recording(broker: EmbeddedBroker, folder: Path) -> Iterator[RecordingFile]:
    servers = broker.client_config
    layout = layout_on(servers, PREFIX)
    with recorded(servers, layout, Checkpoint.at(folder / "coordinator")) as made:
        yield made


@pytest.mark.timeout(900)
def test_random_logs_are_identical_to_their_replay(recording: RecordingFile) -> None:
    verdict = judge(recording)
    assert verdict.differences == []
    assert {group_id.split("-")[1] for group_id in verdict.groups} == {str(seed) for seed in SEEDS}
    assert verdict.total("answers") > 200 and verdict.total("history") > 60
    epochs, outages = recording.header.epochs, recording.header.outages
    assert len(epochs) == 2 and len(outages) == 1
    assert [e.after_ms for e in epochs[1:]] == [o.outage.after_ms for o in outages]


@pytest.mark.timeout(900)
def test_a_changed_record_and_a_missing_one_are_found(recording: RecordingFile) -> None:
    for kind in (Answer, Event):
        changed, dropped = _controls(recording, kind)
        assert [d.how for d in changed.differences] == [How.CHANGED]
        assert [d.how for d in dropped.differences] == [How.MISSING]


@pytest.mark.timeout(900)
def test_a_recording_of_one_group_is_judged_without_the_topics(
    broker: EmbeddedBroker, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "group.zst"
    group = ["--group", "seed-1-a"]
    where = ["--data-dir", str(folder), "--bootstrap-servers", broker.bootstrap_servers]
    done = invoke(main, ["record", *group, *where, str(file)])
    assert done.exit_code == 0, done.output
    assert file.stat().st_mode & 0o777 == 0o600
    done = invoke(main, ["replay", *group, "--from", str(file)])
    assert done.exit_code == 0 and done.stdout.startswith("identical: "), done.output


@pytest.mark.timeout(900)
def test_a_part_of_the_log_is_judged_by_itself(
    broker: EmbeddedBroker, folder: Path, recording: RecordingFile
) -> None:
    """Groups are judged from where they are created in this part; what follows it is not expected."""
    servers = broker.client_config
    times = [line.at_ms for line in recording.log()]
    first_ms, last_ms = min(times), max(times)
    third_ms = (last_ms - first_ms) // 3
    for part in (Part(until_ms=first_ms + third_ms), Part(since_ms=first_ms + third_ms)):
        with recorded(servers, recording.header.layout, Checkpoint.at(folder / "coordinator"), part) as made:
            verdict = judge(made)
        assert verdict.differences == []
        assert verdict.total("answers") > 0


def _controls(recording: RecordingFile, kind: type[Answer | Event]) -> tuple[Verdict, Verdict]:
    """The verdicts on a recording in which one record was changed, and on one in which it was dropped."""
    lines: list[Line] = [*recording.log(), *recording.outputs()]
    of_query = [
        line for line in lines if isinstance(line, kind) and not (isinstance(line, Answer) and line.is_early)
    ]
    chosen = of_query[150 if kind is Answer else 30]
    copies = [line for line in of_query if line.value == chosen.value]
    text = chosen.value.get().decode().replace('"version":1', '"version":2')
    altered = [_with(line, text) if line in copies else line for line in lines]
    return judge(Lines(recording.header, altered)), judge(
        Lines(recording.header, [line for line in lines if line not in copies])
    )


def _with(line: Line, text: str) -> Line:
    assert isinstance(line, Answer | Event)
    return replace(line, value=Bytes(text=text))
