"""Plays a case against one server over the wire and returns the answer to each step."""

import asyncio
from asyncio import Task
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gateway.wire import codec
from tests.conformance.connection import Connection
from tests.conformance.normalise import Answer, lowered, normalised
from tests.conformance.requests import NEWEST, body
from tests.conformance.script import Case, Mode, Step
from tests.conformance.told import OURS, Told

ANSWER_TIMEOUT_S = 30.0
# By the end of a barrier (below) a server has answered every request that it does not park. This time is for
# the answer's way back, and for a timer without delay.
GRACE_S = 0.3
REPEAT_INTERVAL_S = 0.25
_BARRIERS = 2

_MEMBER_ID_REQUIRED = 79
_BARRIER = Step.parse("barrier heartbeat id=nobody gen=0")

# A decoded answer, its bytes, and by how much the epochs in it are above Kafka's (see `Told`); None if the
# server closed the connection instead.
_Answered = tuple[Any, bytes, int] | None

# The values that `until` may name: an error, a group's state, the number of listed groups, a streams member's
# tasks and its first status.
_UNTIL_PATHS = (
    "active_tasks",
    "error_code",
    "groups.0.group_state",
    "groups.length",
    "member_epoch",
    "results.0.configs.0.value",
    "status.0.status_code",
    "topics.0.partitions.0.error_code",
)
# What `until` waits for in a fetch: that no offset is pending in a transaction.
_STABLE, _UNSTABLE = "stable", "UNSTABLE_OFFSET_COMMIT"
# What `until` waits for in a heartbeat: that the member epoch rises.
_RISEN = "risen"
_SHOWN_PARTITIONS = "groups.0.topics.*.partitions.length"
_BEGIN, _END = "begin", "end"
_LEARN: Mapping[str, Callable[[Told, str, Any], None]] = {
    "beat": Told.learn_beat,
    "share": Told.learn_share,
    "stream": Told.learn_stream,
    "sync": Told.learn_assignment,
}

UNANSWERED: Answer = {"answer": "none"}
CLOSED: Answer = {"answer": "the connection was closed"}


@dataclass
class _Client:
    connection: Connection | None = None
    in_flight: Task[_Answered] | None = None
    left_open: Task[_Answered] | None = None
    left_behind: list[Connection] = field(default_factory=list)
    is_pipelining: bool = False

    def all(self) -> list[Connection]:
        return [*self.left_behind, *([self.connection] if self.connection else [])]


class Player:
    """Plays one case at one server. `told.prefix` separates the case's groups from those of other cases.
    `login` returns the name and the password of a client, or None if clients do not authenticate.
    """

    def __init__(
        self, host: str, port: int, told: Told, login: Callable[[str], tuple[str, str]] | None = None
    ) -> None:
        self._address = (host, port)
        self._told = told
        self._login = login
        self._clients: dict[str, _Client] = {}
        self._tasks: list[Task[_Answered]] = []

    async def play(self, case: Case) -> Sequence[Answer]:
        """Return the answer to each step, in the order of the steps."""
        try:
            answers = [await self._step(step) for step in case.steps]
            waiting = [task for task in self._tasks if not task.done()]
            if waiting:
                await self._settle()
                await asyncio.wait(waiting, timeout=GRACE_S)
            return [self._outcome(*pair) for pair in zip(case.steps, answers, strict=True)]
        finally:
            await self._close()

    async def _step(self, step: Step) -> Task[_Answered] | Answer:
        client = self._clients.setdefault(step.client, _Client())
        if step.api == "gone":
            for connection in client.all():
                await connection.close()
            client.connection, client.left_behind = None, []
            return {}
        if not step.is_request:
            assert client.left_open is not None, f"{step.text}: nothing was left open"
            if step.api == "parked":
                await self._settle()
                return {"answer": "yes" if client.left_open.done() else "not yet"}
            await asyncio.wait([client.left_open], timeout=ANSWER_TIMEOUT_S)
            return {}
        if "until" in step.options:
            return await self._repeat(step, client)
        task = await self._send(step, client)
        if step.mode is Mode.ANSWER:
            await asyncio.wait([task], timeout=ANSWER_TIMEOUT_S)
        else:
            client.left_open = task
            if step.mode is not Mode.PIPELINED:
                await self._settle()
            if step.mode is Mode.SETTLED:
                await asyncio.wait([task], timeout=GRACE_S)
        return task

    async def _send(self, step: Step, client: _Client) -> Task[_Answered]:
        is_free = client.in_flight is None or client.in_flight.done() or client.is_pipelining
        if client.connection is None or not is_free:
            if client.connection is not None:
                client.left_behind.append(client.connection)
            client.connection = Connection(*await asyncio.open_connection(*self._address))
            if self._login is not None:
                await client.connection.authenticate(*self._login(step.client))
        client.is_pipelining = step.mode is Mode.PIPELINED
        client.in_flight = asyncio.create_task(self._ask(step, client.connection))
        self._tasks.append(client.in_flight)
        return client.in_flight

    async def _ask(self, step: Step, connection: Connection) -> _Answered:
        key, newest = NEWEST[step.api]
        version = newest if step.version is None else step.version
        fields = body(step, version, self._told)
        raw = await connection.ask(key, version, f"client-{step.client}", fields)
        if raw is None:
            return None
        message = codec.decode_response(key, version, raw)
        if step.api == "join" and message.error_code in (0, _MEMBER_ID_REQUIRED):
            self._told.learn(step.client, message)
        elif step.api in _LEARN:
            _LEARN[step.api](self._told, step.client, message)
        elif step.api == "reset" and self._told.side == OURS:
            self._told.learn_reset(fields["group_id"], message)
        elif step.api == "delete":
            self._told.learn_deletion(message)
        elif step.api == "make":
            self._told.learn_topics(message)
        elif step.api in (_BEGIN, _END):
            self._told.learn_producer(step.client, message)
        group_id = self._told.group(step.options.get("group", "g"))
        return message, raw, self._told.raised[group_id]

    async def _repeat(self, step: Step, client: _Client) -> Task[_Answered]:
        """Repeat the request until the answer has the wanted value or ANSWER_TIMEOUT_S is over."""
        wanted = step.options["until"]
        epoch = self._told.generations.get(step.client, 0)
        give_up_s = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        while True:
            task = await self._send(step, client)
            await task
            is_seen = is_found(wanted, self._outcome(step, task))
            if wanted == _RISEN:
                is_seen = self._told.generations.get(step.client, 0) > epoch
            if is_seen or asyncio.get_running_loop().time() > give_up_s:
                return task
            await asyncio.sleep(REPEAT_INTERVAL_S)

    async def _settle(self) -> None:
        """Wait until the group has processed all earlier requests: an unknown member sends two heartbeats.

        The first heartbeat may overtake a request that another connection sent in the same moment.
        """
        client = self._clients.setdefault(_BARRIER.client, _Client())
        for _ in range(_BARRIERS):
            await (await self._send(_BARRIER, client))

    def _outcome(self, step: Step, answered: Task[_Answered] | Answer) -> Answer:
        """Return a step's answer. Call this only after the last step, when all member ids are known."""
        if isinstance(answered, dict):
            return answered
        if not answered.done():
            return UNANSWERED
        answer = answered.result()
        if answer is None:
            return CLOSED
        message, raw, raised = answer
        values = normalised(message, self._told, is_relative=step.is_relative)
        if raised:
            values = lowered(values, raised)
        return {**values, "all bytes are known": str(_is_whole(message, raw))}

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            for connection in client.all():
                await connection.close()


def is_found(wanted: str, answer: Answer) -> bool:
    """Return True if the answer has the value that `until` names."""
    if wanted == _STABLE:
        return _UNSTABLE not in answer.values()
    values = [answer.get(path) for path in _UNTIL_PATHS]
    counts = [f"{answer.get('assignment.topic_partitions.length')} topics", f"{_offsets(answer)} partitions"]
    return wanted in [*values, *counts] or repr(wanted) in values


def _offsets(answer: Answer) -> int:
    """Return the number of partitions that DescribeShareGroupOffsets shows."""
    return sum(int(count) for path, count in answer.items() if fnmatchcase(path, _SHOWN_PARTITIONS))


def _is_whole(message: Any, raw: bytes) -> bool:
    """Return True if the decoded answer encodes to the same bytes: comparing fields compares bytes."""
    return bytes(message.encode(header=True)) == raw
