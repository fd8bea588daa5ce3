"""Readiness of a gateway for clients, with the reason if it is not ready."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from gateway.coordinator.backend import Backend
from gateway.net.server import Gateway
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode

LISTENING, BROKERS, COORDINATOR = "listening", "brokers", "coordinator"
CHECKS = (LISTENING, BROKERS, COORDINATOR)

Checks = dict[str, str | None]
"""The reason why a check fails, by the check's name. The reason is None if it does not fail."""

# An outcome is reused for this time, because each check of the coordinator costs it a batch.
AGE_MAX_S = 5.0
# The timeout of a check, less than that of the callers, so that they get the reason.
_CHECK_TIMEOUT_S = 2.0
# The group in the request to the coordinator. It need not exist.
_GROUP_ID, _CLIENT_ID, _DESCRIBE_VERSION = "__readiness", "gateway", 5


class AnsweringBackend(Backend, Protocol):
    """A backend with the time of its last answer, in seconds of `time.monotonic`."""

    answered_at_s: float


class DrainingServer(Protocol):
    """The listeners of a gateway."""

    @property
    def is_draining(self) -> bool: ...
    @property
    def is_listening(self) -> bool: ...


Check = Callable[[], Awaitable[str | None]]
"""Returns the reason why it fails, or None."""


class Readiness:
    """The readiness checks of one gateway: that it listens, and others by name. Runs on the event loop's
    thread.
    """

    def __init__(self, server: DrainingServer, others: Mapping[str, Check]) -> None:
        self._server = server
        self._others = others
        self._recent_checks: dict[str, tuple[float, asyncio.Task[str | None]]] = {}

    async def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Run the checks, except those in `exclude`, and return their outcomes."""
        wanted = [name for name in self._others if name not in exclude]
        found = await asyncio.gather(*(_bounded(self._recent(name)) for name in wanted))
        listening = {} if LISTENING in exclude else {LISTENING: self._listening()}
        return {**listening, **dict(zip(wanted, found, strict=True))}

    def _listening(self) -> str | None:
        if self._server.is_draining:
            return "the gateway is draining"
        return None if self._server.is_listening else "the gateway does not listen"

    async def _recent(self, name: str) -> str | None:
        """Return the outcome of a check that began a short time ago, or of a new one. All callers share
        it.
        """
        began_s, task = self._recent_checks.get(name, (0.0, None))
        if task is None or (task.done() and time.monotonic() - began_s > AGE_MAX_S):
            task = asyncio.ensure_future(self._others[name]())
            self._recent_checks[name] = time.monotonic(), task
        return await asyncio.shield(task)


def kafka_readiness(gateway: Gateway, cluster: Cluster, backend: AnsweringBackend) -> Readiness:
    """Return the readiness checks of a gateway for Kafka's clients."""
    return Readiness(
        gateway,
        {BROKERS: partial(_brokers_check, cluster), COORDINATOR: partial(_coordinator_check, backend)},
    )


async def _brokers_check(cluster: Cluster) -> str | None:
    try:
        await cluster.refresh()
    except UpstreamLost as error:
        return str(error)
    return None


async def _coordinator_check(backend: AnsweringBackend) -> str | None:
    if time.monotonic() - backend.answered_at_s <= AGE_MAX_S:
        return None  # clients keep it busy
    header = backend.header(_GROUP_ID, _DESCRIBE_VERSION, _CLIENT_ID, "", ANONYMOUS)
    answer = await backend.ask(DescribeGroup(**header))
    if not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return "the coordinator does not answer"
    return None


async def _bounded(check: Awaitable[str | None]) -> str | None:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            return await check
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT_S:.0f} s"
