"""Searches for secrets wherever a coordinator leaves data: files, processes, topics, and Spark's UI."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafka_why.connections.client_config import ClientConfig
from kafka_why.topic_reader import TopicReader
from tests.e2e.harness import child_pids

_LINK = re.compile(rb"""(?:href|src)=["']([^"'#]+)["']""")
_TIMEOUT_S = 30
# Files without texts of ours: images, scripts, styles.
_SKIPPED = (".png", ".js", ".css", ".ico", ".gif", ".svg", "/kill/", "/downloads/")
_REST = (
    "environment",
    "jobs",
    "stages",
    "stages?details=true",
    "executors",
    "allexecutors",
    "sql?details=true&planDescription=true&length=20",
    "storage/rdd",
    "streaming/statistics",
)


def forms_of(secret: str) -> list[bytes]:
    """Return the encodings in which a secret may appear."""
    quoted = secret.replace("\\", "\\\\").replace('"', '\\"')
    texts = {secret, quoted, json.dumps(secret)[1:-1], urllib.parse.quote(secret), json.dumps(quoted)[1:-1]}
    return [text.encode() for text in texts]


def found_in(content: bytes, secrets: Iterable[str]) -> list[str]:
    return [secret for secret in secrets if any(form in content for form in forms_of(secret))]


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file under a folder, with its content. Files that vanish meanwhile are omitted."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                yield str(path), path.read_bytes()
        except OSError:
            continue


def command_lines(pid: int) -> Iterator[tuple[str, bytes]]:
    """Yield the command line of a process and of all below it."""
    try:
        yield f"command line of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return
    for child in child_pids(pid):
        yield from command_lines(child)


def topic_records(client_config: ClientConfig, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the content of each record of these topics."""
    with TopicReader(client_config) as reader:
        for name in names:
            for record in reader.read_all(name):
                yield f"topic {name}", b"\n".join((record.key or b"", record.value or b""))


def pages(start: str, alike: int = 3) -> Iterator[tuple[str, bytes]]:
    """Yield each page of the server that links lead to from `start`, and each page of Spark's REST API. Of
    pages that differ only in their query, such as those of jobs, only `alike` are read.
    """
    host = urllib.parse.urlsplit(start).netloc
    to_read, seen = [start], {start}
    read_count: Counter[str] = Counter()
    for application in json.loads(_read(f"{start}/api/v1/applications")):
        to_read += [f"{start}/api/v1/applications/{application['id']}/{resource}" for resource in _REST]
    while to_read:
        page = to_read.pop(0)
        path = urllib.parse.urlsplit(page).path.rstrip("/")
        if read_count[path] == alike:
            continue
        read_count[path] += 1
        try:
            content = _read(page)
        except OSError:  # it went away, or is empty
            continue
        yield page, content
        for link in _LINK.findall(content):
            url = urllib.parse.urljoin(page, link.decode().replace("&amp;", "&"))
            is_ours = urllib.parse.urlsplit(url).netloc == host
            if is_ours and url not in seen and not any(skipped in url for skipped in _SKIPPED):
                seen.add(url)
                to_read.append(url)


def page(url: str) -> Iterator[tuple[str, bytes]]:
    yield url, _read(url)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content
