"""Names of processes and of the clients that they are runs of."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from operations.whatif.facts import Moment
from operations.whatif.observer import Observer


class Name(NamedTuple):
    """The client, and the name of its run: `worker-1`, then `worker-1 (run 2)`."""

    client: str
    key: str


def names_of(observers: Sequence[Observer], ends: Sequence[Moment | None]) -> list[Name]:
    """Return the names of processes in the order of their starts.

    A client is a `group.instance.id`, else a client id on one host. Of processes that ran at the same time,
    each is a client of its own: `worker#2`.
    """
    hosts: dict[str, set[str]] = {}
    for observer in observers:
        hosts.setdefault(observer.client_id, set()).add(observer.client_host)
    free: dict[str, list[tuple[str, Moment | None]]] = {}
    runs: Counter[str] = Counter()
    names = []
    for observer, end in zip(observers, ends, strict=True):
        base = observer.instance_id or observer.client_id or "client"
        if observer.instance_id is None and len(hosts[observer.client_id]) > 1:
            base = f"{base}@{observer.client_host}"
        known = free.setdefault(base, [])
        over = [place for place, (_, ended) in enumerate(known) if ended and ended < observer.first.moment]
        if observer.instance_id is not None and known:
            over = [0]  # a static member: the next process takes its place, whether or not it still runs
        client = known.pop(over[0])[0] if over else f"{base}#{len(known) + 1}" if known else base
        known.append((client, end))
        runs[client] += 1
        names.append(Name(client, client if runs[client] == 1 else f"{client} (run {runs[client]})"))
    return names
