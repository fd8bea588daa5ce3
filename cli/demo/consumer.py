"""A consumer of the demo: a plain kafka-python consumer that knows only the gateway.

    python -m cli.demo.consumer GATEWAY GROUP TOPIC CLIENT_ID CONSUMED

It writes each record to the file CONSUMED, then commits its offset. On SIGTERM it leaves the group.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError, KafkaError

# This client sends no heartbeat from its JoinGroup to the answer to its SyncGroup. That takes seconds here,
# and may take ten on a busy machine.
SESSION_TIMEOUT_MS = 30_000
COMMIT_TIMEOUT_MS = 10_000

log = logging.getLogger("consumer")


def main(gateway: str, group_id: str, topic: str, client_id: str, consumed: str) -> None:
    """Consume until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with ExitStack() as stack:
        process = line_writer(stack, Path(consumed))
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=gateway,
            group_id=group_id,
            client_id=client_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        stack.callback(consumer.close)
        while not stopping.is_set():
            try:
                polled = consumer.poll(timeout_ms=500)
            except KafkaConnectionError as error:  # the library connects again by itself, if it is polled
                log.warning("not polled: %r", error)
                continue
            if polled:
                process([record for records in polled.values() for record in records])
                commit(consumer)


def commit(consumer: KafkaConsumer) -> None:
    """Commit the processed records."""
    try:
        consumer.commit(timeout_ms=COMMIT_TIMEOUT_MS)
    except KafkaError as error:
        # A later commit covers them, or the partition's next owner reads them again.
        log.warning("not committed: %r", error)


def line_writer(stack: ExitStack, consumed: Path) -> Callable[[Sequence[Any]], None]:
    """Return a function that appends records to the file `consumed`, which `stack` closes."""
    descriptor = os.open(consumed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # records are private
    file = stack.enter_context(os.fdopen(descriptor, "ab"))

    def write(records: Sequence[Any]) -> None:
        file.write(b"".join(_json_line(record) for record in records))
        file.flush()  # the kernel has the lines now, so even SIGKILL loses no record that counts as processed

    return write


def _json_line(record: Any) -> bytes:
    line = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    return msgspec.json.encode(line) + b"\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


if __name__ == "__main__":
    main(*sys.argv[1:])
