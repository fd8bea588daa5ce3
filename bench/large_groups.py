"""Compare large groups through the gateway with a broker's own coordinator: `python -m bench.large_groups`.

The members have the metadata of Java's consumers. The group forms, which has the initial delay in it. Then
all members join again, with the partitions that they own. Both coordinators get the same requests. This
project's assignors compute the leader's assignment, whose time is taken out, because it is the client's.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

from kafka.protocol.api_key import ApiKey

from assignors.kafka import ASSIGNORS
from bench.report import say
from cli.processes.child import Child
from gateway.wire import codec
from gateway.wire.framing import framed
from kafka_why.connections.address import Address
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    MemberSubscription,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_cooperative_user_data,
    encode_subscription,
)

RANGE, COOPERATIVE = "range", "cooperative-sticky"
TOPICS = 50
SESSION_MS, REBALANCE_MS = 45_000, 300_000
INITIAL_DELAY_MS = 3_000
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 240.0, 60.0
_JOIN_VERSION, _SYNC_VERSION, _HEARTBEAT_VERSION = 9, 5, 4
_REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 27, 79
_BEAT_S = 0.005


class Round(NamedTuple):
    """A round of one group: its seconds without the assignor's, all error codes, and the largest messages."""

    seconds: float
    codes: frozenset[int]
    join_bytes: int
    leader_bytes: int
    sync_bytes: int


@dataclass
class _Member:
    """A member and its connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    subscription: Subscription
    member_id: str = ""
    generation: int = -1
    sizes: dict[str, int] = field(default_factory=dict)

    async def ask(self, api_key: ApiKey, version: int, fields: codec.Fields) -> Any:
        """Send a request and return its answer. The sizes of both are kept by the name of the API."""
        frame = framed(codec.encode_request(api_key, version, 1, "large", fields))
        self.writer.write(frame)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            size = int.from_bytes(await self.reader.readexactly(4))
            answer = await self.reader.readexactly(size)
        self.sizes |= {f"{api_key.name} request": len(frame), f"{api_key.name} response": size}
        return codec.decode_response(api_key, version, answer)

    async def join(self, group_id: str, assignor: str) -> Any:
        """Join the group, and return the answer when the round has all members."""
        metadata = encode_subscription(self.subscription)
        fields = {
            "group_id": group_id,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": assignor, "metadata": metadata}],
        }
        return await self.ask(ApiKey.JoinGroup, _JOIN_VERSION, fields)

    async def heartbeat(self, group_id: str) -> int:
        """Return the error of a heartbeat."""
        fields = {"group_id": group_id, "generation_id": self.generation, "member_id": self.member_id}
        return int((await self.ask(ApiKey.Heartbeat, _HEARTBEAT_VERSION, fields)).error_code)

    async def sync(self, group_id: str, assignor: str, assignments: Mapping[str, bytes]) -> Any:
        """Ask for the member's partitions."""
        fields = {
            "group_id": group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": assignor,
            "assignments": [{"member_id": m, "assignment": a} for m, a in assignments.items()],
        }
        return await self.ask(ApiKey.SyncGroup, _SYNC_VERSION, fields)


class _Group:
    """The members of one group at one address."""

    def __init__(
        self, members: list[_Member], assignor: str, partitions_per_topic: Mapping[str, int]
    ) -> None:
        self._members = members
        self._assignor = assignor
        self._partitions = partitions_per_topic
        self._group_id = f"large-{uuid4()}"

    async def enroll(self) -> None:
        """Get a member id for each member. A first round waits for all of them."""
        answers = await _all(member.join(self._group_id, self._assignor) for member in self._members)
        for member, answer in zip(self._members, answers, strict=True):
            assert answer.error_code == _MEMBER_ID_REQUIRED, answer
            member.member_id = answer.member_id

    async def round(self) -> Round:
        """Let all members join and get their partitions. The leader, which is the first, begins a later
        round.
        """
        began_s = time.monotonic()
        first, *others = self._members
        joining = asyncio.create_task(first.join(self._group_id, self._assignor))
        if others and others[0].generation >= 0:
            while await others[0].heartbeat(self._group_id) != _REBALANCE_IN_PROGRESS:
                await asyncio.sleep(_BEAT_S)
        joined = await _all([joining, *(member.join(self._group_id, self._assignor) for member in others)])
        for member, answer in zip(self._members, joined, strict=True):
            member.generation = answer.generation_id
        self._members.sort(key=lambda member: member.member_id != joined[0].leader)
        leader = next((answer for answer in joined if answer.members), None)
        assign_s, assignments = 0.0, dict[str, bytes]()
        if leader is not None:
            assigning_s = time.monotonic()
            assignments = self._assign(leader)
            assign_s = time.monotonic() - assigning_s
        synced = await _all(
            member.sync(
                self._group_id,
                self._assignor,
                assignments if leader is not None and member.member_id == leader.member_id else {},
            )
            for member in self._members
        )
        seconds = time.monotonic() - began_s - assign_s
        for member, answer in zip(self._members, synced, strict=True):
            self._own(member, answer)
        return Round(
            seconds,
            frozenset(answer.error_code for answer in [*joined, *synced]),
            self._largest("JoinGroup request"),
            self._largest("JoinGroup response"),
            self._largest("SyncGroup request"),
        )

    def _assign(self, leader: Any) -> dict[str, bytes]:
        subscriptions = {
            member.member_id: MemberSubscription(decode_subscription(member.metadata))
            for member in leader.members
        }
        assigned = ASSIGNORS[self._assignor].assign(self._partitions, subscriptions)
        return {member: encode_assignment(Assignment(tuple(own))) for member, own in assigned.items()}

    def _own(self, member: _Member, answer: Any) -> None:
        """Report the partitions in the next round, as the assignor's clients do."""
        if answer.error_code or self._assignor != COOPERATIVE:
            return
        member.subscription = replace(
            member.subscription,
            owned_partitions=decode_assignment(answer.assignment).partitions,
            generation_id=member.generation,
            user_data=encode_cooperative_user_data(member.generation),
        )

    def _largest(self, message: str) -> int:
        return max(member.sizes.get(message, 0) for member in self._members)


async def _all(asked: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*asked))


async def play(
    address: Address, assignor: str, members: int, partitions: int, rounds: int
) -> tuple[Round, list[Round]]:
    """Form a group and let it join again. Returns the first round, and the others."""
    per_topic = {f"payments.transactions.eu-central-{n:03}": partitions // TOPICS for n in range(TOPICS)}
    subscription = Subscription(tuple(per_topic))
    async with AsyncExitStack() as stack:
        connected = []
        for _ in range(members):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=2**26)
            stack.enter_context(closing(writer))
            connected.append(_Member(reader, writer, subscription))
        group = _Group(connected, assignor, per_topic)
        await group.enroll()
        formed = await group.round()
        return formed, [await group.round() for _ in range(rounds)]


def row(name: str, formed: Round, again: list[Round]) -> str:
    """Return a line of the table."""
    last = again[-1]
    codes = " ".join(str(code) for code in sorted(frozenset().union(formed.codes, *(r.codes for r in again))))
    sizes = f"{last.join_bytes / 1e3:.1f} | {last.leader_bytes / 1e3:,.0f} | {last.sync_bytes / 1e3:,.0f}"
    times = f"{formed.seconds:.1f} | {median(r.seconds for r in again):.2f}"
    return f"| {name} | {codes} | {sizes} | {times} |"


def main() -> None:
    """Start `run`, play the groups in turn at both, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_groups", description=__doc__)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    delay = f"group.initial.rebalance.delay.ms={INITIAL_DELAY_MS}"
    print("| group | codes | JoinGroup kB | leader's response kB | SyncGroup kB | formed s | again s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        arguments = [
            "run",
            "--json",
            "--no-page",
            "--data-dir",
            str(folder / "data"),
            "--broker-config",
            delay,
        ]
        run = Child("run", [*arguments, "-c", delay], folder / "run.log")
        try:
            ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_TIMEOUT_S))
            systems = {"gateway": Address.parse(ready["gateway"]), "broker": Address.parse(ready["broker"])}
            for address in systems.values():
                say("a smaller group first, so that neither is cold")
                asyncio.run(play(address, RANGE, given.members // 5, given.partitions // 5, 1))
            for assignor in (RANGE, COOPERATIVE):
                for system, address in systems.items():
                    say(f"{assignor} at the {system}")
                    played = play(address, assignor, given.members, given.partitions, given.rounds)
                    print(row(f"{assignor}, {system}", *asyncio.run(played)), flush=True)
        finally:
            run.stop()


if __name__ == "__main__":
    main()
