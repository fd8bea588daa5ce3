"""Links between the project's own pages: every file is there, and every anchor is a heading of its page."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n)+")
CODE = re.compile(r"`[^`\n]+`")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
NAMED = re.compile(r"""(docs/[\w-]+\.md),\s+(?:#\s+)?(["'])(.+?)\2""")
"""How code names a section: the page, and the heading in quotes."""
BETWEEN_STRINGS = re.compile(r'"\s*\n\s*f?"')
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)


def without_blocks(text: str) -> str:
    return INDENTED.sub("\n", FENCED.sub("", text))


def links(text: str) -> Iterator[str]:
    """The targets of the links that lead to the project's own files."""
    for target in LINK.findall(CODE.sub("", without_blocks(text))):
        if not ELSEWHERE.match(target):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings: lower case, no punctuation, hyphens for spaces, a number
    behind one that was there before.
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


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.deploy.test_docs.ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# Spark's `JVM` (4.2)\n\n## Twice\n\n## Twice\n\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    good = ["there.md", "there.md#sparks-jvm-42", "there.md#twice", "there.md#twice-1", "#here"]
    bad = ["absent.md", "there.md#twice-2", "there.md#code", "#elsewhere", "../outside.md"]
    (tmp_path.parent / "outside.md").write_text("# Outside\n")
    lines = [f"[a]({target})" for target in [*good, *bad, "https://example.org/#any"]]
    page.write_text("# Here\n\n" + "\n".join(lines) + "\n\n    [code](absent.md)\n\n`[code](absent.md)`\n")
    assert dead(page) == bad
