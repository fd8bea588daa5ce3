"""The process of the replica, a child of the service (`streaming.replica.terms`). It ends with its
standard input, so it does not outlive the service.
"""

import gc
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from kafka_why.contract.service import ReplicaPhase
from streaming.query.handling import OperatorError
from streaming.replica.follower import ReplicaFailed, RequestsFollower
from streaming.replica.state_machine import InDoubt, StateMachine
from streaming.replica.terms import (
    BatchCommitted,
    FromReplica,
    ReplicaReport,
    ReplicaSeed,
    StartReplica,
    decode_command,
    decode_start,
    encode_line,
    take_seed,
    terms_after_promotion,
    terms_at_start,
)

_REPORT_INTERVAL_S = 0.2
# The time for which one thread may hold the interpreter lock, so that an answer does not wait for the audit.
_SWITCH_INTERVAL_S = 0.0005
# A request's objects live either briefly or long, so garbage collections can be rare.
_GC_THRESHOLDS = (50_000, 20, 1_000)

_send_lock = threading.Lock()


def main() -> None:
    """Run the replica until the service ends it."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    start = decode_start(sys.stdin.buffer.readline())
    _send(ReplicaReport(phase=ReplicaPhase.SEEDING, reason="it is reading its seed"))
    seed = take_seed(Path(start.seed))
    follower = RequestsFollower(
        start.client_config,
        start.layout,
        start.replica,
        StateMachine(terms_at_start(start, seed), seed),
        topic_id=seed.identity.requests_topic_id,
        is_standby=start.is_standby,
        notify=_send,
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    commands = (follower, start, seed)
    threading.Thread(target=_obey_commands, args=commands, name="commands", daemon=True).start()
    threading.Thread(target=_report_forever, args=(follower,), name="report", daemon=True).start()
    try:
        follower.run()
        last_report = follower.report()
    except (InDoubt, OperatorError, ReplicaFailed) as error:
        last_report = msgspec.structs.replace(follower.report(), reason=str(error))
    _send(msgspec.structs.replace(last_report, phase=ReplicaPhase.ENDED))


def _obey_commands(follower: RequestsFollower, start: StartReplica, seed: ReplicaSeed) -> None:
    """Read the service's messages from standard input until it is closed, and then stop the follower."""
    for text in sys.stdin.buffer:
        command = decode_command(text)
        if isinstance(command, BatchCommitted):
            follower.committed(command)
            continue
        follower.promote(command.replica, terms_after_promotion(start, seed, command), command.handled)
    follower.stop()


def _report_forever(follower: RequestsFollower) -> None:
    never_set = threading.Event()
    while True:
        _send(follower.report())
        never_set.wait(_REPORT_INTERVAL_S)


def _send(message: FromReplica) -> None:
    """Write a message, which is lost if the service has ended. This process then ends, too."""
    with _send_lock, suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), encode_line(message))


def write_traceback() -> None:
    """Write the current traceback to stderr, with quoted text escaped, because stderr may be a terminal."""
    lines = traceback.format_exc().splitlines()
    sys.stderr.write("".join(f"{ascii(line)[1:-1]}\n" for line in lines))


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - it ends the process
        write_traceback()
        os._exit(1)
    # Python itself would end with an error, because a thread still reads standard input.
    os._exit(0)
