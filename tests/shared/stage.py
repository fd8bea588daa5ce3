"""What the faults happen to: secured brokers, the coordinator, a gateway, share consumers, producers."""

import time
from base64 import urlsafe_b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from types import MappingProxyType
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from embedded.jars import jar_paths
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from tests.campaigns.results import Result, StruckFault
from tests.campaigns.stage import PREFIX, Stage, one_broker
from tests.e2e.harness import create_topic, wait_until
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.java_tools import JavaTools, compiled, java_options
from tests.harness.recommended_acls import recommended
from tests.harness.secured_broker import ADMIN, GATEWAY, Allowed, ClusterSecurity, grant, write_properties
from tests.shared.judge import Era, Event, Place, State, Story, judge, judge_states, pending
from tests.shared.load import Load
from tests.shared.members import HERE, Members, States

COORDINATOR, BROKERS = "coordinator", "brokers"
GROUPS = {"shared-explicit": "explicit", "shared-implicit": "implicit"}
LASTING, RENEWED = "shared-lasting", "shared-renewed"
"""The first topic gets more partitions, the second is deleted and made again."""
PARTITIONS = {LASTING: 3, RENEWED: 2}
PROCESSES = 3
PAUSE_S = 0.25
PAUSE = "longest pause"
STUCK = "consumers stuck after a renewal"
OUTCOMES = ("accept", "reject", "release", "renew")
RECOVERY_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 180.0
SESSION_MS, LOCK_MS = 10_000, 10_000
_LOOK_S = 0.2
# Records of a member that is gone count as delivered.
_DELIVERIES = 10
_OF_LEADERS = {
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.delivery.count.limit": str(_DELIVERIES),
}
_EARLIEST = {"share.auto.offset.reset": "earliest"}
_OF_CLIENTS = [
    Allowed(GATEWAY, "TOPIC", "shared-", "PREFIXED", ("DESCRIBE", "READ")),
    Allowed(
        GATEWAY,
        "GROUP",
        "shared-",
        "PREFIXED",
        ("DESCRIBE", "READ", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
    ),
]


class ShareStage(Stage):
    """A stage whose load are share groups, coordinated by COORDINATOR or BROKERS. A partition gets a record
    each `pause_s`. A sample has one broker without security in the place of three secured ones.
    """

    delay_s = 2.0
    """Anywhere between a delivery and its acknowledgement."""
    settings = MappingProxyType(
        {
            "group.share.min.session.timeout.ms": str(SESSION_MS),
            "group.share.session.timeout.ms": str(SESSION_MS),
            "group.share.min.heartbeat.interval.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
        }
    )

    def __init__(
        self, folder: Path, seed: int, by: str, pause_s: float = PAUSE_S, *, is_sample: bool = False
    ) -> None:
        overrides = {**self.settings, **_OF_LEADERS}
        if is_sample:
            brokers = one_broker(folder, overrides)
        else:
            security = ClusterSecurity(folder / "security", authorizes=True)
            brokers = BrokerCluster(folder / "brokers", overrides=overrides, security=security)
        super().__init__(folder, seed, brokers=brokers)
        self.by = by
        self._pause_s = pause_s
        self.states: dict[tuple[str, Place], list[State]] = defaultdict(list)
        """What the share coordinators said, by group and partition."""
        self.eras: dict[str, list[Era]] = defaultdict(list)

    def start_load(self, stack: ExitStack) -> None:
        if self.brokers.security is not None:
            grant(self.brokers.config_of(ADMIN, "PLAIN"), [*recommended(PREFIX), *_OF_CLIENTS])
        self.admin_config = self.brokers.config_of(ADMIN)
        for topic, partitions in PARTITIONS.items():
            create_topic(self.admin_config, topic, partitions, {})
        self.start_coordinators(stack)
        address = self.gateway_address()
        self.gateway = self.start_gateway(stack, "gateway", address, "--share-groups", self.by)
        self.tools = JavaTools(str(address), self.folder)
        groups = [ConfigResource(ConfigResourceType.GROUP, group, configs=_EARLIEST) for group in GROUPS]
        with closing(kafka_clients.admin(ClientConfig(str(address)))) as admin:
            admin.alter_configs(groups)
        classes = compiled(HERE.glob("*.java"), java_options(jar_paths("tools"))[-2:])
        settings = self.folder / "admin.properties"
        write_properties(settings, {**self.admin_config.properties, "bootstrap.servers": self.servers})
        self._states = stack.enter_context(States(classes, self.folder, settings))
        self.producers = Load(self.admin_config, PARTITIONS, self._pause_s)
        stack.callback(self.producers.stop)
        self.producers.start()
        self.members = Members(
            self.folder / "members", classes, str(address), [*PARTITIONS], GROUPS, PROCESSES
        )
        stack.callback(self.members.stop)
        self.processes += self.members.processes
        self.members.start()
        self.wait_for_progress()

    @property
    def load_so_far(self) -> str:
        return f"after {len(self.producers.written)} records"

    def before_fault(self, struck: StruckFault, random: Random) -> None:
        self.note_states()

    def after_fault(self, struck: StruckFault) -> None:
        struck.measured[PAUSE] = self.longest_pause_s(struck.at)
        self.note_states()

    def judge(self, result: Result) -> None:
        """End the load, wait until all is done, and judge."""
        self.producers.stop()
        self.drain()
        self.note_states()
        story = self.story
        result.take(judge(story))
        for (group, place), states in self.states.items():
            result.take(judge_states(group, place, states, self.eras[group]))
        kinds = Counter(event.kind for event in story.events)
        outcomes = (event.words for event in story.events if event.kind == "outcome")
        result.numbers = {
            "records": len(story.written),
            "deliveries": kinds["delivered"],
            **Counter(word for word, error in outcomes if error == "-"),
            "states": sum(map(len, self.states.values())),
            STUCK: kinds["stuck"],
        }

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """Yield an administrator at the brokers."""
        with closing(kafka_clients.admin(self.admin_config, request_timeout_ms=20_000)) as admin:
            yield admin

    @property
    def story(self) -> Story:
        """The story so far."""
        self.members.read()
        events = sorted(self.members.events, key=lambda event: event.at_ns)
        return Story(dict(self.producers.written), events, self.eras, self.producers.lives, tuple(GROUPS))

    def wait_for_progress(self) -> float:
        """Wait until each group has ended a record of each topic that was written after this call. Return the
        seconds of the last group.
        """
        since_ns = time.monotonic_ns()
        topics = set(self.producers.partitions)
        seen: dict[str, set[str]] = {group: set() for group in GROUPS}
        done: list[Event] = []
        recovered: dict[str, float] = {}

        def have_ended() -> bool:
            # A member may be done with a record before its producer hears that it is written.
            done.extend(event for event in self.members.read() if event.is_done)
            for event in done:
                written = self.producers.written.get(event.number)
                if written and written.at_ns > since_ns:
                    seen[event.group].add(written.place.topic)
                    if seen[event.group] == topics:
                        recovered.setdefault(event.group, (event.at_ns - since_ns) / 1e9)
            return len(recovered) == len(GROUPS)

        wait_until(have_ended, "an end of a new record of each topic and group", RECOVERY_TIMEOUT_S)
        return max(recovered.values())

    def longest_pause_s(self, since_ns: int) -> float:
        """Return the longest time in which a group ended no record, of the time since then."""
        pauses = []
        for group in GROUPS:
            ended = [it.at_ns for it in self.members.events if it.group == group and it.is_done]
            times = sorted([since_ns, *(at_ns for at_ns in ended if at_ns > since_ns)])
            pauses += [after - before for before, after in pairwise(times)]
        return max(pauses) / 1e9

    def drain(self) -> None:
        """Wait until each group has ended all records, or ends no more of them."""
        give_up_s = time.monotonic() + RECOVERY_TIMEOUT_S
        left = pending(self.story)
        while any(left.values()) and time.monotonic() < give_up_s:
            time.sleep(1.0)
            before, left = left, pending(self.story)
            if left != before:
                give_up_s = time.monotonic() + RECOVERY_TIMEOUT_S

    def note_states(self) -> None:
        """Ask the share coordinators for the state of each partition."""
        ids = self._topic_ids()
        for group in GROUPS:
            for topic, partitions in self.producers.partitions.items():
                for partition in range(partitions):
                    place = Place(topic, self.producers.lives[topic], partition)
                    name = f"the state of {group} {place}"
                    wait_until(lambda: self._note_state(group, ids[topic], place), name)  # noqa: B023

    def _note_state(self, group: str, topic_id: str, place: Place) -> bool:
        """Add the state of a partition, if the share coordinator can say it now."""
        found = self._states.read(group, topic_id, place.partition)
        if found is not None:
            self.states[group, place].append(State(time.monotonic_ns(), *found))
        return found is not None

    def _topic_ids(self) -> dict[str, str]:
        """Return Kafka's text of each topic's id."""
        with self.admin() as admin:
            found = {it["name"]: it["topic_id"] for it in admin.describe_topics([*self.producers.partitions])}
        return {
            name: urlsafe_b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")
            for name, topic_id in found.items()
        }

    def while_empty(
        self, group: str, change: Callable[[], dict[Place, int] | None], *, is_told: bool = True
    ) -> None:
        """Call `change` while the group has no member, until it says at which offsets the group goes on. The
        judge learns of it unless `is_told` is False.
        """
        away = self.members.away(group)
        away.touch()
        try:
            wait_until(lambda: self.members.has_left(group), f"no members of {group}", CALL_TIMEOUT_S)
            give_up_s = time.monotonic() + CALL_TIMEOUT_S
            while (starts := change()) is None:
                assert time.monotonic() < give_up_s, f"{group} cannot be changed"
                time.sleep(_LOOK_S)
            if is_told:
                self.eras[group].append(Era(time.monotonic_ns(), starts))
            self.note_states()
        finally:
            away.unlink()
        wait_until(lambda: self.members.has_joined(group), f"members of {group}", CALL_TIMEOUT_S)

    def make_again(self, topic: str) -> None:
        """Delete a topic, and make another one of its name."""

        def make() -> None:
            with self.admin() as admin:
                admin.delete_topics([topic])
                wait_until(lambda: topic not in admin.list_topics(), f"{topic} is deleted")
            wait_until(lambda: self._is_made(topic), f"{topic} is made")

        self.producers.replace(topic, PARTITIONS[topic], make)

    def _is_made(self, topic: str) -> bool:
        try:
            create_topic(self.admin_config, topic, PARTITIONS[topic], {})
        except KafkaError:
            return False
        return True
