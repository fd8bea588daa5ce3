"""Plays all conformance cases at both coordinators; `--write` writes docs/conformance.md.

`--kafka 4.3` plays the cases of share groups beside that version, `--beside 4.4` at a second broker in the
place of this coordinator: a difference of Kafka from itself would be one that the comparison makes.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.conformance.compare import differences, unkept, unused
from tests.conformance.kept import KEPT, KEPT_OF, NOT_REACHED, Kept
from tests.conformance.random_consumers import random_consumers
from tests.conformance.random_scripts import random_case
from tests.conformance.random_shares import random_shares
from tests.conformance.random_streams import random_streams
from tests.conformance.requests import NEWEST
from tests.conformance.script import Case, load
from tests.conformance.servers import (
    NEWEST_KAFKA,
    SECURED,
    SETTINGS,
    VERSIONS,
    Played,
    Servers,
    running,
    two_brokers,
)
from tests.harness import form
from tests.harness.scenario import rules_of

RANDOM_SCRIPTS = 60
# So often a case that differs is played again.
REPLAYS = 2
# So often Kafka plays it then, if it plays it more than once: a rarer outcome of its own needs more plays.
KAFKAS_PLAYS_AGAIN = 20
_ROOT = Path(__file__).parents[2]
_REPORT = _ROOT / "docs" / "conformance.md"
_NAMES = {
    "add": "AddOffsetsToTxn",
    "beat": "ConsumerGroupHeartbeat",
    "begin": "InitProducerId",
    "clear": "DeleteShareGroupOffsets",
    "commit": "OffsetCommit",
    "configs": "DescribeConfigs",
    "configure": "IncrementalAlterConfigs",
    "delete": "DeleteGroups",
    "describe": "DescribeGroups",
    "drop": "DeleteTopics",
    "end": "EndTxn",
    "fetch": "OffsetFetch",
    "find": "FindCoordinator",
    "forget": "OffsetDelete",
    "grow": "CreatePartitions",
    "heartbeat": "Heartbeat",
    "inspect": "ConsumerGroupDescribe",
    "join": "JoinGroup",
    "leave": "LeaveGroup",
    "list": "ListGroups",
    "make": "CreateTopics",
    "offsets": "DescribeShareGroupOffsets",
    "reset": "AlterShareGroupOffsets",
    "share": "ShareGroupHeartbeat",
    "sharers": "ShareGroupDescribe",
    "stream": "StreamsGroupHeartbeat",
    "sync": "SyncGroup",
    "tasks": "StreamsGroupDescribe",
    "txn": "TxnOffsetCommit",
}

_HEAD = """\
# Conformance with Kafka's coordinator

<!-- written by `make conformance` -->

*For those who have to trust the coordinator, or who change its rules.*

The tests send the same scripts of requests over the wire to two coordinators under the same settings: a real
broker's own coordinator (Apache Kafka 4.4), and this one through the gateway. Several clients take part in
each script. A request that one side parks has to be parked by the other side, too. All answers are compared
field by field, and each answer has to be exactly the bytes that its fields encode to.

Not compared are the random part of member ids, producer ids, the texts of errors of consumer groups, the
order of members, groups and OffsetFetch results, which Kafka keeps in hash maps, and which of several equal
partitions a member of a consumer group gets: the numbers of partitions are compared, and that no two members
have one. A script waits for what each side does in its own time: the initialization of share partitions, the
effect of requests on ListGroups, and the end of pending offsets after EndTxn.

The scripts are in `tests/conformance/scripts`. A case is a script at one version of the api under test. In a
random script several clients send random requests at random versions to a classic group, a group of the
consumer protocol, a share group whose topic is made, enlarged and deleted, or a streams group; both sides get
the same steps. In random scripts of share groups it is compared how evenly partitions are dealt, not who has
how many. Tasks of streams groups are compared by their numbers in each subtopology.

`python -m tests.conformance.report --kafka 4.3` plays the cases of share groups beside Kafka 4.3: of 127
cases 95 agreed in all, and 32 had kept differences only. `--beside 4.4` plays them at two brokers, without
this coordinator: the two have to agree.
"""


def play_all(cases: Sequence[Case], version: str = NEWEST_KAFKA) -> list[Played]:
    """Play the cases on servers with the settings they name, beside Kafka of this version."""
    played = []
    for name, settings in SETTINGS.items():
        of_these = [case for case in cases if case.servers == name]
        if not of_these:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            running(Path(folder), settings, secured=name == SECURED, version=version) as servers,
        ):
            played += _settled(servers, servers.play(of_these), _kept_of(version))
    return played


def play_beside(cases: Sequence[Case], version: str, other: str) -> list[Played]:
    """Play the cases that need no users at two brokers of these versions of Kafka."""
    played = []
    for name, settings in SETTINGS.items():
        of_these = [case for case in cases if case.servers == name]
        if not of_these or name == SECURED:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            two_brokers(Path(folder), settings, version, other) as servers,
        ):
            keeps = () if version == other else KEPT_OF[version]
            played += _settled(servers, servers.play(of_these), keeps)
    return played


def _kept_of(version: str) -> tuple[Kept, ...]:
    return (*KEPT, *KEPT_OF.get(version, ()))


def _settled(servers: Servers, played: Sequence[Played], keeps: Sequence[Kept]) -> list[Played]:
    """Play the cases with an unkept difference again. A difference that does not repeat is one of timing: two
    live systems run side by side, and a machine that is busy may let a session of one of them expire. Or
    Kafka's plays of the case agreed by chance, although its outcome depends on the order of a hash map.
    """
    settled = list(played)
    for _ in range(REPLAYS):
        places = [place for place, one in enumerate(settled) if unkept([one], keeps)]
        if not places:
            break
        again = servers.play([_again(settled[place].case) for place in places])
        by_case = {(one.case.name, one.case.version): one for one in again}
        for place in places:
            before = settled[place]
            settled[place] = by_case[before.case.name, before.case.version]
            for found in unkept([before], keeps):
                sys.stdout.write(f"played again because of: {found}\n")
    return settled


def _again(case: Case) -> Case:
    return replace(case, kafkas_plays=KAFKAS_PLAYS_AGAIN) if case.kafkas_plays > 1 else case


def report(played: Sequence[Played]) -> str:
    """Return the text of docs/conformance.md."""
    parts = [_outcome(played, KEPT), _kept(played), _apis(played), _rows(played)]
    return "\n".join([_HEAD, *("\n".join([*part, ""]) for part in parts)])


def _outcome(played: Sequence[Played], keeps: Sequence[Kept]) -> Iterator[str]:
    differing = [one for one in played if differences(one)]
    steps = sum(step.is_request for one in played for step in one.case.steps)
    yield "## Outcome\n"
    yield "| cases | requests | agree in all | with kept differences only | with others |"
    yield "|---|---|---|---|---|"
    others = sum(any(found.kept(keeps) is None for found in differences(one)) for one in differing)
    agree = len(played) - len(differing)
    yield f"| {len(played)} | {steps} | {agree} | {len(differing) - others} | {others} |"


def _kept(played: Sequence[Played]) -> Iterator[str]:
    shown = Counter(
        kept
        for one in played
        for kept in {found.kept(KEPT) for found in differences(one)}
        if kept is not None
    )
    yield "## Differences that are kept\n"
    yield "| difference | cases | reason |"
    yield "|---|---|---|"
    for kept in KEPT:
        yield f"| {kept.what} | {shown[kept]} | {kept.reason} |"
    if wrong := unkept(played, KEPT):
        yield "\n## Differences that are not kept\n"
        for found in wrong:
            yield f"- {found.case}, `{found.step}`, {found.path}: Kafka {found.kafkas}, here {found.ours}"


def _apis(played: Sequence[Played]) -> Iterator[str]:
    counts_of: dict[str, Counter[int]] = {api: Counter() for api in _NAMES}
    for one in played:
        for step in one.case.steps:
            if step.is_request:
                newest = NEWEST[step.api][1]
                counts_of[step.api][newest if step.version is None else step.version] += 1
    yield "## Requests by api and version\n"
    width = max(max(versions, default=0) for versions in counts_of.values()) + 1
    yield "| api | " + " | ".join(f"v{version}" for version in range(width)) + " |"
    yield "|---" * (width + 1) + "|"
    for api, versions in sorted(counts_of.items(), key=lambda item: _NAMES[item[0]]):
        counts = " | ".join(str(versions[version] or "") for version in range(width))
        yield f"| {_NAMES[api]} | {counts} |"


def _rows(played: Sequence[Played]) -> Iterator[str]:
    """Yield the cases that reach each row of the rules, or the reason why none does."""
    yield "## Rows of the rules\n"
    yield "A case reaches a row if it was written for the row, or if its answers or history name the row.\n"
    yield "| row | cases |"
    yield "|---|---|"
    for row in rules_of("rules", "rules-consumer", "rules-share", "rules-streams"):
        cases = [one.case for one in played if row in one.case.rows or row in one.rules]
        yield f"| {row} | {_cases(cases) if cases else NOT_REACHED.get(row, 'not reached')} |"


def _cases(cases: Sequence[Case]) -> str:
    names = list(dict.fromkeys(case.name for case in cases if not case.name.startswith("random")))
    shown = "; ".join(names[:2]) or "random scripts"
    more = f"; and {len(cases) - 2} more" if len(cases) > 2 else ""
    return f"{shown}{more}"


def _that_may_differ(cases: Sequence[Case]) -> list[Case]:
    """Return the cases to play without a replica: each script at its newest version, on the servers without
    users and without an initial delay.

    Versions and ACLs are the gateway's matter, and the rules are the core's. A replica's answers are compared
    with the query's wherever one runs. Without one answers come later, with their batch, as sessions end.
    """
    newest = {case.name: case for case in cases if case.servers == "plain"}
    return list(newest.values())


def main() -> None:
    """Play all cases. Exits with 1 on an unkept difference, and on a kept one that did not occur."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--random", type=int, default=RANDOM_SCRIPTS, help="random scripts: the seeds below")
    parser.add_argument("--pure", action="store_true", help="the coordinator runs without a replica")
    parser.add_argument("--write", action="store_true", help="write docs/conformance.md")
    parser.add_argument("--shares", action="store_true", help="the cases of share groups only")
    parser.add_argument("--kafka", choices=VERSIONS, default=NEWEST_KAFKA, help="Kafka's version")
    parser.add_argument("--beside", choices=VERSIONS, help="another broker in the place of this coordinator")
    given = parser.parse_args()
    form.has_replica = not given.pure
    seeds = range(given.random)
    of_seeds = (random_case, random_consumers, random_shares, random_streams)
    cases = [*load(), *(case for make in of_seeds for case in map(make, seeds))]
    is_whole = not given.shares and given.kafka == NEWEST_KAFKA and given.beside is None
    if given.pure:
        cases, is_whole = _that_may_differ(cases), False
    elif not is_whole:
        cases = [case for case in cases if case.is_about_shares]
    if given.beside is None:
        played, keeps = play_all(cases, given.kafka), _kept_of(given.kafka)
    else:
        played = play_beside(cases, given.kafka, given.beside)
        keeps = () if given.kafka == given.beside else KEPT_OF[given.kafka]
    if given.write:
        _REPORT.write_text(report(played))
    sys.stdout.write(
        "\n".join([*_outcome(played, keeps), f"random scripts: seeds 0 to {given.random - 1}", ""])
    )
    found, gone = unkept(played, keeps), unused(played, keeps) if is_whole else []
    for line in [*map(str, found), *(f"a kept difference did not occur: {kept}" for kept in gone)]:
        sys.stderr.write(f"{line}\n")
    sys.exit(1 if found or gone else 0)


if __name__ == "__main__":
    main()
