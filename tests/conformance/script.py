"""Conformance scripts: requests of several clients to one group, one request a line.

A file holds cases. A case is a line `== its name`, lines `key: value`, and steps:

    == a new dynamic member gets its id first
    rows: J5 J7 N5 E4
    for: 4-9
    A join.{v}
    A join.{v}

`acl` lines are its ACLs (see `acls.py`); then `servers` is `secured`. With `totals: yes` assignments are
compared by their sizes over all topics. With `plays: 5` Kafka plays it so often (see `Case`). Topics are
those of `told.TOPICS`; `~x` is a topic of the case, which it makes.

`for` plays the case once for each version and replaces `{v}` by the version, and `{e}` by the version of
EndTxn that a client with version `{v}` of TxnOffsetCommit sends. A step is a client, an api with
a version (by default the newest) and `name=value` options (see `requests.py`). A step waits for its answer,
with these exceptions:

- a step with `&` at its end waits only until the server has processed the request;
- a step with `?` at its end does the same, and also takes an answer that comes at once;
- a step with `+` at its end does not wait at all, and the client's next request follows on the same
  connection, whether or not the step is answered by then;
- a step with `until=X` repeats the request until X is the answer's error or member epoch, the group's state,
  the number of groups, a config's value, `2 topics`: so many topics are assigned, `2 partitions`: so many
  have an offset in a share group, or `risen`: the member epoch is greater than before the step.

`A answer` waits for the answer to A's last request with `&`, `?` or `+`. `A parked` records whether that
answer has come. `A gone` closes A's connections. A client whose last request is unanswered sends its next
request over a further connection, unless that last request has a `+`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

FOLDER = Path(__file__).parent / "scripts"
_MARK = "== "
_VERSION, _END_VERSION = "{v}", "{e}"
# KIP-890: TxnOffsetCommit v5 and EndTxn v5 belong together.
_FIRST_OF_TV2, _END_OF_TV1, _END_OF_TV2 = 5, "4", "5"
_QUICK_STEPS = 6
_NOTES = ("answer", "parked", "gone")
_OF_SHARE_GROUPS = ("share", "sharers", "offsets", "reset", "clear")


class Mode(Enum):
    """How long a step waits for its answer."""

    ANSWER = ""
    TAKEN_UP = "&"
    SETTLED = "?"
    PIPELINED = "+"


@dataclass(frozen=True)
class Step:
    """One line of a script. `version` None stands for the api's newest version; `text` is the line itself."""

    client: str
    api: str
    version: int | None
    options: Mapping[str, str]
    mode: Mode
    text: str

    @property
    def is_request(self) -> bool:
        """Return True if the step sends a request."""
        return self.api not in _NOTES

    @property
    def is_relative(self) -> bool:
        """Return True if the step names partitions by what the client was assigned, such as `trips:mine`."""
        entries = self.options.get("topics", "").split(",")
        return any(parts[1][:1].isalpha() for entry in entries if len(parts := entry.split(":")) > 1)

    @classmethod
    def parse(cls, line: str) -> "Step":
        """Read a line. Raises ValueError if the line is malformed."""
        words = shlex.split(line)
        mode = Mode.ANSWER
        if words[-1] in (Mode.TAKEN_UP.value, Mode.SETTLED.value, Mode.PIPELINED.value):
            mode = Mode(words.pop())
        client, api, *rest = words
        name, _, version = api.partition(".")
        options = {key: value for key, _, value in (word.partition("=") for word in rest)}
        return cls(client, name, int(version) if version else None, options, mode, line)


@dataclass(frozen=True)
class Case:
    """A script at one version.

    `version` is None for a script without versions. `rows` are the rows of docs/rules.md that the case was
    written for. `servers` names its settings in `servers.SETTINGS`. A `slow` case waits for a deadline. A
    `quick` case is short, is not slow and has its script's newest version. With `totals` assignments are
    compared by their sizes over all topics, with `loose` by how evenly ShareGroupDescribe shows them to be
    dealt. Kafka plays the case `kafkas_plays` times, with other member ids each time, and only what it
    answers in all of them is compared.
    """

    name: str
    steps: tuple[Step, ...]
    version: int | None = None
    rows: tuple[str, ...] = ()
    servers: str = "plain"
    slow: bool = False
    quick: bool = False
    acls: tuple[str, ...] = ()
    totals: bool = False
    loose: bool = False
    kafkas_plays: int = 1

    @property
    def is_about_shares(self) -> bool:
        """Return True if the case has requests of share groups."""
        return any(step.api in _OF_SHARE_GROUPS for step in self.steps)

    @property
    def title(self) -> str:
        """The name, with the version if the script has versions."""
        return self.name if self.version is None else f"{self.name} [v{self.version}]"


def load(folder: Path = FOLDER) -> list[Case]:
    """Return all cases of a folder, in the order of its files. Raises ValueError on equal titles."""
    cases = [case for path in sorted(folder.glob("*.txt")) for case in parse(path.read_text())]
    titles = [case.title for case in cases]
    twice = {title for title in titles if titles.count(title) > 1}
    if twice:
        raise ValueError(f"two cases have the same name: {', '.join(sorted(twice))}")
    return cases


def parse(text: str) -> Iterator[Case]:
    """Yield the cases of a file, each script once for each of its versions."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            blocks.append([line.removeprefix(_MARK)])
        elif line and not line.startswith("#"):
            blocks[-1].append(line)
    for name, *lines in blocks:
        yield from _cases(name, lines)


def _cases(name: str, lines: list[str]) -> Iterator[Case]:
    heads: dict[str, str] = {}
    acls = []
    while lines and ": " in lines[0]:
        key, _, value = lines.pop(0).partition(": ")
        if key == "acl":
            acls.append(value)
        else:
            heads[key] = value
    versions = _versions(heads.get("for", ""))
    for version in versions:
        is_tv2 = version is not None and version >= _FIRST_OF_TV2
        end = _END_OF_TV2 if is_tv2 else _END_OF_TV1
        steps = tuple(
            Step.parse(line.replace(_VERSION, str(version)).replace(_END_VERSION, end)) for line in lines
        )
        yield Case(
            name=name,
            version=version,
            rows=tuple(heads.get("rows", "").split()),
            servers=heads.get("servers", "secured" if acls else "plain"),
            slow=heads.get("slow") == "yes",
            quick=version == versions[-1] and heads.get("slow") != "yes" and len(steps) <= _QUICK_STEPS,
            steps=steps,
            acls=tuple(acls),
            totals=heads.get("totals") == "yes",
            kafkas_plays=int(heads.get("plays", "1")),
        )


def _versions(text: str) -> list[int | None]:
    if not text:
        return [None]
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))
