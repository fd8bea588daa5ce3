"""The stage of the stories: a broker with an observer, or our own coordinator."""

import json
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import msgspec
from click.testing import Result
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from cli.processes.child import Children
from embedded.broker import EmbeddedBroker
from embedded.jars import jar_paths
from kafka_why.cli import main
from kafka_why.why.report import Report
from tests.e2e.harness import read_topic
from tests.harness.commands import invoke
from tests.harness.kafkas_groups import JavaGroups, KafkasGroup
from tests.harness.shared import PREFIX, QUICK_JAVA, SETTINGS, Owner, Services
from tests.harness.waiting import wait_until
from tests.observed.cleaning import Cleaner
from tests.observed.lines import Source
from tests.observed.member import compiled_members
from tests.observed.polls import Polls

OBSERVER = "observed"
_TIMES = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
}
_TIMES_OF_4 = {
    **{f"group.{kind}.heartbeat.interval.ms": "500" for kind in ("share", "streams")},
    **{f"group.{kind}.min.heartbeat.interval.ms": "500" for kind in ("share", "streams")},
    **{f"group.{kind}.session.timeout.ms": "6000" for kind in ("share", "streams")},
    **{f"group.{kind}.min.session.timeout.ms": "6000" for kind in ("share", "streams")},
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.num.standby.replicas": "1",
}
BROKERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Kafka 4.4": {**_TIMES, **_TIMES_OF_4},
        # Its coordinator is the one that Kafka 4 has no more, and knows no other protocol.
        "Kafka 3.9": {"group.coordinator.rebalance.protocols": "classic"},
        "Kafka 3.9, new coordinator": {
            **_TIMES,
            "group.coordinator.rebalance.protocols": "classic,consumer",
            "group.consumer.migration.policy": "bidirectional",
        },
    }
)
OURS = "our coordinator"
STAGES = (*BROKERS, OURS)
_OF_BROKERS = (Source.OBSERVE, Source.TOPIC, Source.LOG, Source.BOTH, Source.POLLING)
_OF_CLEANED = (Source.COMPACTED, Source.COMPACTED_AND_LOG)
_START_TIMEOUT_S = 240.0
_BATCH_MS = 200


class Stage:
    """A broker, and what explains its groups. `servers` is where members connect, `name` one of STAGES. Our
    own coordinator may be that of `services`. `sources` are those of reports on its groups; `cleaned` are
    those once `clean_before` has been called.
    """

    def __init__(self, name: str, folder: Path, services: Services | None = None) -> None:
        self.name, self.folder, self._services = name, folder, services
        self.servers = ""
        self.sources: tuple[Source, ...] = (Source.OURS,)
        self.cleaned: tuple[Source, ...] = ()
        self._polls: dict[str, Polls] = {}
        self._stack = ExitStack()
        self._prefix = OBSERVER
        self._java_lock = threading.Lock()

    @property
    def protocols(self) -> set[str]:
        """The group types that the coordinator has."""
        if self.name == "Kafka 4.4":
            return {"classic", "consumer", "share", "streams"}
        return {"classic"} if self.name == "Kafka 3.9" else {"classic", "consumer"}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        compiled_members()
        with ExitStack() as stack:
            if self.name == OURS:
                self._start_coordinator(stack)
            else:
                self._start_broker(stack)
            self._java = stack.enter_context(JavaGroups(self.servers, self.folder))
            self.admin = AdminClient({"bootstrap.servers": self.servers})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_coordinator(self, stack: ExitStack) -> None:
        times = [part for setting in {**SETTINGS, **_TIMES}.items() for part in ("-c", "=".join(setting))]
        services = self._services
        if services is None:
            services = Owner(self.folder, arguments=times)
            stack.callback(services.close)
        self._prefix, self.servers = PREFIX, services.coordinator().gateway
        self._brokers = services.broker().handle().client_config

    def _start_broker(self, stack: ExitStack) -> None:
        broker = EmbeddedBroker(
            self.folder / "broker",
            overrides={**BROKERS[self.name], "log.cleaner.backoff.ms": "200"},
            classpath=jar_paths("broker_3_9") if "3.9" in self.name else None,
        )
        stack.enter_context(broker)
        self.servers, self._brokers = broker.bootstrap_servers, broker.client_config
        self.sources, self.cleaned = _OF_BROKERS, _OF_CLEANED
        self._log = broker.log_path
        self._begin_offsets_topic()
        self._cleaner = Cleaner(self._brokers, broker.data_dir / "log")
        children = stack.enter_context(Children(self.folder))
        os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
        child = children.start(
            "observe",
            "observe",
            "--bootstrap-servers",
            self.servers,
            "--data-dir",
            str(self.folder / "data"),
            "--prefix",
            OBSERVER,
            "--batch-interval-ms",
            str(_BATCH_MS),
        )
        del os.environ["JAVA_TOOL_OPTIONS"]
        child.wait_for_line(lambda line: line.startswith("ready:"), _START_TIMEOUT_S)

    def _begin_offsets_topic(self) -> None:
        """Create `__consumer_offsets` by a first group, because an observer without it is not ready."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "first"})

        def is_there() -> bool:
            try:
                consumer.committed([TopicPartition("first", 0)], timeout=10)
            except KafkaException:  # the coordinator is about to begin
                return False
            return True

        wait_until(is_there, "__consumer_offsets")
        consumer.close()

    def create_topic(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        wait_until(lambda: self._partitions(topic) == partitions, f"topic {topic}")

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give the topic so many partitions in all."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)

    def delete_group(self, group_id: str) -> None:
        self.admin.delete_consumer_groups([group_id])[group_id].result(60)

    def _partitions(self, topic: str) -> int:
        found = self.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            return len(found.result(10).partitions)
        except Exception:  # noqa: BLE001 - the topic is not there yet
            return 0

    def state(self, group_id: str) -> tuple[str, int]:
        """Return the state of a group of consumers and the number of its members, by the coordinator
        itself.
        """
        found = self.admin.describe_consumer_groups([group_id])[group_id].result(30)
        return found.state.name, len(found.members)

    def described(self, kind: str, group_id: str) -> KafkasGroup | None:
        """Return a group as Kafka's own client describes it, None if there is none
        (`JavaGroups.describe`).
        """
        with self._java_lock:
            return self._java.describe(kind, group_id)

    def begin_polls(self, group_id: str) -> None:
        """Poll a group, if that is one of the sources."""
        if Source.POLLING in self.sources:
            self._polls[group_id] = Polls(self._brokers, group_id)

    def catch_up(self, group_id: str) -> None:
        """Wait until the polls have everything up to now."""
        if group_id in self._polls:
            self._polls[group_id].catch_up()

    def end_polls(self, group_id: str) -> None:
        """Poll once more."""
        if group_id in self._polls:
            self._polls[group_id].close()

    def clean_before(self, at_ms: int) -> int:
        return self._cleaner.clean_before(at_ms)

    def report(self, group_id: str, source: Source) -> Report:
        """Return the output of `why -o json` from this source, once the group exists there."""
        if source is Source.POLLING:
            return self._polls[group_id].report()
        answers: list[Result] = []

        def is_known() -> bool:
            answers.append(self._why(group_id, source, "-o", "json"))
            return answers[-1].exit_code == 0

        wait_until(is_known, f"a report on {group_id}")
        return msgspec.json.decode(answers[-1].stdout, type=Report)

    def text(self, group_id: str) -> str:
        """Return the output of `why`."""
        return self._why(group_id, self.sources[0]).stdout

    def offsets(self, group_id: str) -> dict[str, list[int | None]]:
        """Return all values that were written of each offset, by TOPIC:NUMBER, None for a tombstone."""
        found: dict[str, list[int | None]] = defaultdict(list)
        for record in read_topic(self._brokers, f"{self._prefix}-offsets"):
            group, topic, number = json.loads(record.key)
            if group == group_id:
                value = None if record.value is None else json.loads(record.value)["offset"]
                found[f"{topic}:{number}"].append(value)
        return found

    def committed(self, group_id: str) -> dict[str, int]:
        """Return what is committed, by TOPIC:NUMBER, as the coordinator itself says."""
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)])
        found = asked[group_id].result(60).topic_partitions
        return {f"{it.topic}:{it.partition}": it.offset for it in found if it.offset >= 0}

    def _why(self, group_id: str, source: Source, *arguments: str) -> Result:
        command = ["why", group_id, *arguments]
        if source is not Source.LOG:
            command += ["--bootstrap-servers", self._brokers.bootstrap_servers]
            has_topics = source is self.sources[0]
            command += ["--prefix", self._prefix] if has_topics else ["--source", "offsets"]
        if source.reads_log:
            command += ["--broker-log", str(self._log)]
        return invoke(main, command)
