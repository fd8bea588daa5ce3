"""The gateway's processor time for a heartbeat, without a coordinator: `python -m bench.gateway_cost`.

The gateway runs in this process, the load in another. The backend answers all requests of one turn of the
event loop together in the next turn. So the figure is the cost of the sockets, of the protocol and of the
order of answers. The way to the topics and back is not in it. Each turn is measured with a Heartbeat and with
keep-alives of the consumer protocol (KIP-848) and of share groups (KIP-932), and with `--acls N` without and
with N ACLs. The cost of one decision is printed.
"""

import argparse
import asyncio
import statistics
import time
import timeit
from functools import partial
from itertools import count
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import uvloop
from kafka.protocol.api_key import ApiKey

from clients.coordinator_client import Header
from clients.pending import RequestTooLarge
from gateway.authorization.acls import Acl, Operation, PatternType, Permission, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.failures import failed
from gateway.coordinator.groups import KnownGroup
from gateway.limits import Limits
from gateway.net.server import Gateway, GatewayOptions
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import SHARE_VERSION, Coordinators
from gateway.wire import codec
from gateway.wire.framing import framed, request_header
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ANONYMOUS, ErrorCode, Request, Response

HOST = "127.0.0.1"
GROUPS = 1_000
HEARTBEAT, KEEP_ALIVE = (ApiKey.Heartbeat, 4), (ApiKey.ConsumerGroupHeartbeat, 1)
SHARE_KEEP_ALIVE = ApiKey.ShareGroupHeartbeat, 1
KINDS = {
    HEARTBEAT: "Heartbeat",
    KEEP_ALIVE: "ConsumerGroupHeartbeat",
    SHARE_KEEP_ALIVE: "ShareGroupHeartbeat",
}
INTERVAL_MS = 5_000
SHAPES = ((1_000, 1), (1_000, 8), (1, 500))
"""Connections, and the heartbeats under way on each."""

_WARM_UP = 2_000

R = TypeVar("R", bound=Response)


class InstantBackend:
    """Answers every request without an error, and measures the processor time between the requests."""

    def __init__(self) -> None:
        self._requests = 0
        self._used_s: list[tuple[int, float]] = []
        self._numbers = count(1)
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []

    @property
    def per_request_us(self) -> float:
        """The processor time of a request after the warm-up, in microseconds."""
        (first, began_s), (last, ended_s) = self._used_s
        return (ended_s - began_s) / (last - first) * 1e6

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        return Header(
            group_id=group_id,
            correlation_id=f"0b7d7a8e-3f0c-4b52-8f4e-3d7b6d1c9a42-{next(self._numbers)}",
            reply_partition=0,
            api_version=api_version,
            client_id=client_id,
            client_host=client_host,
            principal=principal,
        )

    async def ask(self, request: Request[R], timeout_ms: int | None = None) -> R:
        return await self.send(request, timeout_ms)

    def refuse(self, request: Request[R], error: RequestTooLarge) -> asyncio.Future[R]:
        raise error

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        self._requests += 1
        if self._requests >= _WARM_UP and self._requests % 100 == 0:
            self._used_s[1:] = [(self._requests, time.process_time())]
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)
        waiting: asyncio.Future[R] = loop.create_future()
        answered = failed(request, ErrorCode.NONE)
        if isinstance(request, (ConsumerGroupHeartbeat, ShareGroupHeartbeat)):
            kept = {"member_id": request.member_id, "member_epoch": request.member_epoch}
            answered = msgspec.structs.replace(answered, **kept, heartbeat_interval_ms=INTERVAL_MS)
        self._waiting.append((waiting, answered))
        return waiting

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one, answer in waiting:
            if not one.done():
                one.set_result(answer)

    @property
    def is_read(self) -> bool:
        return True

    def groups(self) -> list[KnownGroup]:
        return []

    def configured(self) -> list[str]:
        return []

    def type_of(self, group_id: str) -> str | None:
        """Return None: no group is known to exist."""

    async def reach_end(self, timeout_s: float) -> bool:
        return True


class NoBrokers(Cluster):
    """A cluster without brokers, that has share groups."""

    async def refresh(self) -> None:
        pass

    async def ask(self, api_key: int, api_version: int, body: codec.Fields) -> Any:
        """Answer ApiVersions, which the gateway requests when it starts."""
        level = SimpleNamespace(name=SHARE_VERSION, max_version_level=1)
        return SimpleNamespace(finalized_features=[level])


class Beating(asyncio.Protocol):
    """A connection that keeps several equal heartbeats under way. Every answer is compared."""

    def __init__(self, kind: tuple[int, int], number: int, under_way: int) -> None:
        member_id = f"m-{number:034}"  # as long as that of a share group may be
        fields: dict[str, Any] = {"group_id": f"group-{number % GROUPS}", "member_id": member_id}
        fields["generation_id" if kind == HEARTBEAT else "member_epoch"] = 1
        answer: dict[str, Any] = {"error_code": 0}
        if kind != HEARTBEAT:
            answer |= {"member_id": member_id, "member_epoch": 1, "heartbeat_interval_ms": INTERVAL_MS}
        request = codec.encode_request(*kind, number, "bench", fields)
        self.answered = 0
        self.error: str | None = None
        self._request = framed(request)
        self._answer = framed(codec.encode_response(request_header(request), answer))
        self._under_way = under_way
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request * self._under_way)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        answers, rest = divmod(len(data), len(self._answer))
        self._rest = data[len(data) - rest :]
        if data[: len(data) - rest] != self._answer * answers:
            self.error = data.hex(" ")
        self.answered += answers
        self._transport.write(self._request * answers)


def load(
    results: Any,
    address: Address,
    kind: tuple[int, int],
    connections: int,
    under_way: int,
    seconds: float,
) -> None:
    """Beat for some seconds, and send the number of heartbeats per second. A wrong answer ends the run."""
    results.send(uvloop.run(_beat(address, kind, connections, under_way, seconds)))


async def _beat(
    address: Address, kind: tuple[int, int], connections: int, under_way: int, seconds: float
) -> float:
    loop, beating = asyncio.get_running_loop(), []
    for number in range(connections):
        _, one = await loop.create_connection(
            partial(Beating, kind, number, under_way),
            address.host,
            address.port,
        )
        beating.append(one)
    before = sum(one.answered for one in beating)
    await asyncio.sleep(seconds)
    errors = [one.error for one in beating if one.error is not None]
    if errors:
        raise ValueError(f"not the answer to a heartbeat: {errors[0]}")
    return (sum(one.answered for one in beating) - before) / seconds


def authorizer_of(acls: int) -> Authorizer | None:
    """Return an authorizer with this number of ACLs, of which those of a prefix allow the heartbeats, or None
    without ACLs.
    """
    if not acls:
        return None
    authorizer = Authorizer()
    names = ["group-", *(f"other-{number}-" for number in range(acls - 1))]
    authorizer.replace(
        Acl(
            ResourceType.GROUP,
            name,
            PatternType.PREFIXED,
            ANONYMOUS,
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        for name in names
    )
    return authorizer


def decision_us(acls: int) -> tuple[float, float]:
    """Return the microseconds of a cached decision, and of a new one."""
    authorizer = authorizer_of(acls)
    assert authorizer is not None
    groups = [f"group-{number}" for number in range(GROUPS)]

    def decide() -> None:
        for group in groups:
            assert authorizer.may(ANONYMOUS, f"/{HOST}", Operation.READ, ResourceType.GROUP, group)

    made = min(timeit.repeat(decide, setup=authorizer.forget, number=1, repeat=20))
    kept = min(timeit.repeat(decide, number=1, repeat=20))
    return kept / GROUPS * 1e6, made / GROUPS * 1e6


async def measure(
    kind: tuple[int, int],
    connections: int,
    under_way: int,
    seconds: float,
    authorizer: Authorizer | None = None,
) -> tuple[float, float]:
    """Return a heartbeat's processor time in microseconds, and the heartbeats of a second."""
    backend, limits = InstantBackend(), Limits()
    options = GatewayOptions(
        ClientConfig("no-broker:9092"), TopicLayout.named(), Address(HOST, 0), share_groups=Coordinators.OURS
    )
    gateway = Gateway(options, NoBrokers([], limits), backend, backend, authorizer=authorizer)
    await gateway.start()
    context = get_context("spawn")
    results, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=load, args=(theirs, gateway.address, kind, connections, under_way, seconds), daemon=True
    )
    process.start()
    theirs.close()
    try:
        rate: float = await asyncio.to_thread(results.recv)
    finally:
        process.terminate()
        process.join()
    await gateway.close()
    return backend.per_request_us, rate


def main() -> None:
    """Print the medians of a few turns for each of SHAPES."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway_cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="the time of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--acls", type=int, default=0, help="also measure with so many ACLs")
    given = parser.parse_args()
    if given.acls:
        kept, made = decision_us(given.acls)
        print(f"{given.acls:,} ACLs: {kept:.2f} us for a decision that is kept, {made:.2f} us for a new one")
    for connections, under_way in SHAPES:
        cases = [(kind, acls) for kind in KINDS for acls in sorted({0, given.acls})]
        figures: dict[Any, list[tuple[float, float]]] = {case: [] for case in cases}
        for _ in range(given.turns):
            for (kind, acls), turns in figures.items():
                measured = measure(kind, connections, under_way, given.seconds, authorizer_of(acls))
                turns.append(uvloop.run(measured))
        for (kind, acls), turns in figures.items():
            costs, rates = zip(*turns, strict=True)
            print(
                f"connections {connections:>5,}, under way on each {under_way:>3,}, ACLs {acls:>6,}, "
                f"{KINDS[kind]:>22}: "
                f"{statistics.median(costs):6.1f} us of processor time a heartbeat "
                f"({min(costs):.1f} to {max(costs):.1f}), {statistics.median(rates):8,.0f} heartbeats/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
