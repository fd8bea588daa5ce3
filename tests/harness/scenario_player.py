"""A world of clients and groups for scenarios: the pure core over a log kept here. Commands, one a line:

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
    at 3s                                   due deadlines fire (`=> nothing`: none); `sleep 3s` from now
    fail request                            the next request, or `deadline`, raises after its work
    outage 60s                              no coordinator runs for 60 s from now
    show                                    the state of a group with classic or consumer members
    topics foo=6 bar=2                      the cluster's topics from here on; `foo=none` deletes one
    A e2 owned[0,1] => e3 [0,1]             a heartbeat of the consumer protocol (`consumer_requests`) and
                                            its expected answer (`expectations`); any request may have one
    expect A e3 STABLE [0,1] and B e4       what is expected of members or, `expect group`, of the group
    join X topics=foo owned[0,1]            its metadata has owned partitions, too
    sync X assign=@X:foo-0+foo-1            a real assignment of these partitions
    topic-metadata watcher                  what the group does not know of the cluster's topics
    regex-resolved watcher                  what the members' patterns match in the cluster
    share A e2                              a heartbeat of a share group (`share_requests`)
    stream A e0                             a heartbeat of a streams group (`streams_requests`)
    init watcher                            the share coordinator's answer to open tasks; `deleted watcher`

`group=other` (default `g`) sends a request to another group, `appended=2s` gives it another append time
than now, and `principal=User:ann` names its principal.
"""

from typing import cast

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    AnyRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    SyncGroup,
)
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    ConsumerGroupHeartbeatResponse,
    JoinGroupResponse,
    ShareGroupHeartbeatResponse,
)
from kafka_why.contract.messages import ReleaseGroup
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import Effects, KafkaGroup
from state.kafka.group import ConfigsOnly, DeadlineReached
from state.kafka.protocols import KafkaEvent
from state.protocol import Outage, Received
from state.timeline import Row, Timeline
from tests.harness import (
    consumer_requests,
    expectations,
    invariants,
    offset_requests,
    options,
    partition_text,
    share_requests,
    story,
    streams_requests,
)
from tests.harness.cluster import Cluster
from tests.harness.common import Common, classic_group, kafka_effects, kafka_group
from tests.harness.scenario_clients import API_OF, DEFAULTS, REMEMBERED, Client, leaving, optional

REQUESTS = offset_requests.REQUESTS | consumer_requests.REQUESTS | streams_requests.REQUESTS

SENT = (
    "join",
    "sync",
    "heartbeat",
    "leave",
    "release",
    "member",
    "share-member",
    "stream-member",
    "regex-resolved",
)
NEW_IDS = (EntryType.MEMBER_ID_ASSIGNED, EntryType.MEMBER_ADDED, EntryType.MEMBER_REPLACED)


class InjectedFault(Exception):
    """Raised by a step that the scenario chose to fail."""


class ScenarioPlayer:
    """Clients, groups, and the log between them. `rules` are the rows of docs/rules.md reached so far."""

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self._config = CoordinatorConfig()
        self._now_ms = 0
        self._offset = 0
        self._outages: list[Outage] = []
        self._clients: dict[str, Client] = {}
        self._timelines: dict[str, Timeline] = {}
        self._client_of: dict[str, Client] = {}
        self._names = story.Names()
        self._cluster = Cluster()
        self._answers: dict[str, AnyResponse] = {}
        self._own_ids: set[str] = set()  # ids that clients made for themselves
        self._steps: dict[int, tuple[KafkaEvent, int, Effects]] = {}
        self._fail_next: type | None = None
        self._application = streams_requests.Application()

    def run(self, command: str) -> list[str]:
        """Run one command, and describe its outcome."""
        command, _, expected = command.partition(" => ")
        if command.startswith("expect "):
            return self._expect(command)
        if command.startswith("topology "):
            return self._application.set_topology(command)
        self._answers.clear()
        lines = self._run(streams_requests.expand(command))
        if expected == "nothing":
            assert not lines, f"expected nothing, found {lines}"
        elif expected:
            answer = self._answers.get(f"requests-0-{self._offset - 1}")
            expectations.check_answer(expected, answer, self._cluster.labels)
        return lines

    def _run(self, command: str) -> list[str]:
        (verb, *words), given = options.split(command)
        match verb:
            case "topics":
                self._cluster.change(given)
                self._names.topics.update(self._cluster.labels)
                return []
            case "config":
                return self._configure(given)
            case "at":
                return self._advance(options.milliseconds(words[0]))
            case "sleep":
                return self._advance(self._now_ms + options.milliseconds(words[0]))
            case "outage":
                until_ms = self._now_ms + options.milliseconds(words[0])
                self._outages.append(Outage(self._now_ms, until_ms))
                return self._configure({}) + self._advance(until_ms)  # with timelines that know the outage
            case "fail":
                self._fail_next = Received if words[0] == "request" else DeadlineReached
                return []
            case "show":
                return self._show(words[0] if words else DEFAULTS["group"])
            case _ if verb in share_requests.KINDS:
                return self._complete_tasks(verb, words[0], given)
            case _ if verb in SENT or verb in REQUESTS:
                return self._send(verb, words[0], given)
        raise ValueError(f"unknown command: {command}")

    def group(self, group_id: str = DEFAULTS["group"]) -> ClassicGroup | None:
        """Return the core's group of the classic protocol, None if there is none."""
        return classic_group(self.any_group(group_id))

    def any_group(self, group_id: str = DEFAULTS["group"]) -> KafkaGroup | None:
        """Return the core's group, None if there is none."""
        timeline = self._timelines.get(group_id)
        return kafka_group(timeline.group) if timeline is not None else None

    def _expect(self, command: str) -> list[str]:
        wanted, _, group_id = command.removeprefix("expect ").partition(" group=")
        group = self.any_group(group_id or DEFAULTS["group"])
        for name, _, expected in (one.partition(" ") for one in wanted.split(" and ")):
            if name == "group":
                expectations.check_group(expected, group)
            else:
                client = self._clients.get(name)
                member_id = client.member_id if client is not None and client.member_id else name
                expectations.check_member(expected, group, member_id, self._cluster.labels)
        return []

    def _configure(self, given: dict[str, str]) -> list[str]:
        changes = {name: options.setting(value) for name, value in given.items()}
        self._config = self._config.with_settings(changes)
        for group_id, timeline in self._timelines.items():
            self._timelines[group_id] = self._timeline(group_id, timeline.group)
        return []

    def _timeline(self, group_id: str, group: AnyGroup | None) -> Timeline:
        return Timeline(group_id, group, self._config, step=self._step, outages=self._outages)

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        before = invariants.content_of(group)
        (effects,) = kafka_effects([step(group, group_id, event, now_ms, config)])
        invariants.check_refusal(effects, before)
        if self._fail_next is not None and isinstance(event, self._fail_next):
            self._fail_next = None
            raise InjectedFault("told to")
        if effects.group is not None and not isinstance(effects.group, ConfigsOnly):
            invariants.check(effects.group)
        self._steps[id(effects)] = (cast(KafkaEvent, event), now_ms, effects)
        return effects

    def _advance(self, until_ms: int) -> list[str]:
        if until_ms < self._now_ms:
            raise ValueError(f"it is {options.time_text(self._now_ms)} already")
        self._now_ms = until_ms
        for timeline in self._timelines.values():
            timeline.fire_until(until_ms)
        return self._describe_new_steps()

    def _show(self, group_id: str) -> list[str]:
        group = self.any_group(group_id)
        return story.describe(group, self._names) if group else [f"there is no group {group_id}"]

    def _send(self, verb: str, name: str, given: dict[str, str]) -> list[str]:
        client = self._clients.setdefault(name, Client(name))
        if verb == "join":
            client.joined_with.update((k, v) for k, v in given.items() if k in REMEMBERED)
        if verb in ("member", "share-member", "stream-member"):
            request = self._member(verb, client, given)
            remembered = (*consumer_requests.JOINED_WITH, *streams_requests.JOINED_WITH)
            client.member_options.update((k, v) for k, v in given.items() if k in remembered)
        elif verb == "regex-resolved" or (verb == "topic-metadata" and "topics" not in given):
            watcher_request = self._watcher_request(verb, given)
            if watcher_request is None:
                return []
            request = watcher_request
        else:
            request = self._request(verb, client, {**client.joined_with, **given}, given)
        return self._apply(client, verb, request, given)

    def _apply(self, client: Client, verb: str, request: AnyRequest, given: dict[str, str]) -> list[str]:
        """Append the request to the log, and apply it."""
        request_id = f"requests-0-{self._offset}"
        self._offset += 1
        self._client_of[request_id] = client
        kind = "heartbeat" if verb.endswith("member") else verb
        self._names.name_request(request_id, f"{client.name}.{kind}")
        timeline = self._timelines.setdefault(request.group_id, self._timeline(request.group_id, None))
        at_ms = options.milliseconds(given["appended"]) if "appended" in given else self._now_ms
        timeline.apply(Row(at_ms, request_id, request))
        return self._describe_new_steps()

    def _watcher_request(self, verb: str, given: dict[str, str]) -> AnyRequest | None:
        """Return the request of the topic watcher, or None if it sends nothing."""
        group_id = given.get("group", DEFAULTS["group"])
        group = self.any_group(group_id)
        if verb == "topic-metadata":
            return consumer_requests.changed_topics(group, group_id, self._cluster)
        return consumer_requests.regexes_resolved(given, group, group_id, self._cluster, self._now_ms)

    def _complete_tasks(self, verb: str, name: str, given: dict[str, str]) -> list[str]:
        """Append the share coordinator's answers to open tasks."""
        group_id = given.get("group", DEFAULTS["group"])
        client, group = self._clients.setdefault(name, Client(name)), self.any_group(group_id)
        results = share_requests.outcomes(verb, given, group, group_id, self._cluster.labels)
        return [line for result in results for line in self._apply(client, verb, result, given)]

    def _member(self, verb: str, client: Client, given: dict[str, str]) -> AnyRequest:
        own_id = client.member_id or client.name
        member_id = self._note_own_id(self._names.resolve(given["id"]) if "id" in given else own_id)
        client.member_id = client.member_id or member_id
        common = self._common("member", client, client.joined_with | given, given)
        sent, remembered = given | {"id": member_id}, client.member_options
        if verb == "stream-member":
            return self._application.heartbeat(common, sent, remembered, self._cluster)
        if verb == "share-member":
            return share_requests.share_heartbeat(common, sent, remembered, self._cluster)
        return consumer_requests.member_heartbeat(common, sent, remembered, self._cluster, self._now_ms)

    def _note_own_id(self, member_id: str) -> str:
        """Record an id that a client sends, unless the coordinator generated it."""
        if member_id not in self._names.members:
            self._own_ids.add(member_id)
        return member_id

    def _common(self, verb: str, client: Client, known: dict[str, str], given: dict[str, str]) -> Common:
        return {
            "group_id": known["group"],
            "correlation_id": client.name,
            "reply_partition": 0,
            "api_version": int(known["api"] if verb == "join" else given.get("api", API_OF.get(verb, 0))),
            "client_id": client.name,
            "principal": given.get("principal"),
        }

    def _request(self, verb: str, client: Client, known: dict[str, str], given: dict[str, str]) -> AnyRequest:
        common = self._common(verb, client, known, given)
        instance_id = optional(known.get("instance"))
        if verb == "join":
            return self._join(common, instance_id, known, given)
        if verb == "leave":
            return LeaveGroup(**common, members=leaving(client, given, self._names.resolve))
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
            if verb == "fetch":  # only a fetch of version 9 or later that names its epoch is a member's
                identity = {} if "epoch" not in given else identity
            request_options = identity | {k: v for k, v in given.items() if k != "id"}
            request = REQUESTS[verb](common, request_options)
            return request if given.get("facts") == "none" else self._cluster.with_topics(request)
        if verb == "heartbeat":
            return Heartbeat(
                **common, member_id=member_id, generation_id=generation, group_instance_id=instance_id
            )
        return SyncGroup(
            **common,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance_id,
            protocol_type=optional(known["type"]),
            protocol_name=optional(given.get("protocol", client.protocol_name)),
            assignments=self._assignments(given.get("assign", "")),
        )

    def _join(
        self, common: Common, instance_id: str | None, known: dict[str, str], given: dict[str, str]
    ) -> JoinGroup:
        protocols = options.protocols(
            known["protocols"],
            known.get("topics"),
            given.get("metadata"),
            owned=partition_text.parse(given["owned"]) if "owned" in given else None,
            version=int(given.get("subscription", 1)),
        )
        return JoinGroup(
            **common,
            member_id=self._note_own_id(self._names.resolve(given.get("id", ""))),
            group_instance_id=instance_id,
            session_timeout_ms=options.milliseconds(known["session"]),
            rebalance_timeout_ms=options.milliseconds(known["rebalance"]),
            protocol_type=known["type"],
            protocols=protocols,
            reason=given.get("reason"),
            partitions_per_topic=options.counts(known.get("partitions", "")),
            topics=None if given.get("facts") == "none" else self._cluster.metadata_for_protocols(protocols),
        )

    def _assignments(self, text: str) -> list[MemberAssignment]:
        pairs = [part.partition(":") for part in text.split(",") if part]
        return [MemberAssignment(self._names.resolve(m), options.assignment(value)) for m, _, value in pairs]

    def _describe_new_steps(self) -> list[str]:
        """Describe the steps since the last call, and let clients handle their answers."""
        lines = []
        for timeline in self._timelines.values():
            for effects in kafka_effects(timeline.drain_effects()):
                event, at_ms, _ = self._steps.pop(id(effects))
                self._handle_effects(effects)
                self.rules.update(effects.rules)
                lines += story.describe_step(event, at_ms, effects, self._names)
        self._steps.clear()
        return lines

    def _handle_effects(self, effects: Effects) -> None:
        for entry in effects.history:
            asker = self._client_of.get(entry.cause)
            if entry.type in NEW_IDS and asker is not None and entry.member_id is not None:
                self._note_member_id(asker, entry.member_id)
        for reply in effects.replies:
            response = reply.response
            self._answers[response.request] = response
            client = self._client_of[response.request]
            self._application.handle_answer(client.name, response)
            if isinstance(response, JoinGroupResponse) and response.protocol_name is not None:
                client.member_id = response.member_id
                client.generation = response.generation_id
                client.protocol_name = response.protocol_name
            elif isinstance(response, JoinGroupResponse) and response.member_id:
                self._note_member_id(client, response.member_id)
            elif (
                isinstance(response, ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse)
                and response.member_id
            ):
                self._note_member_id(client, response.member_id)
                client.generation = response.member_epoch

    def _note_member_id(self, client: Client, member_id: str) -> None:
        """Record the id that the coordinator generated for the client. Some clients generate their own."""
        if member_id not in self._names.members and member_id not in self._own_ids:
            self._names.name_member(member_id, client.name)
            client.member_id = member_id
