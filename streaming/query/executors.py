"""The requirements of executors on other machines: this project's code, and the packages that it imports.

The code is sent to them, so that the driver and all executors run the same. The packages have to be in the
executors' Python, in the driver's versions, because versions affect what is answered and stored. A job checks
them at the start, and each Python worker checks itself once, because executors may join later.

This module imports only the standard library and Spark's own packages, because it has to load where a package
is missing, and name it.
"""

import gc
import importlib.metadata
import platform
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

# The packages of this project that the query's function needs.
SENT = ("assignors", "checkpoints", "embedded", "kafka_why", "records", "state", "streaming")
# The distributions that they import in a Python worker.
REQUIRED = ("confluent-kafka", "kafka-python", "msgspec", "numpy", "pandas", "pyarrow", "pyspark", "xxhash")
ZIP_NAME = "group-coordinator.zip"
MARK_NAME = ".shared"
CHECK_TIMEOUT_S = 60.0
# Each task of the check takes this long, so that one executor cannot run all of them.
_TASK_S = 0.2
_PYTHON = "Python"
_NO_VERSION = "none"  # the version of a distribution that is not installed


class ExecutorsUnfit(RuntimeError):
    """The executors lack a requirement of the query, or there are none. The message says what is missing and
    where.
    """


@dataclass(frozen=True)
class WorkerRequirements:
    """The requirements on a Python worker."""

    versions: tuple[tuple[str, str], ...]  # the versions of Python and of each distribution
    # The path and the content of a file in the checkpoint. A machine that cannot read it does not share the
    # checkpoint with the driver.
    mark: tuple[str, str] | None = None

    def check(self) -> None:
        """Check this process, once. Raises ExecutorsUnfit."""
        _check_process(self)

    def faults(self) -> list[str]:
        """Return the unmet requirements of this process, each as a sentence."""
        own_versions = dict(versions())
        where = f"on {socket.gethostname()} ({sys.executable})"
        faults = [
            f"{name} {where} is {own_versions[name]}, the driver has {version}"
            for name, version in self.versions
            if own_versions[name] != version
        ]
        # A worker has the driver's code if it imports this module from the driver's zip file.
        code = str(__file__)
        if ZIP_NAME not in code:
            faults.append(f"the code {where} is of {code}, not the driver's")
        if self.mark is not None and (fault := _fault_of_mark(*self.mark)):
            faults.append(f"{fault} {where}")
        return faults


@cache
def _check_process(requirements: WorkerRequirements) -> None:
    if faults := requirements.faults():
        raise ExecutorsUnfit("; ".join(faults))


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of Python and of each required distribution in this process."""
    return ((_PYTHON, platform.python_version()), *((name, _version(name)) for name in REQUIRED))


def _version(name: str) -> str:
    """Return the version of a distribution in this process, or _NO_VERSION."""
    if name == "pyspark":  # an executor has it from Spark's own folder
        return pyspark.__version__
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _NO_VERSION


def write_zip(folder: Path) -> Path:
    """Write the code for executors into a new file in this folder."""
    root = Path(__file__).parents[2]
    path = folder / ZIP_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SENT:
            for source in sorted((root / package).rglob("*.py")):
                archive.write(source, source.relative_to(root))
    return path


def send_code(context: Any, folder: Path) -> None:
    """Let executors of this SparkContext fetch the code. The zip file must stay in `folder` while the context
    runs.
    """
    old_path = list(sys.path)
    context.addPyFile(str(write_zip(folder)))
    sys.path[:] = old_path  # addPyFile changes the driver's path, too, but the driver imports its own copy


def with_mark(requirements: WorkerRequirements, checkpoint: str, content: str) -> WorkerRequirements:
    """Write a file, the mark, into the checkpoint, and return the requirements with it. Workers then check
    that they read the driver's checkpoint. Raises FolderNotWritable.

    Without this check, executors could write the state into local folders, where the next executor does not
    find it. A checkpoint that is not in a file system needs no mark.
    """
    # Imported here, because these modules import packages that only the driver needs.
    from kafka_why.local_files import LocalFiles
    from streaming.query.storage import storage_at

    path = storage_at(checkpoint).path
    if path is None:
        return requirements
    LocalFiles(path).write(MARK_NAME, content.encode())
    return replace(requirements, mark=(str(path.absolute() / MARK_NAME), content))


def _fault_of_mark(path: str, content: str) -> str | None:
    """Return what is wrong unless the file at `path`, the mark of the checkpoint, has this content."""
    try:
        found = Path(path).read_text()
    except OSError as error:
        found = str(error.strerror)
    if found == content:
        return None
    return (
        f"the checkpoint {Path(path).parent} has to be on shared storage, and is not the driver's ({found})"
    )


def check(context: Any, requirements: WorkerRequirements, timeout_s: float = CHECK_TIMEOUT_S) -> None:
    """Run a job that checks the executors of this SparkContext. Raises ExecutorsUnfit."""
    tasks = max(2, context.defaultParallelism)
    has_timed_out = threading.Event()

    def give_up() -> None:
        has_timed_out.set()
        context.cancelAllJobs()

    timer = threading.Timer(timeout_s, give_up)
    timer.start()
    try:
        reports = (
            context.parallelize(range(tasks), tasks)
            .mapPartitions(partial(_faults_of_task, requirements))
            .collect()
        )
    except (Py4JError, PySparkException) as error:
        master = context.master
        if not has_timed_out.is_set():
            raise ExecutorsUnfit(
                f"the executors of {master} do not run Python: {_cause_line(error)}"
            ) from None
        raise ExecutorsUnfit(
            f"no executor of {master} ran a task within {timeout_s:.0f} s: the cluster has no free cores, or "
            "less memory than spark.executor.memory, or its executors do not reach the driver at "
            f"{context.getConf().get('spark.driver.host')} (--driver-host)"
        ) from None
    finally:
        timer.cancel()
    if faults := sorted(set(reports)):
        raise ExecutorsUnfit("; ".join(faults))


def _faults_of_task(requirements: WorkerRequirements, _: Iterable[int]) -> Iterator[str]:
    """Return the faults of the Python worker that runs this task, after _TASK_S."""
    time.sleep(_TASK_S)
    return iter(requirements.faults())


def _cause_line(error: Exception) -> str:
    """Return the line of a failed job's error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # The words by which such a line is known, the most specific first.
    words = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError", "Error:", "Caused by")
    for word in words:
        if lines_with_word := [line for line in lines if word in line]:
            return lines_with_word[0]
    return lines[0] if lines else type(error).__name__


def requirements_of_driver() -> WorkerRequirements:
    """Return this process's versions as the requirements on executors."""
    return WorkerRequirements(versions())


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A function for applyInPandasWithState that a Python worker can unpickle only if `checks` pass.

    Spark commits the state of a task even if the task has no rows and never calls the function. So the checks
    run when the worker unpickles the function, which it does for each pass of each task.
    """

    function: Callable[..., Iterator[Any]]
    checks: tuple[Callable[[], None], ...] = ()

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _checked_function, (self.function, self.checks)


def _checked_function(
    function: Callable[..., Iterator[Any]], checks: tuple[Callable[[], None], ...]
) -> Callable[..., Iterator[Any]]:
    """Run the checks and return the function. A Python worker calls this to unpickle a WorkerFunction."""
    _freeze_imports()
    for check in checks:
        check()
    return function


@cache
def _freeze_imports() -> None:
    """Exempt the objects of all imported modules from garbage collections, once in each Python worker.

    PySpark's worker collects garbage after each task. Each collection would visit these objects, which takes
    0.1 s.
    """
    gc.collect()
    gc.freeze()
