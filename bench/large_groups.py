"""Compare large groups through the gateway with a broker's own coordinator: `python -m bench.large_groups`.

The members send the metadata of Java's consumers. The group forms, which includes the initial delay. Then all
members join again with the partitions that they own. Both coordinators get the same requests. This project's
assignors compute the leader's assignment. That time does not count, because it is spent in the client.
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
_HEARTBEAT_PAUSE_S = 0.005


class Round(NamedTuple):
    """A rebalance of one group. The sizes are those of the largest messages."""

    seconds: float  # without the assignor's time
    codes: frozenset[int]  # all error codes, also 0
    join_bytes: int
    leader_bytes: int  # of the JoinGroup response to the leader
    sync_bytes: int  # of a SyncGroup request


@dataclass
class _Member:
    """A member and its connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    subscription: Subscription
    member_id: str = ""
    generation: int = -1
    sizes: dict[str, int] = field(default_factory=dict)  # of the last request and response of each API

    async def ask(self, api_key: ApiKey, version: int, fields: codec.Fields) -> Any:
        """Send a request and return its answer. Record the sizes of both by the name of the API."""
        frame = framed(codec.encode_request(api_key, version, 1, "large", fields))
        self.writer.write(frame)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            size = int.from_bytes(await self.reader.readexactly(4))
            answer = await self.reader.readexactly(size)
        self.sizes |= {f"{api_key.name} request": len(frame), f"{api_key.name} response": size}
        return codec.decode_response(api_key, version, answer)

    async def join(self, group_id: str, assignor: str) -> Any:
        """Join the group, and return the answer, which comes when all members have joined."""
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
        """Request the member's partitions. The leader's request has the assignments of all members."""
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
        """Get a member id for each member, so that the coordinator waits for all in the first round."""
        answers = await _gather(member.join(self._group_id, self._assignor) for member in self._members)
        for member, answer in zip(self._members, answers, strict=True):
            assert answer.error_code == _MEMBER_ID_REQUIRED, answer
            member.member_id = answer.member_id

    async def round(self) -> Round:
        """Let all members join and get their partitions.

        In a later round the first member, the leader, joins alone. The others join once a heartbeat reports
        the rebalance.
        """
        began_s = time.monotonic()
        first, *others = self._members
        joining = asyncio.create_task(first.join(self._group_id, self._assignor))
        is_later_round = bool(others) and others[0].generation >= 0
        if is_later_round:
            while await others[0].heartbeat(self._group_id) != _REBALANCE_IN_PROGRESS:
                await asyncio.sleep(_HEARTBEAT_PAUSE_S)
        joined = await _gather([joining, *(member.join(self._group_id, self._assignor) for member in others)])
        for member, answer in zip(self._members, joined, strict=True):
            member.generation = answer.generation_id
        self._members.sort(key=lambda member: member.member_id != joined[0].leader)  # the leader first
        leaders_answer = next((answer for answer in joined if answer.members), None)
        assign_s, assignments = 0.0, dict[str, bytes]()
        if leaders_answer is not None:
            assign_began_s = time.monotonic()
            assignments = self._assign(leaders_answer)
            assign_s = time.monotonic() - assign_began_s
        synced = await _gather(
            member.sync(
                self._group_id,
                self._assignor,
                assignments
                if leaders_answer is not None and member.member_id == leaders_answer.member_id
                else {},
            )
            for member in self._members
        )
        seconds = time.monotonic() - began_s - assign_s
        for member, answer in zip(self._members, synced, strict=True):
            self._report_owned(member, answer)
        return Round(
            seconds,
            frozenset(answer.error_code for answer in [*joined, *synced]),
            self._largest("JoinGroup request"),
            self._largest("JoinGroup response"),
            self._largest("SyncGroup request"),
        )

    def _assign(self, leaders_answer: Any) -> dict[str, bytes]:
        """Return the assignments of the members in the JoinGroup response to the leader, by member id."""
        subscriptions = {
            member.member_id: MemberSubscription(decode_subscription(member.metadata))
            for member in leaders_answer.members
        }
        assigned = ASSIGNORS[self._assignor].assign(self._partitions, subscriptions)
        return {member: encode_assignment(Assignment(tuple(own))) for member, own in assigned.items()}

    def _report_owned(self, member: _Member, answer: Any) -> None:
        """Let the member report its partitions when it joins the next round, as a cooperative client does."""
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


async def _gather(requests: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*requests))


async def run_group(
    address: Address, assignor: str, members: int, partitions: int, rounds: int
) -> tuple[Round, list[Round]]:
    """Form a group and let it rebalance. Return the first round, and the others."""
    per_topic = {f"payments.transactions.eu-central-{n:03}": partitions // TOPICS for n in range(TOPICS)}
    subscription = Subscription(tuple(per_topic))
    async with AsyncExitStack() as stack:
        group_members = []
        for _ in range(members):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=2**26)
            stack.enter_context(closing(writer))
            group_members.append(_Member(reader, writer, subscription))
        group = _Group(group_members, assignor, per_topic)
        await group.enroll()
        formed = await group.round()
        return formed, [await group.round() for _ in range(rounds)]


def table_row(name: str, formed: Round, later: list[Round]) -> str:
    """Return a line of the table."""
    last = later[-1]
    codes = " ".join(str(code) for code in sorted(frozenset().union(formed.codes, *(r.codes for r in later))))
    sizes = f"{last.join_bytes / 1e3:.1f} | {last.leader_bytes / 1e3:,.0f} | {last.sync_bytes / 1e3:,.0f}"
    times = f"{formed.seconds:.1f} | {median(r.seconds for r in later):.2f}"
    return f"| {name} | {codes} | {sizes} | {times} |"


def main() -> None:
    """Start `run`, form the groups at both coordinators in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_groups", description=__doc__)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
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
                say("a smaller group as a warm-up")
                asyncio.run(run_group(address, RANGE, args.members // 5, args.partitions // 5, 1))
            for assignor in (RANGE, COOPERATIVE):
                for system, address in systems.items():
                    say(f"{assignor} at the {system}")
                    rounds = run_group(address, assignor, args.members, args.partitions, args.rounds)
                    print(table_row(f"{assignor}, {system}", *asyncio.run(rounds)), flush=True)
        finally:
            run.stop()


if __name__ == "__main__":
    main()
