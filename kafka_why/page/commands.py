"""The commands of the coordinator that say more about a rebalance, as a reader types them in a terminal."""

import re
import shlex

from kafka_why.page.words import iso
from kafka_why.why.model import Rebalance

_SILENCE = re.compile(r"session timeout of (\d+) ms")
_COOPERATIVE = "cooperative-sticky"


def commands_about(group_id: str, rebalance: Rebalance) -> list[str]:
    """Return `whatif` with the settings that a reader of this rebalance would try first, and `replay` of its
    moment.
    """
    tried = [f"--try={text}" for text in tries_for(rebalance)]
    moment = ["--from-topic", f"--group={group_id}", f"--at={iso(rebalance.began_ms)}"]
    commands = ["whatif", *tried, "--", group_id], ["replay", *moment]
    return [shlex.join(["group-coordinator", *command]) for command in commands]


def tries_for(rebalance: Rebalance) -> list[str]:
    """Return twice the session timeout of a silent member, static membership and `cooperative-sticky`."""
    silences = (_SILENCE.search(removed.reason) for removed in rebalance.removed)
    longest_ms = max((int(silence[1]) for silence in silences if silence), default=0)
    tries = [f"session.timeout.ms={2 * longest_ms}"] if longest_ms else []
    tries.append("group.instance.id=client.id")
    if rebalance.protocol_name != _COOPERATIVE:
        tries.append(f"partition.assignment.strategy={_COOPERATIVE}")
    return tries
