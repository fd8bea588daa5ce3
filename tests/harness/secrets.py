"""Looks for secrets wherever a coordinator leaves something: files, processes, topics, Spark's UI."""

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
# What has no text of ours: images, scripts, styles.
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
    """Return the texts under which a secret may stand somewhere."""
    quoted = secret.replace("\\", "\\\\").replace('"', '\\"')
    texts = {secret, quoted, json.dumps(secret)[1:-1], urllib.parse.quote(secret), json.dumps(quoted)[1:-1]}
    return [text.encode() for text in texts]


def found_in(content: bytes, secrets: Iterable[str]) -> list[str]:
    return [secret for secret in secrets if any(form in content for form in forms_of(secret))]


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file under a folder, with its content. Files that go away meanwhile are left out."""
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


def topics(client_config: ClientConfig, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each record of these topics."""
    with TopicReader(client_config) as reader:
        for name in names:
            for record in reader.read_all(name):
                yield f"topic {name}", b"\n".join((record.key or b"", record.value or b""))


def pages(start: str, alike: int = 3) -> Iterator[tuple[str, bytes]]:
    """Each page that links lead to from this one, on the same server, and Spark's REST API. Of pages that
    differ in their query only, as those of the jobs, `alike` are read.
    """
    host = urllib.parse.urlsplit(start).netloc
    waiting, seen = [start], {start}
    read: Counter[str] = Counter()
    for application in json.loads(_read(f"{start}/api/v1/applications")):
        waiting += [f"{start}/api/v1/applications/{application['id']}/{what}" for what in _REST]
    while waiting:
        page = waiting.pop(0)
        path = urllib.parse.urlsplit(page).path.rstrip("/")
        if read[path] == alike:
            continue
        read[path] += 1
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
                waiting.append(url)


def page(url: str) -> Iterator[tuple[str, bytes]]:
    yield url, _read(url)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content
