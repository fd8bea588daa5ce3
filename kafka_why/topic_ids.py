"""Names of topics by their ids, which records of groups of the consumer protocol have instead.

A topic's id never gets another name. So it does not matter to the outcome of a batch when its name is looked
up, as long as the topic exists: a batch that runs again writes the same entries, at most with more names.
"""

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from uuid import UUID

import structlog
from kafka.errors import KafkaError

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig

# After a look, an id that no topic has is looked for again when so much time has passed.
_AGAIN_S = 60.0
# After a look that found nothing new the next one waits so long: a long log has ids of many deleted topics.
_PAUSE_S = 1.0
_TIMEOUT_MS = 10_000

log = structlog.get_logger()

Look = Callable[[], dict[bytes, str]]


class NamesById:
    """The names that are known. `look` returns those of all topics; it may raise KafkaError."""

    def __init__(self, look: Look, now_s: Callable[[], float] = time.monotonic) -> None:
        self.known: dict[bytes, str] = {}
        self._look = look
        self._now_s = now_s
        self._missed: dict[bytes, float] = {}
        self._next_look_s = float("-inf")

    def find(self, ids: Iterable[bytes]) -> None:
        """Look these ids up, unless they are known or were not found a moment ago."""
        now_s = self._now_s()
        new = [
            topic_id
            for topic_id in ids
            if topic_id not in self.known and now_s - self._missed.get(topic_id, -_AGAIN_S) >= _AGAIN_S
        ]
        if not new or now_s < self._next_look_s:
            return
        try:
            self.known.update(self._look())
        except KafkaError as error:
            log.warning("names of topics cannot be read, so their ids are shown", error=str(error))
        missed = [topic_id for topic_id in new if topic_id not in self.known]
        self._missed.update(dict.fromkeys(missed, now_s))
        if len(missed) == len(new):
            self._next_look_s = now_s + _PAUSE_S


@cache
def names_on(client_config: ClientConfig) -> NamesById:
    """This process's names of the cluster's topics. A Python worker serves many tasks."""
    return NamesById(lambda: _names(client_config))


def _names(client_config: ClientConfig) -> dict[bytes, str]:
    admin = kafka_clients.admin(
        client_config, bootstrap_timeout_ms=_TIMEOUT_MS, request_timeout_ms=_TIMEOUT_MS
    )
    try:
        topics: list[dict[str, Any]] = admin.describe_topics()
    finally:
        admin.close()
    return {UUID(str(topic["topic_id"])).bytes: topic["name"] for topic in topics}
