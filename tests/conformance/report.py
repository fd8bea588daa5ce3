"""Plays everything at both coordinators; `--write` writes docs/conformance.md, for `make conformance`."""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.compare import differences, unkept, unused
from tests.conformance.kept import KEPT, NOT_REACHED
from tests.conformance.random_scripts import random_case
from tests.conformance.requests import NEWEST
from tests.conformance.script import Case, load
from tests.conformance.servers import SETTINGS, Played, running

RANDOM_SCRIPTS = 60
_ROOT = Path(__file__).parents[2]
_REPORT = _ROOT / "docs" / "conformance.md"
_RULES = _ROOT / "docs" / "rules.md"
_ROW = re.compile(r"^\| ([A-Z]\d+) \| .* \| (.*) \|$", re.MULTILINE)
_NAMES = {
    "commit": "OffsetCommit",
    "delete": "DeleteGroups",
    "describe": "DescribeGroups",
    "fetch": "OffsetFetch",
    "forget": "OffsetDelete",
    "heartbeat": "Heartbeat",
    "join": "JoinGroup",
    "leave": "LeaveGroup",
    "list": "ListGroups",
    "sync": "SyncGroup",
}

_HEAD = """\
# Conformance with Kafka's coordinator

<!-- written by `make conformance` -->

The same scripts of requests are sent over the wire to a real broker's own coordinator (Apache Kafka 4.3) and,
through the gateway, to this one, both under the same settings. Several clients take part in each, over
connections of their own; where one side parks a request, the other has to. All that is answered is compared,
field by field, and each answer has to be the very bytes that its fields encode to. Not compared is what
differs by nature: the random part of member ids (their form is compared), and the order of members, of groups
and of what OffsetFetch tells, which Kafka keeps in hash maps.
ListGroups is asked again until it shows what was done before.

The scripts are in `tests/conformance/scripts`; a case is a script at one version of the api it is about. In
random scripts three clients do anything, at any version, step by step the same at both.
"""


def play_all(random_scripts: int = RANDOM_SCRIPTS) -> list[Played]:
    """Every case, each with the servers it needs, and the random scripts of the seeds below a number."""
    cases = [*load(), *map(random_case, range(random_scripts))]
    played = []
    for name, settings in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), settings) as servers:
            played += servers.play([case for case in cases if case.servers == name])
    return played


def report(played: Sequence[Played]) -> str:
    """The text of docs/conformance.md."""
    parts = [_outcome(played), _kept(played), _apis(played), _rows(played)]
    return "\n".join([_HEAD, *("\n".join([*part, ""]) for part in parts)])


def _outcome(played: Sequence[Played]) -> Iterator[str]:
    differing = [one for one in played if differences(one)]
    steps = sum(step.is_request for one in played for step in one.case.steps)
    yield "## Outcome\n"
    yield "| cases | requests | agree in all | with kept differences only | with others |"
    yield "|---|---|---|---|---|"
    others = sum(any(found.kept() is None for found in differences(one)) for one in differing)
    agree = len(played) - len(differing)
    yield f"| {len(played)} | {steps} | {agree} | {len(differing) - others} | {others} |"


def _kept(played: Sequence[Played]) -> Iterator[str]:
    shown = Counter(
        kept for one in played for kept in {found.kept() for found in differences(one)} if kept is not None
    )
    yield "## Differences that are kept\n"
    yield "| difference | cases | reason |"
    yield "|---|---|---|"
    for kept in KEPT:
        yield f"| {kept.what} | {shown[kept]} | {kept.reason} |"
    if wrong := unkept(played):
        yield "\n## Differences that are not\n"
        for found in wrong:
            yield f"- {found.case}, `{found.step}`, {found.path}: Kafka {found.kafkas}, here {found.ours}"


def _apis(played: Sequence[Played]) -> Iterator[str]:
    asked: dict[str, Counter[int]] = {api: Counter() for api in _NAMES}
    for one in played:
        for step in one.case.steps:
            if step.is_request:
                newest = NEWEST[step.api][1]
                asked[step.api][newest if step.version is None else step.version] += 1
    yield "## Requests by api and version\n"
    width = max(max(versions, default=0) for versions in asked.values()) + 1
    yield "| api | " + " | ".join(f"v{version}" for version in range(width)) + " |"
    yield "|---" * (width + 1) + "|"
    for api, versions in sorted(asked.items(), key=lambda item: _NAMES[item[0]]):
        counts = " | ".join(str(versions[version] or "") for version in range(width))
        yield f"| {_NAMES[api]} | {counts} |"


def _rows(played: Sequence[Played]) -> Iterator[str]:
    """Where each row of docs/rules.md is reached, or why it is not."""
    yield "## Rows of the rules\n"
    yield "Cases reach a row that are written for it, or in whose answers or history it is named.\n"
    yield "| row | cases |"
    yield "|---|---|"
    for row, scenario in _ROW.findall(_RULES.read_text()):
        if scenario.startswith("cannot occur"):
            continue
        cases = [one.case for one in played if row in one.case.rows or row in one.rules]
        yield f"| {row} | {_cases(cases) if cases else NOT_REACHED.get(row, 'not reached')} |"


def _cases(cases: Sequence[Case]) -> str:
    names = list(dict.fromkeys(case.name for case in cases if not case.name.startswith("random")))
    shown = "; ".join(names[:2]) or "random scripts"
    more = f"; and {len(cases) - 2} more" if len(cases) > 2 else ""
    return f"{shown}{more}"


def main() -> None:
    """Fails on differences that are not kept, and on kept ones that do not show."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--random", type=int, default=RANDOM_SCRIPTS, help="random scripts: the seeds below")
    parser.add_argument("--write", action="store_true", help="write docs/conformance.md")
    given = parser.parse_args()
    played = play_all(given.random)
    if given.write:
        _REPORT.write_text(report(played))
    sys.stdout.write("\n".join([*_outcome(played), f"random scripts: seeds 0 to {given.random - 1}", ""]))
    found, gone = unkept(played), unused(played)
    for line in [*map(str, found), *(f"does not show: {kept}" for kept in gone)]:
        sys.stderr.write(f"{line}\n")
    sys.exit(1 if found or gone else 0)


if __name__ == "__main__":
    main()
