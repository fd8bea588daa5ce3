"""Random logs that are played live: their requests are appended to a real requests topic, and their clients
learn from the answers of a real coordinator. Times are a twentieth of those of `tests.harness.random_log`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Union

import msgspec
from msgspec.structs import replace

from clients.answer_reader import AnswerReader
from connections import kafka_clients
from connections.client_config import ClientConfig
from records.codec import UNREADABLE, encode
from records.layout import TopicLayout
from records.pack import pack, pack_key, slot_of, unpack
from records.partitioner import partition_of
from state.dispatch import AnyRequest
from state.kafka.requests import ANSWERS, JoinGroup, Unanswered
from state.kafka.responses import AnyResponse
from state.messages import ErrorResponse
from state.rocketmq.requests import ConnectionClosed
from tests.harness import random_log, rocketmq_log

FASTER = 20
PAUSE_MAX_S = 0.5
REPLY_PARTITION = 0
# Sessions are short, too. A RocketMQ client or lock expires within some of the longest pauses.
SETTINGS = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "150",
    "rocketmq.channel.expired.timeout.ms": "700",
    "rocketmq.lock.max.live.ms": "500",
    "rocketmq.scan.interval.ms": "200",
}

_response: msgspec.json.Decoder[AnyResponse] = msgspec.json.Decoder(Union[(*ANSWERS, ErrorResponse)])


@dataclass
class _Player:
    """One seed's log: when its next request is due, and its clients by group."""

    seed: int
    moves: Iterator[tuple[float, AnyRequest | random_log.Move]]
    clients: dict[str, list[random_log.Client]] = field(default_factory=dict)
    due_s: float = 0.0


class LiveLogs:
    """Plays the logs of many seeds at once, half of them of RocketMQ's groups, until all have ended."""

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, seeds: Sequence[int], length: int
    ) -> None:
        self.requests = 0
        self._layout = layout
        self._random = Random(len(seeds))
        self._producer = kafka_clients.producer(client_config)
        self._answers = AnswerReader(client_config, layout, REPLY_PARTITION, 0)
        self._players = {
            seed: _Player(seed, _kafka_moves(seed, length) if seed % 2 else _rocketmq_moves(seed, length))
            for seed in seeds
        }

    def play(self, for_s: float | None = None) -> bool:
        """Play for some time, or to the end. Returns whether all logs have ended."""
        end_s = float("inf") if for_s is None else time.monotonic() + for_s
        while self._players and time.monotonic() < end_s:
            self._learn()
            for player in list(self._players.values()):
                if player.due_s <= time.monotonic():
                    self._move(player)
        self._producer.flush()
        return not self._players

    def close(self) -> None:
        self._producer.close(timeout=5)
        self._answers.close()

    def _move(self, player: _Player) -> None:
        found = next(player.moves, None)
        if found is None:
            del self._players[player.seed]
            return
        pause_s, what = found
        player.due_s = time.monotonic() + pause_s
        if isinstance(what, random_log.Move):
            clients = player.clients.setdefault(what.group_id, [random_log.Client() for _ in range(5)])
            request = _quick(random_log.request_of(what, clients))
        else:
            request = what
        self._append(_named(request, player.seed))

    def _append(self, request: AnyRequest) -> None:
        key, value = request.group_id.encode(), encode(request)
        if self._random.random() < 0.5:
            key, value = pack_key(slot_of(request.group_id)), pack([value])
        partition = partition_of(request.group_id, self._layout.request_partitions)
        self._producer.send(self._layout.requests_topic, key=key, value=value, partition=partition)
        self.requests += 1

    def _learn(self) -> None:
        for record in self._answers.poll(0.01):
            for value in unpack(record):
                try:
                    response = _response.decode(value)
                except UNREADABLE:
                    continue  # an answer of RocketMQ's protocol
                seed, group_id, client = response.correlation_id.split("/")
                player = self._players.get(int(seed))
                if player is not None and group_id in player.clients:
                    player.clients[group_id][int(client)].learn(response)


def _kafka_moves(seed: int, length: int) -> Iterator[tuple[float, random_log.Move]]:
    for move in random_log.script(seed, length):
        yield min(move.pause_ms / FASTER / 1000, PAUSE_MAX_S), move


def _rocketmq_moves(seed: int, length: int) -> Iterator[tuple[float, AnyRequest]]:
    at_ms = None
    for row in rocketmq_log.realise(seed, length):
        pause_ms = 0 if at_ms is None else row.at_ms - at_ms
        at_ms = row.at_ms
        yield min(pause_ms / FASTER / 1000, PAUSE_MAX_S), row.request


def _quick(request: AnyRequest) -> AnyRequest:
    if not isinstance(request, JoinGroup):
        return request
    return replace(
        request,
        session_timeout_ms=request.session_timeout_ms // FASTER,
        rebalance_timeout_ms=request.rebalance_timeout_ms // FASTER,
    )


def _named(request: AnyRequest, seed: int) -> AnyRequest:
    """The request for a group of this seed. Its answer says whose it is."""
    group_id = f"seed-{seed}-{request.group_id}"
    if isinstance(request, Unanswered):
        return replace(request, group_id=group_id)
    if isinstance(request, ConnectionClosed):
        return replace(request, group_id=group_id)
    client = request.correlation_id if request.correlation_id.isdecimal() else "0"
    return replace(request, group_id=group_id, correlation_id=f"{seed}/{request.group_id}/{client}")
