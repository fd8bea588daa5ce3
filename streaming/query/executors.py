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
REQUIRED = ("confluent-kafka", "kafka-python", "msgspec", "numpy", "pandas", "pyarrow", "pyspark")
ZIP_NAME = "group-coordinator.zip"
MARK_NAME = ".shared"
CHECK_TIMEOUT_S = 60.0
# Each task of the check takes this long, so that one executor cannot run all of them.
_TASK_S = 0.2
_PYTHON = "Python"
_MISSING = "none"


class ExecutorsUnfit(RuntimeError):
    """The executors lack a requirement of the query, or there are none. The message says what is missing and
    where.
    """


@dataclass(frozen=True)
class Demand:
    """The requirements on a Python worker."""

    versions: tuple[tuple[str, str], ...]  # the versions of Python and of each distribution
    # The path and the content of a file, which another machine sees only in a shared checkpoint.
    mark: tuple[str, str] | None = None

    def check(self) -> None:
        """Check this process, once. Raises ExecutorsUnfit."""
        _check_process(self)

    def faults(self) -> list[str]:
        """Return the unmet requirements of this process, each as a sentence."""
        here = dict(versions())
        where = f"on {socket.gethostname()} ({sys.executable})"
        faults = [
            f"{name} {where} is {here[name]}, the driver has {version}"
            for name, version in self.versions
            if here[name] != version
        ]
        code = str(__file__)
        if ZIP_NAME not in code:
            faults.append(f"the code {where} is of {code}, not the driver's")
        if self.mark is not None and (fault := _fault_of_mark(*self.mark)):
            faults.append(f"{fault} {where}")
        return faults


@cache
def _check_process(demand: Demand) -> None:
    if faults := demand.faults():
        raise ExecutorsUnfit("; ".join(faults))


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of Python and of each required distribution in this process."""
    found = [(_PYTHON, platform.python_version())]
    return (*found, *((name, _version(name)) for name in REQUIRED))


def _version(name: str) -> str:
    if name == "pyspark":  # an executor has it from Spark's own folder
        return pyspark.__version__
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


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
    before = list(sys.path)
    context.addPyFile(str(write_zip(folder)))
    sys.path[:] = before  # the driver imports its own copy


def with_mark(demand: Demand, checkpoint: str, content: str) -> Demand:
    """Return the demand with a mark, by which workers check that they have the driver's checkpoint. Raises
    FolderNotWritable.

    Without this check, executors could write the state into local folders, where the next executor does not
    find it. A checkpoint that is not in a file system needs no mark.
    """
    # These import packages that only the driver needs.
    from kafka_why.local_files import LocalFiles
    from streaming.query.storage import storage_at

    path = storage_at(checkpoint).path
    if path is None:
        return demand
    LocalFiles(path).write(MARK_NAME, content.encode())
    return replace(demand, mark=(str(path.absolute() / MARK_NAME), content))


def _fault_of_mark(path: str, content: str) -> str | None:
    try:
        found = Path(path).read_text()
    except OSError as error:
        found = str(error.strerror)
    if found == content:
        return None
    return (
        f"the checkpoint {Path(path).parent} has to be on shared storage, and is not the driver's ({found})"
    )


def check(context: Any, demand: Demand, timeout_s: float = CHECK_TIMEOUT_S) -> None:
    """Run a job that checks the executors of this SparkContext. Raises ExecutorsUnfit."""
    tasks = max(2, context.defaultParallelism)
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        context.cancelAllJobs()

    timer = threading.Timer(timeout_s, give_up)
    timer.start()
    try:
        reports = context.parallelize(range(tasks), tasks).mapPartitions(partial(_faults, demand)).collect()
    except (Py4JError, PySparkException) as error:
        master = context.master
        if not is_late.is_set():
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


def _faults(demand: Demand, _: Iterable[int]) -> Iterator[str]:
    time.sleep(_TASK_S)
    return iter(demand.faults())


def _cause_line(error: Exception) -> str:
    """Return the line of a failed job's error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    words = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError", "Error:", "Caused by")
    for word in words:
        if found := [line for line in lines if word in line]:
            return found[0]
    return lines[0] if lines else type(error).__name__


def demand_of_driver() -> Demand:
    """Return this process's versions as the requirements on executors."""
    return Demand(versions())


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A function for applyInPandasWithState that a Python worker can unpickle only if `checks` pass.

    Spark sends the function to a worker for each pass of each task, even without rows, and commits the task's
    state. So the checks run when the worker unpickles the function.
    """

    function: Callable[..., Iterator[Any]]
    checks: tuple[Callable[[], None], ...] = ()

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.function, self.checks)


def _unpickle(
    function: Callable[..., Iterator[Any]], checks: tuple[Callable[[], None], ...]
) -> Callable[..., Iterator[Any]]:
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
