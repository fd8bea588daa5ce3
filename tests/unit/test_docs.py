"""The documentation: links, names, commands, tables and printed examples agree with the code. Prose is free.

`--rewrite` writes the printed examples again.
"""

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from itertools import chain
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from cli import main
from gateway.metrics.numbers import FAMILIES, Family
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES
from kafka_why.connections.client_config import SETTINGS
from kafka_why.why.report import report
from kafka_why.why.rocketmq.changes import report as rocketmq_report
from kafka_why.why.rocketmq.text import report_text as rocketmq_report_text
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from operations.replay.recording import RecordingFile
from operations.whatif.changes import parse_changes
from operations.whatif.run import log_of
from operations.whatif.text import answer, answer_text
from tests.harness import scraped
from tests.harness.histories import Recorder
from tests.unit.kafka_why import why_story
from tests.unit.state import rocketmq_story

ROOT = Path(__file__).parents[2]
GUIDES = [
    ROOT / "README.md",
    ROOT / "kafka_why" / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
"""The pages that describe the project as it is now, unlike records of decisions and changes."""
PAGES = [*GUIDES, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n)+")
CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
NAMED = re.compile(r"""(docs/[\w-]+\.md),\s+(?:#\s+)?(["'])(.+?)\2""")
"""How code names a section: the page, and the heading in quotes."""
BETWEEN_STRINGS = re.compile(r'"\s*\n\s*f?"')
REPOSITORY_PATH = re.compile(
    r"`((?:assignors|bench|checkpoints|cli|clients|deploy|docs|embedded|gateway|kafka_why|operations|records"
    r"|state|streaming|tests)/[\w./*-]*\w)[/`]"
)
TEST_NAME = re.compile(r"\btest_\w+\b(?![*])")
COMMAND_LINE = re.compile(r"(?:group-coordinator|kafka-why) ([a-z](?:[^`\n#]|\n {11,})*)")
OPTION = re.compile(r"(?<![\w/-])--?[a-zA-Z][\w-]*")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)


def without_blocks(text: str) -> str:
    return INDENTED.sub("\n", FENCED.sub("", text))


def links(text: str) -> Iterator[str]:
    """Yield the targets of the links that lead to the project's own files."""
    for target in LINK.findall(CODE.sub("", without_blocks(text))):
        if not ELSEWHERE.match(target):
            yield target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of headings: lower case, no punctuation, hyphens for spaces, a
    number behind one that was there before.
    """
    made: dict[str, int] = {}
    found = set()
    for heading in HEADING.findall(without_blocks(text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{anchor}-{made[anchor]}" if anchor in made else anchor)
        made[anchor] = made.get(anchor, 0) + 1
    return found


def dead(page: Path) -> list[str]:
    return [target for target in links(page.read_text()) if not leads_somewhere(page, target)]


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    there = page.parent / path if path else page
    if not there.exists() or not there.resolve().is_relative_to(ROOT):
        return False
    return not anchor or (there.suffix == ".md" and anchor in anchors(there.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert dead(page) == []


def named_sections() -> Iterator[tuple[str, str, str]]:
    listing = ["git", "ls-files", "*.py", "*.yml", "*.yaml", "Makefile", "deploy"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: no list of the project's files")
    for name in listed.stdout.splitlines():
        for page, _, heading in NAMED.findall(BETWEEN_STRINGS.sub("", (ROOT / name).read_text())):
            yield name, page, heading


def test_messages_and_comments_name_sections_that_exist() -> None:
    named = list(named_sections())
    assert ("checkpoints/checkpoint.py", "docs/recovery.md", "Moving the state") in named
    assert [one for one in named if one[2] not in HEADING.findall((ROOT / one[1]).read_text())] == []


def test_dead_links_and_dead_anchors_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_docs.ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# Spark's `JVM` (4.2)\n\n## Twice\n\n## Twice\n\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    good = ["there.md", "there.md#sparks-jvm-42", "there.md#twice", "there.md#twice-1", "#here"]
    bad = ["absent.md", "there.md#twice-2", "there.md#code", "#elsewhere", "../outside.md"]
    (tmp_path.parent / "outside.md").write_text("# Outside\n")
    lines = [f"[a]({target})" for target in [*good, *bad, "https://example.org/#any"]]
    page.write_text("# Here\n\n" + "\n".join(lines) + "\n\n    [code](absent.md)\n\n`[code](absent.md)`\n")
    assert dead(page) == bad


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_tests_that_a_page_names_exist(page: Path, names_of_tests: set[str]) -> None:
    text = page.read_text()
    assert [path for path in REPOSITORY_PATH.findall(text) if not any(ROOT.glob(path))] == []
    assert set(TEST_NAME.findall(text)) - names_of_tests == set()


def test_test_shown_on_a_page_exists_among_the_tests() -> None:
    shown = re.search(r"```python\n(def test_.*?)```", (ROOT / "docs" / "tests.md").read_text(), re.DOTALL)
    assert shown is not None
    assert any(shown[1] in path.read_text() for path in (ROOT / "tests" / "e2e").glob("test_*.py"))


@pytest.fixture(scope="module")
def names_of_tests() -> set[str]:
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = (
        re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE) for path in files
    )
    return {path.stem for path in files}.union(*functions)


def command_lines() -> Iterator[tuple[str, click.Command, str]]:
    """Yield each command line of the guides: the line, its subcommand, and the rest of its words."""
    for page in GUIDES:
        for line in COMMAND_LINE.findall(page.read_text().replace("\\\n", " ")):
            command: click.Command = main
            words = line.split()
            while words and isinstance(command, click.Group):
                found = command.get_command(click.Context(command), words[0])
                if found is None:
                    break
                command, words = found, words[1:]
            yield f"{page.name}: {line}", command, " ".join(words)


def test_command_lines_have_commands_and_options_that_exist() -> None:
    lines = list(command_lines())
    assert len(lines) > 50
    assert [line for line, command, _ in lines if command is main] == []
    for line, command, arguments in lines:
        known = {
            name for p in command.get_params(click.Context(command)) for name in (*p.opts, *p.secondary_opts)
        }
        assert set(OPTION.findall(arguments)) <= known, line


@pytest.mark.parametrize(
    ("page", "name", "expected"),
    [("security.md", r"(?:security|sasl|ssl|https|enable)\.[\w.]+", lambda: set(SETTINGS))],
    ids=["connection-settings"],
)
def test_tables_of_the_docs_list_exactly_the_names_in_the_code(
    page: str, name: str, expected: Callable[[], set[str]]
) -> None:
    cells = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    names = re.compile(rf"(?:\(?(?:librdkafka: )?`{name}(?:{{[^}}]*}})?`[);,]*(?: or| and)* ?)+")
    named = [found for cell in cells if names.fullmatch(cell) for found in re.findall(rf"`({name})", cell)]
    assert sorted(named) == sorted(expected())


def table_of_metrics() -> str:
    """Return the metrics of a scrape as a table: names, labels and help texts."""
    rows = ["| metric | meaning |", "| --- | --- |"]
    for family in sorted(scraped.busy().registry.collect(), key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        rows.append(f"| `{name}{{{','.join(labels)}}}` | {family.documentation} |".replace("{}", ""))
    return "\n".join(rows) + "\n"


CONTRACT = ROOT / "kafka_why" / "contract"
RECORDS = {
    "Of every request and response": ["messages"],
    "Requests": ["kafka/requests", "kafka/share_requests"],
    "Responses": ["kafka/responses"],
    "Views": ["kafka/snapshot"],
    "History": ["kafka/history"],
    "Offsets, transactions, dead letters": ["codec"],
    "Telemetry and deliveries": ["telemetry"],
    "RocketMQ's groups": ["rocketmq/requests", "rocketmq/history"],
}
"""The sections of the page of records, and the modules whose public Structs and enumerations they show."""


Classes = Mapping[str, tuple[list[str], ast.ClassDef]]
"""The lines of a module and a class in it, by the name of the class."""


def shown_fields(lines: list[str], found: ast.ClassDef, classes: Classes) -> list[str]:
    """Return the fields or values of a class, after the fields of its bases that not every message has."""
    fields = []
    for base in found.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in classes and name not in ("Request", "Response", "TypedRequest"):
            fields += shown_fields(*classes[name], classes)
    for field in found.body:
        if isinstance(field, ast.AnnAssign | ast.Assign):
            first = field.lineno - 1
            while lines[first - 1].strip().startswith("#"):  # comments on the field
                first -= 1
            fields += lines[first : field.end_lineno]
    return fields


def shown_class(lines: list[str], found: ast.ClassDef, classes: Classes) -> str:
    """Return a class as the page shows it: its name, its docstring, and its fields or values."""
    shown = [f"### {found.name}", ast.get_docstring(found) or ""]
    if fields := shown_fields(lines, found, classes):
        shown.append("\n".join(fields))
    return "\n\n".join(shown)


def all_records() -> str:
    found: dict[str, list[tuple[list[str], ast.ClassDef]]] = {}
    for module in chain.from_iterable(RECORDS.values()):
        source = (CONTRACT / f"{module}.py").read_text()
        nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
        found[module] = [(source.splitlines(), node) for node in nodes]
    classes = {node.name: (lines, node) for of_module in found.values() for lines, node in of_module}
    parts = []
    for section, modules in RECORDS.items():
        parts.append(f"## {section}")
        for lines, node in chain.from_iterable(found[module] for module in modules):
            if not node.name.startswith("_"):
                parts.append(shown_class(lines, node, classes))
    return "\n\n".join(parts) + "\n"


def table_of_gateway_metrics(families: Mapping[str, Family]) -> str:
    rows = ["| metric | meaning |", "| --- | --- |"]
    for name, family in families.items():
        total = "_total" if family.kind == "counter" else ""
        rows.append(f"| `{name}{total}{{{','.join(family.labels)}}}` | {family.meaning} |".replace("{}", ""))
    return "\n".join(rows) + "\n"


def tree_of_packages() -> str:
    """Return the packages, those first that import others, with the first sentence of each docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    order = [name for layer in contracts[0]["layers"] for name in layer.split(" | ")]
    lines = []
    for top in order:
        for init in sorted((ROOT / top).rglob("__init__.py"), key=lambda path: path.parent.parts):
            folder = init.parent.relative_to(ROOT)
            docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
            # An installation of kafka_why leaves copies in its folder `build`.
            if "build" not in folder.parts and len(list(init.parent.rglob("*.py"))) > 1:
                sentence = " ".join(re.split(r"(?<=\.)\s|\n\n", docstring)[0].split())
                name = f"{'  ' * (len(folder.parts) - 1)}{folder.name}/"
                lines.append(f"    {name:18} {sentence}")
    return "\n".join(lines) + "\n"


def table_of_alerts() -> str:
    """Return the alerts with the description of each, whose names of pages become links."""
    rows = ["| alert | what to do |", "| --- | --- |"]
    (groups,) = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text()).values()
    for rule in (rule for group in groups for rule in group["rules"]):
        text = re.sub(r"docs/(([\w-]+\.md)[\w#-]*)", r"[\2](\1)", rule["annotations"]["description"])
        rows.append(f"| `{rule['alert']}` | {text} |")
    return "\n".join(rows) + "\n"


def table_of_decisions() -> str:
    rows = ["| number | title | date | superseded in part by |", "| --- | --- | --- | --- |"]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        text = path.read_text()
        number, title = re.findall(r"^# (\d+)\. (.+)$", text, re.MULTILINE)[0]
        date, status = re.findall(r"^Date: ([\d-]+)\. Status: (.+?)\n\n", text, re.MULTILINE | re.DOTALL)[0]
        later = ", ".join(re.findall(r"\[\d+\]\(0[\w-]+\.md\)", status))
        rows.append(f"| {number} | [{title}]({path.name}) | {date} | {later} |")
    return "\n".join(rows) + "\n"


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "metrics": ("metrics.md", table_of_metrics),
    "gateway-metrics": ("metrics.md", lambda: table_of_gateway_metrics(FAMILIES)),
    "rocketmq-gateway-metrics": ("metrics.md", lambda: table_of_gateway_metrics(ROCKETMQ_FAMILIES)),
    "records": ("records.md", all_records),
    "packages": ("architecture.md", tree_of_packages),
    "decisions": ("decisions/README.md", table_of_decisions),
    "alerts": ("watching.md", table_of_alerts),
}
"""For each name of a pair of marks: the page, and the function that writes the text between them."""


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_part_of_a_page_is_what_the_code_says(name: str, request: pytest.FixtureRequest) -> None:
    page, generate = GENERATED[name]
    path, generated = ROOT / "docs" / page, generate()
    between = re.compile(rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)
    if request.config.getoption("rewrite"):
        path.write_text(between.sub(lambda _: generated, path.read_text()))
    assert between.findall(path.read_text()) == [generated]


def test_docs_show_the_checked_order_of_imports() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    shown = " > ".join(contracts[0]["layers"]).replace(" |", ",")
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        assert shown in " ".join((ROOT / page).read_text().split()), page


def printed_by_assign() -> str:
    shown = re.search(
        r"^\$ group-coordinator (assign .*)$", (ROOT / "docs/assign.md").read_text(), re.MULTILINE
    )
    assert shown is not None
    return f"{shown[0]}\n\n{CliRunner().invoke(main, shlex.split(shown[1])).stdout}"


def printed_by_whatif() -> str:
    experiments = (
        "session.timeout.ms=10000",
        "group.instance.id=client.id",
        "partition.assignment.strategy=cooperative-sticky",
    )
    recording = RecordingFile(ROOT / "tests" / "data" / "demo_recording.zst")
    found = answer(log_of(recording, "demo"), [parse_changes([experiment]) for experiment in experiments])
    return f"{answer_text(found, Clock(UTC))}\n"


def printed_by_why(story: Sequence[str], now_ms: int) -> str:
    return f"{report_text(report('g', Recorder().play(*story), now_ms), Clock(UTC))}\n"


def printed_by_why_of_rocketmq() -> str:
    end_ms = rocketmq_story.END_MS
    found = rocketmq_report("g", rocketmq_story.night(), end_ms, since_ms=end_ms - 120_000)
    return f"{rocketmq_report_text(found, Clock(UTC))}\n"


EXAMPLES: dict[str, tuple[str, Callable[[], str]]] = {
    "assign": ("assign.md", printed_by_assign),
    "whatif": ("whatif.md", printed_by_whatif),
    "why": ("why.md", lambda: printed_by_why(why_story.STORY, why_story.END_MS)),
    "why-share": ("why-protocols.md", lambda: printed_by_why(why_story.SHARE_STORY, 25_000)),
    "why-rocketmq": ("why-protocols.md", printed_by_why_of_rocketmq),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_printed_example_is_what_the_command_prints(example: str, request: pytest.FixtureRequest) -> None:
    """The block of the page is the one that begins with the same line."""
    page, printed = ROOT / "docs" / EXAMPLES[example][0], EXAMPLES[example][1]()
    text, first_line = page.read_text(), printed.partition("\n")[0]
    block = re.search(rf"(?<=```text\n){re.escape(first_line)}\n.*?(?=```)", text, re.DOTALL)
    assert block is not None, f"no example begins with {first_line}"
    if request.config.getoption("rewrite"):
        page.write_text(text[: block.start()] + printed + text[block.end() :])
    else:
        assert block[0] == printed
