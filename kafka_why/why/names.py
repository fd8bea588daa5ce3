"""Short names for member ids: `worker-1` instead of `worker-1-4f0c9c1e-...`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.model import Rebalance

_UUID = re.compile(r"-([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
# Consumers of the consumer protocol make their ids themselves: a UUID. Kafka's client writes it in the Base64
# of addresses, librdkafka in the common one.
_RANDOM = re.compile(r"[A-Za-z0-9_+/-]{22}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_bare(member_id: MemberId) -> bool:
    """Whether the id is only a UUID, which says nothing of the client."""
    return _RANDOM.fullmatch(member_id) is not None


def clients_of(entries: Iterable[HistoryEntry]) -> dict[MemberId, str]:
    """Return the instance id, else the client id, of the members whose ids are only UUIDs."""
    clients = {
        event.member_id: client
        for event in entries
        if event.member_id is not None and (client := event.group_instance_id or event.client_id)
    }
    return {member_id: client for member_id, client in clients.items() if is_bare(member_id)}


def lasting_name(member_id: MemberId, clients: Mapping[MemberId, str]) -> str:
    """Return what a member is called also after a restart of its client, which gives it another id."""
    return clients[member_id] if member_id in clients else _UUID.sub("", member_id)


def names_in(
    members: Iterable[MemberId], rebalances: Iterable[Rebalance], clients: Mapping[MemberId, str]
) -> "Names":
    """Return names for these members, and for all in these rebalances."""
    ids = set(members)
    for r in rebalances:
        ids.update(r.waited_for, r.members, r.cause.member_ids, r.assignment_bytes or (), r.connect)
        ids.update([joined.member_id for joined in r.joined], [gone.member_id for gone in r.removed])
        ids.update([member.member_id for member in r.moves.members] if r.moves is not None else ())
        ids.update([way.member_id for way in r.progress])
    return Names(ids, clients)


class Names:
    """Short names for the member ids of one group: the client id or instance id without the UUID behind it.

    `clients` are as in `clients_of`. If two ids would get the same name, the first eight characters of
    the UUID are kept.
    """

    def __init__(self, member_ids: Iterable[MemberId], clients: Mapping[MemberId, str] | None = None) -> None:
        ids = sorted(set(member_ids), key=len, reverse=True)
        long = {m: f"{clients[m]}-{m[:8]}" if clients and m in clients else _UUID.sub(r"-\1", m) for m in ids}
        short = {m: lasting_name(m, clients or {}) for m in ids}
        shared = Counter(short.values())
        self._names = {m: short[m] if shared[short[m]] == 1 else long[m] for m in ids}
        self._longest_first = ids

    def of(self, member_id: MemberId) -> str:
        """Return the short name; an unknown id is its own name."""
        return self._names.get(member_id, member_id)

    def put_in(self, text: str) -> str:
        """Return the text with names instead of ids."""
        return self._anywhere.sub(lambda found: self.of(found[0]), text) if self._names else text

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._longest_first)))
