"""The actions of a script on a group, and its members' observations. Times are in ms since the epoch."""

from msgspec import Struct, field

from kafka_why.why.model import CauseKind


class Seen(Struct, frozen=True):
    """An event that a member has printed: see `tests.observed.clients`."""

    client_id: str
    at_ms: int
    event: str
    words: tuple[str, ...]


class Step(Struct, kw_only=True):
    """What was done between `began_ms` and `ended_ms`, when all was quiet again.

    `causes` are what a report may name as the cause of its rebalances besides "a member joined again", with
    the client ids that it may be about. There are none if the step is no rebalance. `may_rest`: a step that
    was no rebalance is right as well. `gone_how` is `left` or `expired`. `commits_ms` are the last commits of
    those that went. `held` is what each member had at the end: partitions as TOPIC:NUMBER, or tasks.
    """

    action: str
    causes: dict[CauseKind, set[str]]
    may_rest: bool = False
    gone_how: str | None = None
    commits_ms: dict[str, int | None] = field(default_factory=dict)
    began_ms: int = 0
    ended_ms: int = 0
    held: dict[str, list[str]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)


class Truth(Struct, kw_only=True):
    """A group's life. `instances` are the instance ids by client id. `offsets` are what is committed at the
    end, by TOPIC:NUMBER. `is_deleted`: the group was deleted at the end. `protocol` is the group's type,
    `assignor` what its members agree on.
    """

    story: str
    clients: str
    group_id: str
    protocol: str
    assignor: str | None
    instances: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    never_committed: dict[str, int] = field(default_factory=dict)
    is_deleted: bool = False

    @property
    def middle_ms(self) -> int:
        """The middle of the time that was played."""
        return (self.steps[0].began_ms + self.steps[-1].ended_ms) // 2
