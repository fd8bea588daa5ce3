"""Assembles the parts of the command `notify`: the threads that read topics and find problems, the outbox,
and the courier.

The courier sends messages from the outbox to the receiver, within a rate limit and with pauses after
failures. It replaces the state file after the receiver has accepted a message. If notify crashes before that,
it sends the message again, so none is lost.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.lag.definitions import STUCK_MS, WINDOW_MS
from kafka_why.lifetimes import BackgroundThread, OutageWarning, Startable
from kafka_why.local_files import FolderError, FolderNotWritable, LocalFiles
from kafka_why.notify.events import EventsFollower, OffsetsEvents, PolledEvents, RebalanceMessages, ends_of
from kafka_why.notify.messages import Filter, Link, Message, Outbox, Position, Status, TakenMessages
from kafka_why.notify.problems import Episodes, ProblemsThread, Sources
from kafka_why.notify.receiver import Answer, Verdict
from kafka_why.notify.request_bodies import Shape
from kafka_why.now import now_ms
from kafka_why.page.fleet import Fleet
from kafka_why.page.topics_followers import GroupsFollower, ServiceFollower, ServiceTopics
from kafka_why.service_state import StateReader
from kafka_why.topic_reader import BrokersOwn, FollowerThread

FILE = "notify.json"
VERSION = 1
"""The version of the state file."""


class _Content(Struct, kw_only=True):
    """The content of the state file."""

    version: int
    topic: str
    positions: dict[int, Position] = {}  # by partition of the topic
    # The ids of accepted messages that are found again when reading restarts at the positions.
    told: list[str] = []
    open: dict[str, Message] = {}  # see `StateFile.open_problems`, by message id


_decoder = msgspec.json.Decoder(_Content)


class StateFile:
    """The state file in a folder, for one events topic. Only the sending thread changes it.

    The constructor reads it, and raises FolderError if it cannot be read or belongs to another topic.
    """

    def __init__(self, folder: Path, topic: str) -> None:
        self._files = LocalFiles(folder)
        self._content = _read_content(self._files, folder / FILE, topic)

    @property
    def positions(self) -> dict[int, Position]:
        """The positions by partition, {} before the first start."""
        return dict(self._content.positions)

    @property
    def sent(self) -> frozenset[str]:
        """The ids of sent messages that are found again when reading restarts at `positions`."""
        return frozenset(self._content.told)

    @property
    def open_problems(self) -> list[Message]:
        """The BEGAN messages of problems whose end has not been sent."""
        return list(self._content.open.values())

    def mark_done(self, messages: Sequence[Message], taken: TakenMessages) -> None:
        """Mark messages as done (accepted, or refused for good), and the positions in `taken` as reached.

        Call `save` to write the file.
        """
        content = self._content
        for message in messages:
            if message.status is Status.BEGAN:
                content.open[message.id] = message
            elif message.status is Status.ENDED:
                content.open.pop(message.id, None)
        # Only messages about rebalances are found again by reading. Problems are in `open`.
        found_again = [message.id for message in taken.after_positions if message.status is Status.HAPPENED]
        if taken.positions is None:
            content.told += found_again
        else:
            content.positions, content.told = dict(taken.positions), found_again

    def save(self) -> None:
        """Write the file, or replace it. Raises FolderNotWritable."""
        self._files.write(FILE, msgspec.json.encode(self._content))


def _read_content(files: LocalFiles, path: Path, topic: str) -> _Content:
    """Return the content of the state file, empty if there is no file. Raises FolderError."""
    try:
        content = _decoder.decode(files.read(FILE))
    except FileNotFoundError:
        return _Content(version=VERSION, topic=topic)
    except msgspec.DecodeError as error:
        raise FolderError(
            f"{path} is damaged: {error}. If it is removed, notify begins at the end of the topic"
        ) from None
    if content.version != VERSION:
        raise FolderError(f"{path} has version {content.version}, and this code reads version {VERSION}")
    if content.topic != topic:
        raise FolderError(f"{path} is for topic {content.topic}, not for {topic}: use another folder")
    return content


SAVE_INTERVAL_S = 5.0
"""The interval at which positions are saved while there is nothing to send."""

MINUTE_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""The first and the longest pause after failures, before the random part is subtracted."""
LONGEST_RETRY_AFTER_S = 600.0
"""The maximum pause that a receiver can ask for."""

log = structlog.get_logger()


class RateLimit:
    """A limit of `per_minute` requests in any minute. Times are seconds of a monotonic clock."""

    def __init__(self, per_minute: int) -> None:
        self._sent_s: deque[float] = deque(maxlen=per_minute)  # times of the last `per_minute` requests

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next request may be sent."""
        if len(self._sent_s) != self._sent_s.maxlen:  # fewer requests since the start
            return 0.0
        return max(self._sent_s[0] + MINUTE_S - now_s, 0.0)

    def sent(self, now_s: float) -> None:
        """Count a request that was sent."""
        self._sent_s.append(now_s)


class BackOff:
    """The pauses after failures. Each is twice the one before, up to LONGEST_PAUSE_S, minus a random part.

    The random part is at most a half, so that many senders do not retry at the same time. `chance` returns a
    number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._next_s = FIRST_PAUSE_S

    def failed(self, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait after a failure.

        `retry_after_s` is the least time that the receiver asked for. It counts up to LONGEST_RETRY_AFTER_S.
        """
        pause_s = self._next_s * (1 - self._chance() / 2)
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        return max(pause_s, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))

    def worked(self) -> None:
        """Reset the pause after a successful request."""
        self._next_s = FIRST_PAUSE_S


class Courier(BackgroundThread):
    """The thread that sends the outbox's messages until stopped. Close the outbox before `stop`.

    `stop` waits for a request under way and saves what was delivered. `post` sends a body. `now_s` is a
    monotonic clock, and `now_ms` is the time of day.
    """

    def __init__(
        self,
        outbox: Outbox,
        post: Callable[[bytes], Answer],
        shape: Shape,
        state_file: StateFile,
        rate_limit: RateLimit,
        back_off: BackOff,
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._outbox = outbox
        self._post = post
        self._shape = shape
        self._state_file = state_file
        self._rate_limit = rate_limit
        self._back_off = back_off
        self._now_s = now_s
        self._now_ms = now_ms
        self._sending_outage = OutageWarning("sending to the receiver", now_s)
        self._saving_outage = OutageWarning("saving the position", now_s)
        self._messages_per_request = shape.max_messages
        self._pause_until_s = self._saved_at_s = float("-inf")
        self._is_saved = True  # False if the file could not be written
        super().__init__("notify-courier")

    def _run(self) -> None:
        while not self._stopped.is_set():
            wait_s = self.turn()
            if wait_s is None:
                self._outbox.wait(SAVE_INTERVAL_S)
            else:
                self._stopped.wait(wait_s)
        self.save_delivered()

    def turn(self) -> float | None:
        """Send at most one request. Return the seconds until the next turn, or None if nothing is left."""
        now_s = self._now_s()
        messages = self._outbox.head(self._messages_per_request)
        if not messages:
            if now_s - self._saved_at_s >= SAVE_INTERVAL_S:
                self.save_delivered()
            return None
        wait_s = max(self._pause_until_s - now_s, self._rate_limit.wait_s(now_s))
        if wait_s > 0:
            return wait_s
        self._rate_limit.sent(now_s)
        answer = self._post(self._shape.body(messages, self._now_ms()))
        if answer.verdict is Verdict.FAILED:
            self._sending_outage.failed(ReceiverFailed(answer.reason))
            self._pause_until_s = self._now_s() + self._back_off.failed(answer.retry_after_s)
            return 0
        self._back_off.worked()
        self._sending_outage.worked()
        if answer.verdict is Verdict.REFUSED and len(messages) > 1:
            # Find the refused message without losing the others.
            self._messages_per_request = len(messages) // 2
        else:
            self._record_answer(messages, answer)
        return 0

    def save_delivered(self) -> None:
        """Save what was delivered. If that fails, messages are sent again after the next start."""
        taken = self._outbox.take(0)  # no message, but positions that no waiting message precedes
        if taken.positions is not None:
            self._state_file.mark_done([], taken)
        if taken.positions is not None or not self._is_saved:
            self._save()

    def _record_answer(self, messages: Sequence[Message], answer: Answer) -> None:
        """Log and save that the receiver accepted the messages, or refused the only one of a request.

        A refused message is dropped. The next request may be of full size again.
        """
        for message in messages:
            fields = {"kind": message.kind, "status": str(message.status), "group": message.group}
            if answer.verdict is Verdict.REFUSED:
                log.error("the receiver refuses a message, which is dropped", why=answer.reason, **fields)
            else:
                log.info("message delivered", **fields)
        self._messages_per_request = self._shape.max_messages
        self._state_file.mark_done(messages, self._outbox.take(len(messages)))
        self._save()

    def _save(self) -> None:
        self._saved_at_s = self._now_s()
        try:
            self._state_file.save()
        except FolderNotWritable as error:
            self._is_saved = False
            self._saving_outage.failed(error)
        else:
            self._is_saved = True
            self._saving_outage.worked()


class ReceiverFailed(Exception):
    """The receiver did not accept a request. The message says why, without the receiver's address."""


SETTLED_MS = max(STUCK_MS, WINDOW_MS) + 60_000
"""The time after a start in which this process may not yet detect a problem that the previous process
detected (see `Episodes`).
"""
_READER = "notify"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The settings for sending messages."""

    post: Callable[[bytes], Answer]  # sends a body
    shape: Shape
    per_minute: int  # maximum number of requests


class Notifier(Startable):
    """The threads of `notify`, which read and send until stopped.

    The state file is in `folder`. `source` is the coordinator's topics, or the source for groups of the
    brokers' own coordinator. Polls have no positions, so rebalances that ended while notify did not run are
    not sent. `wanted` selects the messages, and `link` returns their links to the page.

    At the first start the constructor saves the ends of the topic. It raises KafkaError, or FolderError if
    the folder belongs to another topic or cannot be written.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        source: TopicLayout | BrokersOwn,
        folder: Path,
        delivery: Delivery,
        wanted: Filter,
        link: Link,
        metrics_url: str | None = None,
    ) -> None:
        layout = source if isinstance(source, TopicLayout) else None
        topic = KAFKAS_OFFSETS_TOPIC if layout is None else layout.events_topic
        state_file = StateFile(folder, topic)
        if source is not BrokersOwn.POLLS and not state_file.positions:  # the first start
            ends = ends_of(client_config, topic)
            state_file.mark_done([], TakenMessages(positions=ends, after_positions=[]))
            state_file.save()
        self._outbox = outbox = Outbox()
        fleet = Fleet(layout)
        rebalance_messages = RebalanceMessages(outbox, wanted, link, state_file.sent)
        readers: tuple[GroupsFollower | OffsetsEvents | PolledEvents, *tuple[FollowerThread, ...]]
        topics = None
        if source is BrokersOwn.POLLS:
            readers = (PolledEvents(client_config, fleet, rebalance_messages),)
        elif layout is None:
            readers = (OffsetsEvents(client_config, fleet, rebalance_messages, state_file.positions),)
        else:
            topics = ServiceTopics(is_observed=layout.is_observed)
            readers = (
                GroupsFollower(client_config, layout, fleet, _READER),
                EventsFollower(client_config, layout, rebalance_messages, state_file.positions),
                ServiceFollower(client_config, layout, topics, _READER),
            )
        state = None if metrics_url is None else StateReader(metrics_url)
        sources = Sources(fleet, topics, state, readers[0].read_age_s)
        episodes = Episodes(
            state_file.open_problems,
            settled_ms=now_ms() + SETTLED_MS,
            is_wanted=wanted.wants,
            link=link,
            again_ms=delivery.shape.again_ms,
        )
        self._readers = (*readers, ProblemsThread(sources, episodes, outbox))
        self._courier = Courier(
            outbox,
            delivery.post,
            delivery.shape,
            state_file,
            RateLimit(delivery.per_minute),
            BackOff(random.random),
        )

    def start(self) -> None:
        """Start the threads."""
        self._courier.start()
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """Wait for the request under way, save what was delivered, and stop reading.

        Messages that still wait are found again after the next start.
        """
        self._outbox.close()
        self._courier.stop()
        for reader in self._readers:
            reader.stop()
