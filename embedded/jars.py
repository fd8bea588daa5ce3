"""The jars of Spark's Kafka connector, the embedded broker, Kafka's Java clients and HDFS, and their paths.

`jars.toml` lists them in sets, with their sizes and SHA-256 sums. A set is downloaded once, checked in full,
and then moved as a whole folder to its place in the cache, so an existing folder is always complete. A jar of
two sets is downloaded once, because Ivy has one cache for all sets.

``python -m embedded.jars`` fetches the sets that the programs need. The sets that only tests use are
fetched on first use. ``--lock`` resolves all sets again and rewrites the checksums.
``--list`` prints the paths of Spark's jars for ``spark-submit --jars``.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from embedded.java import Artifact, IvyFailed, retrieve
from kafka_why.errors import MultilineError


def cache_dir() -> Path:
    """Return the folder for files that can be downloaded again, such as jars. It need not exist.

    ``$SPARK_GROUP_COORDINATOR_CACHE``, else ``$XDG_CACHE_HOME/spark-group-coordinator``, else the same under
    ``~/.cache``.
    """
    if cache := os.environ.get("SPARK_GROUP_COORDINATOR_CACHE"):
        return Path(cache).expanduser()
    # The XDG specification says to ignore a relative path.
    xdg_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    parent = xdg_cache if xdg_cache.is_absolute() else Path.home() / ".cache"
    return parent / "spark-group-coordinator"


def spark_archive() -> Path:
    """Return the path of the JVM's archive of Spark's classes (`streaming.query.class_archive`), which may
    not exist.
    """
    return _share_dir() / "spark-classes.jsa"


def broker_archive() -> Path:
    """Return the path of the JVM's archive of the embedded broker's classes, which may not exist."""
    return _share_dir() / "broker-classes.jsa"


def _share_dir() -> Path:
    """Return the folder for files that an installation of this project may have."""
    return Path(sys.prefix) / "share" / "spark-group-coordinator"


SetName = Literal[
    "spark",
    "broker",
    "broker_3_9",
    "broker_4_3",
    "tools",
    "streams",
    "streams_4_3",
    "connect",
    "hdfs",
    "axe",
    "rocketmq",
    "rocketmq_example",
    "rocketmq_proxy",
    "rocketmq_grpc",
    "rocketmq_4_9",
]
PROGRAM_SETS: tuple[SetName, ...] = ("spark", "broker")

JARS_TOML = Path(__file__).with_name("jars.toml")
_LOCK_MARK = "# ---- written by --lock: do not edit below ----\n"
_DOWNLOAD_TRIES = 2


class JarsUnavailable(MultilineError):
    """Some jars could not be downloaded, or differ from the locked jars. The message has the reason for
    each.
    """


class LockedFile(NamedTuple):
    """A jar as `jars.toml` pins it."""

    name: str
    size_bytes: int
    sha256: str


class JarSet(NamedTuple):
    """A set of jars: the requested artifacts, and the files that they resolve to."""

    name: SetName
    artifacts: tuple[Artifact, ...]
    transitive: bool  # True if the dependencies of the artifacts belong to the set
    files: tuple[LockedFile, ...]


def spark_jars() -> list[Path]:
    """Return absolute paths of the jars for ``spark.jars``, fetched first if missing. Raises
    `JarsUnavailable`.
    """
    return jar_paths("spark")


def jar_paths(name: SetName) -> list[Path]:
    """Return absolute paths of a set's jars, fetched first if missing. Raises `JarsUnavailable`."""
    jar_set = read_jar_sets(JARS_TOML.read_text())[name]
    folder = _jars_dir() / f"{name}-{_digest(jar_set.files)}"
    if not _is_complete(folder, jar_set.files):
        with _cache_lock():
            # Another process may have fetched them while this one waited for the lock.
            if not _is_complete(folder, jar_set.files):
                _fetch(jar_set, folder)
    return [folder / file.name for file in jar_set.files]


def class_path(*names: SetName) -> str:
    """Return the class path of these sets' jars, fetched first if missing. Raises `JarsUnavailable`."""
    return os.pathsep.join(str(path) for name in names for path in jar_paths(name))


def read_jar_sets(text: str) -> dict[SetName, JarSet]:
    """Parse the text of `jars.toml`."""
    tables = tomllib.loads(text)
    locked = tables.get("locked", {})
    return {
        name: JarSet(
            name,
            tuple(Artifact(*coordinate.split(":")) for coordinate in tables[name]["artifacts"]),
            tables[name]["transitive"],
            tuple(LockedFile(**row) for row in locked.get(name, ())),
        )
        for name in get_args(SetName)
    }


def find_faults(folder: Path, files: tuple[LockedFile, ...]) -> list[str]:
    """Return a line for each file that is missing in a folder, is not locked, or differs from its lock."""
    existing = {file.name: file for file in _list_files(folder)}
    not_locked = sorted(existing.keys() - {file.name for file in files})
    return [
        *(f"{file.name}: missing" for file in files if file.name not in existing),
        *(f"{name}: not in {JARS_TOML.name}" for name in not_locked),
        *(
            f"{file.name}: SHA-256 is {existing[file.name].sha256}, pinned is {file.sha256}"
            for file in files
            if file.name in existing and existing[file.name] != file
        ),
    ]


def lock() -> None:
    """Resolve all sets again and write the resolved files, with their checksums, to `jars.toml`."""
    text = JARS_TOML.read_text()
    locked: dict[SetName, list[LockedFile]] = {}
    for name, jar_set in read_jar_sets(text).items():
        with _cache_lock(), _download(jar_set) as folder:
            locked[name] = _list_files(folder)
    head, mark, _ = text.partition(_LOCK_MARK)
    JARS_TOML.write_text(head + mark + render_lock(locked))


def render_lock(locked: dict[SetName, list[LockedFile]]) -> str:
    """Return the TOML text for the lower part of `jars.toml`."""
    lines = ["[locked]"]
    for name, files in locked.items():
        rows = [
            f'name = "{file.name}", size_bytes = {file.size_bytes}, sha256 = "{file.sha256}"'
            for file in files
        ]
        lines += [f"{name} = [", *(f"    {{ {row} }}," for row in rows), "]"]
    return "\n".join(lines) + "\n"


def _jars_dir() -> Path:
    folder = cache_dir().absolute() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ivy_home() -> Path:
    # Two processes must not write to the cache at once: only the holder of the lock uses it.
    return cache_dir().absolute() / "ivy"


def _digest(files: tuple[LockedFile, ...]) -> str:
    """Return a digest of a set's files, so that a set with other files gets a new folder."""
    return hashlib.sha256(repr(files).encode()).hexdigest()[:12]


def _is_complete(folder: Path, files: tuple[LockedFile, ...]) -> bool:
    """Return True if the folder has all these files, each of its size."""
    try:
        # Contents were checked when the folder was fetched.
        return all((folder / file.name).stat().st_size == file.size_bytes for file in files)
    except OSError:
        return False


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Hold the lock on the cache, which excludes other processes."""
    with (_jars_dir() / "lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # released when the file is closed, even by a crash
        yield


def _fetch(jar_set: JarSet, folder: Path) -> None:
    """Download a set, check it, and move it to this folder. The caller holds the lock on the cache."""
    with _download(jar_set) as staging:
        if faults := find_faults(staging, jar_set.files):
            # Delete Ivy's cache, because otherwise the next try would get the same bytes from it.
            shutil.rmtree(_ivy_home(), ignore_errors=True)
            title = f"The {jar_set.name} jars are not the ones pinned in {JARS_TOML.name}:"
            raise JarsUnavailable("\n  ".join([title, *faults]))
        if folder.exists():
            shutil.rmtree(folder)
        staging.rename(folder)


@contextmanager
def _download(jar_set: JarSet) -> Iterator[Path]:
    """Yield a folder in the cache with a set's unchecked jars. It is removed at the end unless moved."""
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=_jars_dir()) as temporary:
        staging = Path(temporary) / jar_set.name
        with _progress(jar_set) as on_line:
            _retrieve_with_retry(jar_set, staging, on_line)
        yield staging


def _retrieve_with_retry(jar_set: JarSet, into: Path, on_line: Callable[[str], None]) -> None:
    """Let Ivy put the set's jars into this folder. Raise JarsUnavailable if the last try fails."""
    home = _ivy_home()
    for tries_left in reversed(range(_DOWNLOAD_TRIES)):
        try:
            retrieve(jar_set.artifacts, into, home=home, transitive=jar_set.transitive, on_line=on_line)
            return
        except IvyFailed as failure:
            if tries_left:  # Ivy's cache keeps the jars of the first try, so a second try is cheap
                continue
            title = f"These {jar_set.name} jars could not be downloaded:"
            raise JarsUnavailable("\n  ".join([title, *failure.args])) from failure


@contextmanager
def _progress(jar_set: JarSet) -> Iterator[Callable[[str], None]]:
    """Report Ivy's progress on stderr: one updated line on a terminal, else a line before and one after.

    Yield the function that gets each line of Ivy's output.
    """
    from rich.console import Console  # not needed if the jars are in the cache

    console = Console(stderr=True, highlight=False)
    title = f"Fetching the {jar_set.name} jars"
    found = downloaded = 0

    def on_line(line: str) -> None:
        nonlocal found, downloaded
        found += line.startswith("found ")  # Ivy's words for a resolved jar
        downloaded += line.startswith("[SUCCESSFUL ]")
        status.update(f"{title}: {found} found, {downloaded} downloaded")

    if not console.is_terminal:
        console.print(f"{title} ...")
    with console.status(title) as status:
        yield on_line
    console.print(f"{title}: done, {found} found, {downloaded} downloaded")


def _list_files(folder: Path) -> list[LockedFile]:
    """Return the files in a folder, with their sizes and checksums."""
    return [
        LockedFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.glob("*"))
    ]


def main(arguments: list[str]) -> None:
    """Run ``python -m embedded.jars [--lock | --list]``."""
    if arguments not in ([], ["--lock"], ["--list"]):
        sys.exit("usage: python -m embedded.jars [--lock | --list]")
    try:
        if arguments == ["--list"]:
            sys.stdout.write(",".join(map(str, spark_jars())) + "\n")
            return
        if arguments:
            lock()
        for name in PROGRAM_SETS:
            jar_paths(name)
    except JarsUnavailable as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main(sys.argv[1:])
