"""A world of clients and groups that scenario commands are played in: the pure core over a log kept here.

Commands, one a line:

    config group.max.size=2                 settings from here on, with Kafka's names
    join m1 session=10s rebalance=60s protocols=range:meta1,roundrobin type=consumer api=9 instance=i1
    join m1 id=@m1                          with m1's member id; other options are remembered
    sync m1 assign=@m1:a,@m2:b              a leader's; `sync m2` is a follower's
    heartbeat m1                            sync and heartbeat know the ids and generation of the last join,
    heartbeat m1 id=@m2 generation=7        unless options replace them (`instance=none`: no id)
    leave m1                                or a batch of member ids and instance ids:
    leave m1 members=@m1,@m2/i2,/i3
    release operator                        releases a quarantined group
    join m1 topics=t,u                      its metadata is a real subscription to these
    join m1 partitions=t:4,u:1              their partition counts, if the coordinator assigns
    commit m1 offsets=t-0=5,t-1=7:note      a member's; `commit admin ...`: a client that never joined
    commit m1 offsets=t-0=5 retention=1h    (`x*9` in a note is nine of it)
    fetch m1 partitions=t-0,t-1             or all: `fetch m1`
    fetch m1 stable=yes                     an error for partitions with a pending offset
    txn-commit m1 producer=1 epoch=0 position=40 offsets=t-0=5   in a transaction (`txn-version=1`)
    marker broker producer=1 epoch=1 position=40 outcome=commit  or `abort`; `from=40`
    delete-offsets admin partitions=t-0
    commit m1 offsets=t-0=5 topic-id=t2     for the topic of that id; `fetch` likewise
    topic-metadata watcher topics=t:t2,u:none   t has the id t2, u does not exist
    describe admin                          `delete admin` deletes the group
    at 3s                                   due deadlines fire; `sleep 3s` advances the time by 3 s
    fail request                            the next request, or `deadline`, raises after its work
    outage 60s                              no coordinator runs for 60 s from now
    show                                    the group's state

`group=other` (default `g`) sends a request to another group, `appended=2s` gives it another append time
than now, and `principal=User:ann` names its principal.
"""

from dataclasses import dataclass, field
from typing import cast

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Outage, Received
from state.kafka import invariants
from state.kafka.classic_group import ClassicGroup
from state.kafka.effects import Effects
from state.kafka.history import EntryType
from state.kafka.requests import (
    AnyRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    SyncGroup,
)
from state.kafka.responses import JoinGroupResponse
from state.kafka.step import Event
from state.kafka.timers import DeadlineReached
from state.messages import ReleaseGroup
from state.timeline import Row, Timeline
from tests.harness import options, story
from tests.harness.common import Common, kafka_effects, kafka_group
from tests.harness.offset_requests import REQUESTS

DEFAULTS = {
    "group": "g",
    "session": "10s",
    "rebalance": "60s",
    "protocols": "range",
    "type": "consumer",
    "api": "9",
}
API_OF = {"sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "txn-commit": 5}
REMEMBERED = (*DEFAULTS, "instance", "topics", "partitions")
NEW_IDS = (EntryType.MEMBER_ID_ASSIGNED, EntryType.MEMBER_ADDED, EntryType.MEMBER_REPLACED)


class InjectedFault(Exception):
    """Raised by a step that the scenario chose to fail."""


@dataclass
class Client:
    """A client's knowledge: the options of its last join, its member id, and its generation."""

    name: str
    joined_with: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    member_id: str = ""
    generation: int = -1
    protocol_name: str | None = None


class World:
    """Clients, groups, and the log between them. `rules` are the rows reached so far."""

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self._config = CoordinatorConfig()
        self._now_ms = 0
        self._offset = 0
        self._outages: list[Outage] = []
        self._clients: dict[str, Client] = {}
        self._timelines: dict[str, Timeline] = {}
        self._asked_by: dict[str, Client] = {}
        self._names = story.Names()
        self._taken: dict[int, tuple[Event, int, Effects]] = {}
        self._fail_next: type | None = None

    def run(self, command: str) -> list[str]:
        """Run one command, and describe its outcome."""
        (verb, *words), given = options.split(command)
        match verb:
            case "config":
                return self._configure(given)
            case "at":
                return self._advance(options.milliseconds(words[0]))
            case "sleep":
                return self._advance(self._now_ms + options.milliseconds(words[0]))
            case "outage":
                until_ms = self._now_ms + options.milliseconds(words[0])
                self._outages.append(Outage(self._now_ms, until_ms))
                return self._advance(until_ms)
            case "fail":
                self._fail_next = Received if words[0] == "request" else DeadlineReached
                return []
            case "show":
                return self._show(words[0] if words else DEFAULTS["group"])
            case "join" | "sync" | "heartbeat" | "leave" | "release":
                return self._send(verb, words[0], given)
            case _ if verb in REQUESTS:
                return self._send(verb, words[0], given)
        raise ValueError(f"unknown command: {command}")

    def group(self, group_id: str = DEFAULTS["group"]) -> ClassicGroup | None:
        """Return the core's group, None if there is none."""
        timeline = self._timelines.get(group_id)
        return kafka_group(timeline.group) if timeline is not None else None

    def _configure(self, given: dict[str, str]) -> list[str]:
        changes = {name: options.milliseconds(value) for name, value in given.items()}
        self._config = self._config.with_settings(changes)
        for group_id, timeline in self._timelines.items():
            self._timelines[group_id] = self._timeline(group_id, kafka_group(timeline.group))
        return []

    def _timeline(self, group_id: str, group: ClassicGroup | None) -> Timeline:
        return Timeline(group_id, group, self._config, step=self._step, outages=self._outages)

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        (effects,) = kafka_effects([step(group, group_id, event, now_ms, config)])
        if self._fail_next is not None and isinstance(event, self._fail_next):
            self._fail_next = None
            raise InjectedFault("told to")
        if effects.group is not None:
            invariants.check(effects.group)
        self._taken[id(effects)] = (cast(Event, event), now_ms, effects)
        return effects

    def _advance(self, until_ms: int) -> list[str]:
        if until_ms < self._now_ms:
            raise ValueError(f"it is {options.time_text(self._now_ms)} already")
        self._now_ms = until_ms
        for timeline in self._timelines.values():
            timeline.fire_until(until_ms)
        return self._tell()

    def _show(self, group_id: str) -> list[str]:
        group = self.group(group_id)
        return story.describe(group, self._names) if group else [f"there is no group {group_id}"]

    def _send(self, verb: str, name: str, given: dict[str, str]) -> list[str]:
        client = self._clients.setdefault(name, Client(name))
        if verb == "join":
            client.joined_with.update((k, v) for k, v in given.items() if k in REMEMBERED)
        request = self._request(verb, client, {**client.joined_with, **given}, given)
        request_id = f"requests-0-{self._offset}"
        self._offset += 1
        self._asked_by[request_id] = client
        self._names.name_request(request_id, f"{name}.{verb}")
        timeline = self._timelines.setdefault(request.group_id, self._timeline(request.group_id, None))
        at_ms = options.milliseconds(given["appended"]) if "appended" in given else self._now_ms
        timeline.apply(Row(at_ms, request_id, request))
        return self._tell()

    def _request(self, verb: str, client: Client, known: dict[str, str], given: dict[str, str]) -> AnyRequest:
        common: Common = {
            "group_id": known["group"],
            "correlation_id": client.name,
            "reply_partition": 0,
            "api_version": int(known["api"] if verb == "join" else given.get("api", API_OF.get(verb, 0))),
            "client_id": client.name,
            "principal": given.get("principal"),
        }
        instance_id = _optional(known.get("instance"))
        if verb == "join":
            return self._join(common, instance_id, known, given)
        if verb == "leave":
            return LeaveGroup(**common, members=self._leaving(client, given))
        if verb == "release":
            return ReleaseGroup(**common)
        member_id = self._names.resolve(given["id"]) if "id" in given else client.member_id
        generation = int(given.get("generation", client.generation))
        if verb in REQUESTS:
            identity = {
                "id": member_id,
                "generation": str(generation),
                "instance": known.get("instance", "none"),
            }
            return REQUESTS[verb](common, identity | {k: v for k, v in given.items() if k != "id"})
        if verb == "heartbeat":
            return Heartbeat(
                **common, member_id=member_id, generation_id=generation, group_instance_id=instance_id
            )
        return SyncGroup(
            **common,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance_id,
            protocol_type=_optional(known["type"]),
            protocol_name=_optional(given.get("protocol", client.protocol_name)),
            assignments=self._assignments(given.get("assign", "")),
        )

    def _join(
        self, common: Common, instance_id: str | None, known: dict[str, str], given: dict[str, str]
    ) -> JoinGroup:
        return JoinGroup(
            **common,
            member_id=self._names.resolve(given.get("id", "")),
            group_instance_id=instance_id,
            session_timeout_ms=options.milliseconds(known["session"]),
            rebalance_timeout_ms=options.milliseconds(known["rebalance"]),
            protocol_type=known["type"],
            protocols=options.protocols(known["protocols"], known.get("topics"), given.get("metadata")),
            reason=given.get("reason"),
            partitions_per_topic=options.counts(known.get("partitions", "")),
        )

    def _leaving(self, client: Client, given: dict[str, str]) -> list[LeavingMember]:
        reason = given.get("reason")
        if "members" not in given:
            return [LeavingMember(client.member_id, _optional(given.get("instance")), reason)]
        pairs = [part.partition("/") for part in given["members"].split(",") if part]
        return [LeavingMember(self._names.resolve(m), i if slash else None, reason) for m, slash, i in pairs]

    def _assignments(self, text: str) -> list[MemberAssignment]:
        pairs = [part.partition(":") for part in text.split(",") if part]
        return [MemberAssignment(self._names.resolve(member), what.encode()) for member, _, what in pairs]

    def _tell(self) -> list[str]:
        """Describe the steps since the last call, and let clients read their answers."""
        lines = []
        for timeline in self._timelines.values():
            for effects in kafka_effects(timeline.take_effects()):
                event, at_ms, _ = self._taken.pop(id(effects))
                self._learn(effects)
                self.rules.update(effects.rules)
                lines += story.tell(event, at_ms, effects, self._names)
        self._taken.clear()
        return lines

    def _learn(self, effects: Effects) -> None:
        for entry in effects.history:
            asker = self._asked_by.get(entry.cause)
            if entry.type in NEW_IDS and asker is not None and entry.member_id not in self._names.members:
                assert entry.member_id is not None
                self._names.name_member(entry.member_id, asker.name)
                asker.member_id = entry.member_id
        for reply in effects.replies:
            response = reply.response
            if isinstance(response, JoinGroupResponse) and response.protocol_name is not None:
                client = self._asked_by[response.request]
                client.member_id = response.member_id
                client.generation = response.generation_id
                client.protocol_name = response.protocol_name


def _optional(text: str | None) -> str | None:
    return None if text == "none" else text
