"""The gateway's processor time for a heartbeat, without a coordinator: `python -m bench.gateway_cost`.

The gateway runs in this process, the load in another. The backend answers all requests of one iteration of
the event loop together in the next one. So a figure is the cost of the sockets, the protocol and the order of
answers, without the topics. Heartbeats and keep-alives of the consumer protocol (KIP-848) and of share groups
(KIP-932) are measured in turns. With `--acls N` each is measured without and with N ACLs, and the cost of one
authorization decision is printed.
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
from gateway.coordinator.failures import error_response
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
# By API key and version of a heartbeat: its name in the table.
KINDS = {
    HEARTBEAT: "Heartbeat",
    KEEP_ALIVE: "ConsumerGroupHeartbeat",
    SHARE_KEEP_ALIVE: "ShareGroupHeartbeat",
}
INTERVAL_MS = 5_000
SHAPES = ((1_000, 1), (1_000, 8), (1, 500))
"""The number of connections, and of heartbeats in flight on each."""

_WARM_UP = 2_000

R = TypeVar("R", bound=Response)


class InstantBackend:
    """A backend that answers every request without an error, and samples this process's processor time."""

    def __init__(self) -> None:
        self.answered_at_s = 0.0  # an attribute of the real `Backend`, not used here
        self._requests = 0
        # The first and the last sample after the warm-up: the number of requests, and the processor time in
        # seconds, so far.
        self._cpu_samples: list[tuple[int, float]] = []
        self._correlation_numbers = count(1)
        self._unanswered: list[tuple[asyncio.Future[Any], Any]] = []  # with the responses to come

    @property
    def per_request_us(self) -> float:
        """The mean processor time of a request after the warm-up, in microseconds."""
        (first, began_s), (last, ended_s) = self._cpu_samples
        return (ended_s - began_s) / (last - first) * 1e6

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        return Header(
            group_id=group_id,
            correlation_id=f"0b7d7a8e-3f0c-4b52-8f4e-3d7b6d1c9a42-{next(self._correlation_numbers)}",
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
            # The first sample appends; each later one replaces the last.
            self._cpu_samples[1:] = [(self._requests, time.process_time())]
        loop = asyncio.get_running_loop()
        if not self._unanswered:
            loop.call_soon(self._answer)
        future: asyncio.Future[R] = loop.create_future()
        response = error_response(request, ErrorCode.NONE)
        if isinstance(request, (ConsumerGroupHeartbeat, ShareGroupHeartbeat)):
            member = {"member_id": request.member_id, "member_epoch": request.member_epoch}
            response = msgspec.structs.replace(response, **member, heartbeat_interval_ms=INTERVAL_MS)
        self._unanswered.append((future, response))
        return future

    def _answer(self) -> None:
        unanswered, self._unanswered = self._unanswered, []
        for future, response in unanswered:
            if not future.done():
                future.set_result(response)

    @property
    def has_caught_up(self) -> bool:
        """True, because there is no groups topic to read."""
        return True

    def groups(self) -> list[KnownGroup]:
        return []

    def configured_group_ids(self) -> list[str]:
        return []

    def get(self, group_id: str) -> KnownGroup | None:
        return None

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


class HeartbeatConnection(asyncio.Protocol):
    """A connection that keeps several equal heartbeats in flight, and compares every answer."""

    def __init__(self, kind: tuple[int, int], number: int, under_way: int) -> None:
        member_id = f"m-{number:034}"  # the maximum length of a member id in a share group
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
        self._rest = b""  # the begin of an answer whose end has not arrived

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request * self._under_way)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        answers, rest_bytes = divmod(len(data), len(self._answer))
        self._rest = data[len(data) - rest_bytes :]
        if data[: len(data) - rest_bytes] != self._answer * answers:
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
    """Send heartbeats for some seconds, and put their rate into `results`. A wrong answer ends the run."""
    results.send(uvloop.run(_run_load(address, kind, connections, under_way, seconds)))


async def _run_load(
    address: Address, kind: tuple[int, int], connections: int, under_way: int, seconds: float
) -> float:
    loop, open_connections = asyncio.get_running_loop(), []
    for number in range(connections):
        _, connection = await loop.create_connection(
            partial(HeartbeatConnection, kind, number, under_way),
            address.host,
            address.port,
        )
        open_connections.append(connection)
    answered_before = sum(connection.answered for connection in open_connections)
    await asyncio.sleep(seconds)
    errors = [connection.error for connection in open_connections if connection.error is not None]
    if errors:
        raise ValueError(f"not the answer to a heartbeat: {errors[0]}")
    answered = sum(connection.answered for connection in open_connections) - answered_before
    return answered / seconds


def authorizer_of(acls: int) -> Authorizer | None:
    """Return an authorizer with this number of ACLs, one of which allows the heartbeats; None for 0."""
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

    new_s = min(timeit.repeat(decide, setup=authorizer.forget, number=1, repeat=20))
    cached_s = min(timeit.repeat(decide, number=1, repeat=20))
    return cached_s / GROUPS * 1e6, new_s / GROUPS * 1e6


async def measure(
    kind: tuple[int, int],
    connections: int,
    under_way: int,
    seconds: float,
    authorizer: Authorizer | None = None,
) -> tuple[float, float]:
    """Return a heartbeat's processor time in microseconds, and the heartbeats per second."""
    backend, limits = InstantBackend(), Limits()
    options = GatewayOptions(
        ClientConfig("no-broker:9092"), TopicLayout.named(), Address(HOST, 0), share_groups=Coordinators.OURS
    )
    gateway = Gateway(options, NoBrokers([], limits), backend, backend, authorizer=authorizer)
    await gateway.start()
    context = get_context("spawn")
    results, child_end = context.Pipe(duplex=False)
    process = context.Process(
        target=load, args=(child_end, gateway.address, kind, connections, under_way, seconds), daemon=True
    )
    process.start()
    child_end.close()
    try:
        rate: float = await asyncio.to_thread(results.recv)
    finally:
        process.terminate()
        process.join()
    await gateway.close()
    return backend.per_request_us, rate


def main() -> None:
    """Print the medians of all turns, for each of SHAPES."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway_cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="the duration of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--acls", type=int, default=0, help="also measure with this many ACLs")
    args = parser.parse_args()
    if args.acls:
        cached_us, new_us = decision_us(args.acls)
        print(f"{args.acls:,} ACLs: {cached_us:.2f} us for a cached decision, {new_us:.2f} us for a new one")
    for connections, under_way in SHAPES:
        cases = [(kind, acls) for kind in KINDS for acls in sorted({0, args.acls})]
        figures: dict[Any, list[tuple[float, float]]] = {case: [] for case in cases}
        for _ in range(args.turns):
            for (kind, acls), results in figures.items():
                authorizer = authorizer_of(acls)
                results.append(uvloop.run(measure(kind, connections, under_way, args.seconds, authorizer)))
        for (kind, acls), results in figures.items():
            costs, rates = zip(*results, strict=True)
            print(
                f"connections {connections:>5,}, under way on each {under_way:>3,}, ACLs {acls:>6,}, "
                f"{KINDS[kind]:>22}: "
                f"{statistics.median(costs):6.1f} us of processor time a heartbeat "
                f"({min(costs):.1f} to {max(costs):.1f}), {statistics.median(rates):8,.0f} heartbeats/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
