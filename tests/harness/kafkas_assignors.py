"""Kafka's own assignors, of kafka-clients and of its group coordinator, run in a JVM."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from embedded.jars import class_path
from embedded.java import find_java
from kafka_why.contract.protocols.subscriptions import MemberId, MemberSubscription, TopicPartition
from kafka_why.sticky.api import Assignor

HARNESS = Path(__file__).with_name("kafkas_assignors.java")

Answer = dict[MemberId, list[TopicPartition]]


@dataclass
class Case:
    """A group as input of the Java harness. `owned` are the partitions that the members report as owned."""

    assignor: str
    racks: dict[str, list[frozenset[str]]]
    members: dict[MemberId, MemberSubscription]
    generation: dict[MemberId, int]
    owned: dict[MemberId, tuple[TopicPartition, ...]] = field(default_factory=dict)

    def text(self) -> str:
        lines = [self.assignor]
        for topic, partitions in self.racks.items():
            lines.append(f"topic {topic} {'|'.join(','.join(sorted(racks)) or '-' for racks in partitions)}")
        for member_id, member in self.members.items():
            subscription = member.subscription
            words = [
                member.group_instance_id,
                subscription.rack_id,
                str(self.generation[member_id]),
                ",".join(subscription.topics),
                ",".join(f"{p.topic}:{p.partition}" for p in self.owned[member_id]),
                (subscription.user_data or b"").hex(),
            ]
            lines.append(" ".join(["member", member_id, *(word or "-" for word in words)]))
        return "\n".join([*lines, "", ""])

    def ours(self) -> Answer:
        counts = {topic: len(partitions) for topic, partitions in self.racks.items()}
        assignor: Assignor = {"server-range": ASSIGNORS["range"], **ASSIGNORS, **BROKER_ASSIGNORS}[
            self.assignor
        ]
        racks = {} if self.assignor == "server-range" else self.racks
        return {m: sorted(mine) for m, mine in assignor.assign(counts, self.members, racks).items()}


class HarnessCase(Protocol):
    """The input of a Java harness."""

    def text(self) -> str: ...


def ask_kafka(cases: Iterable[HarnessCase], timeout_s: float = 250, *, harness: Path = HARNESS) -> list[str]:
    """Return Kafka's answer to each case as the Java harness prints it. Raises TimeoutExpired."""
    command = [str(find_java()), "-Dlog4j2.level=OFF", "-cp", class_path("broker"), str(harness)]
    text = "".join(case.text() for case in cases)
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout.splitlines()


def _read_partitions(text: str) -> tuple[TopicPartition, ...]:
    names = (name.split(":") for name in text.split(",") if name)
    return tuple(TopicPartition(topic, int(number)) for topic, number in names)


def read_answer(line: str) -> Answer:
    pairs = (word.split("=") for word in line.split()[1:])
    return {member_id: sorted(_read_partitions(partitions)) for member_id, partitions in pairs}
