"""Histories that the core writes for scenarios and random logs, with real assignments of partitions."""

import re
from pathlib import Path
from random import Random

from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import SyncGroup
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from state.config import CoordinatorConfig
from state.kafka.context import Effects
from state.kafka.protocols import view_of
from state.timeline import Row, Timeline
from tests.harness import random_log, scenario
from tests.harness.scenario_player import ScenarioPlayer

SCENARIOS = Path(__file__).parents[1] / "scenarios"
_PARTITION = re.compile(r"(\w+?)-?(\d+)")


class Recorder(ScenarioPlayer):
    """A player that records the history. `assign=@m1:orders-0+p0` assigns partition 0 of two topics."""

    def __init__(self, *, readable: bool = True) -> None:
        super().__init__()
        self.history: list[HistoryEntry] = []
        self._readable = readable

    def play(self, *commands: str) -> list[HistoryEntry]:
        """Run the commands, and return the whole history so far."""
        for command in commands:
            self.run(command)
        return self.history

    def view(self) -> GroupSnapshot:
        """Return the group as it is on the groups topic."""
        group = self.any_group()
        assert group is not None
        view = view_of(group)
        assert isinstance(view, GroupSnapshot)
        return view

    def run(self, command: str) -> list[str]:
        """Run one command without its expectations, which are about other assignments."""
        command = command.partition(" => ")[0]
        return [] if command.startswith("expect ") else super().run(command)

    def _handle_effects(self, effects: Effects) -> None:
        super()._handle_effects(effects)
        self.history += effects.history

    def _assignment(self, text: str) -> bytes:
        return _encode(text) if self._readable else text.encode()


def _encode(text: str) -> bytes:
    partitions = tuple(TopicPartition(topic, int(number)) for topic, number in _PARTITION.findall(text))
    # With empty user data, because without it the encoding has bytes that are not text.
    return encode_assignment(Assignment(partitions, b""), version=0)


def of_scenario(name: str) -> list[HistoryEntry]:
    """Return the history of group `g` in a scenario file."""
    recorder = Recorder()
    path = SCENARIOS / f"{name}.txt"
    recorder.play(*filter(None, (step.command for step in scenario.parse(path.read_text()))))
    return [event for event in recorder.history if event.group_id == "g"]


def of_random_log(seed: int, length: int, config: CoordinatorConfig) -> dict[str, list[HistoryEntry]]:
    """Return the histories of a random log's groups.

    Leaders assign partitions at random. Sometimes they send invalid bytes, or assign a partition twice.
    """
    random = Random(seed)
    rows = random_log.realise(random_log.script(seed, length), config)
    histories = {}
    for group_id in random_log.GROUPS:
        timeline = Timeline(group_id, None, config)
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(_with_random_assignment(row, random))
        timeline.fire_until(rows[-1].at_ms + random.choice((0, 100_000, 10_000_000)))
        entries = [event for effects in timeline.drain_effects() for event in effects.history]
        histories[group_id] = [event for event in entries if isinstance(event, HistoryEntry)]
    return histories


def _with_random_assignment(row: Row, random: Random) -> Row:
    if not isinstance(row.request, SyncGroup) or random.random() < 0.05:
        return row
    hands = _deal(len(row.request.assignments), random)
    assignments = [
        replace(sent, assignment=encode_assignment(Assignment(tuple(hand))))
        for sent, hand in zip(row.request.assignments, hands, strict=True)
    ]
    return replace(row, request=replace(row.request, assignments=assignments))


def _deal(members: int, random: Random) -> list[list[TopicPartition]]:
    hands: list[list[TopicPartition]] = [[] for _ in range(members)]
    if members:
        for number in range(random.choice((0, 1, 5, 6))):
            for hand in random.sample(hands, 2 if members > 1 and random.random() < 0.02 else 1):
                hand.append(TopicPartition(random.choice(("t", "u")), number))
    return hands
