"""A consumer of the demo: a plain kafka-python consumer that knows only the gateway.

    python -m cli.demo.consumer GATEWAY GROUP TOPIC CLIENT_ID CONSUMED

It writes each record to the file CONSUMED, then commits its offset. On SIGTERM it leaves the group.
"""

import logging
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError, KafkaError

from cli.consumed import line_writer

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
    """Commit the processed records.

    After a failed commit a later commit covers them, or the partition's next owner reads them again.
    """
    try:
        consumer.commit(timeout_ms=COMMIT_TIMEOUT_MS)
    except KafkaError as error:
        log.warning("not committed: %r", error)


if __name__ == "__main__":
    main(*sys.argv[1:])
