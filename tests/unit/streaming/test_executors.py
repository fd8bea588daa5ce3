"""The project's code on executors, and the error for an executor that lacks something."""

import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.query import executors
from streaming.query.executors import (
    MARK_NAME,
    REQUIRED,
    ExecutorsUnfit,
    WorkerFunction,
    WorkerRequirements,
    requirements_of_driver,
    with_mark,
    write_zip,
)

HOST = socket.gethostname()
# Imports the query's function from the zip alone: `-I` takes neither the folder nor PYTHONPATH, and what an
# editable install has put on the path comes behind.
IMPORT = """
import sys
sys.path.insert(1, sys.argv[1])
import streaming.query.executors, streaming.query.operator, streaming.query.owner_guard
from importlib.metadata import packages_distributions
ours = [name for name, module in sys.modules.items() if name.split(".")[0] in sys.argv[2].split(",")]
print(all(sys.modules[name].__file__.startswith(sys.argv[1]) for name in ours))
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
tops = {name.split(".")[0] for name, file in files.items() if "site-packages" in file}
print(*sorted({found for top in tops for found in packages_distributions().get(top, ())}))
print(*streaming.query.executors.requirements_of_driver().faults())
"""
# Packages that others of these bring along, with any version that fits.
BROUGHT_ALONG = {
    *("Pygments", "crc32c", "py4j", "python-dateutil", "pytz", "rich", "setuptools", "six"),
    "typing_extensions",
}


@pytest.fixture(autouse=True)
def forget() -> None:
    executors._check_process.cache_clear()


@pytest.fixture(scope="module")
def in_the_zip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the output of a process that imports its code from the zip."""
    path = write_zip(tmp_path_factory.mktemp("code"))
    command = [sys.executable, "-I", "-c", IMPORT, str(path), ",".join(executors.SENT)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_zip_for_executors_has_all_code_of_the_query(in_the_zip: list[str]) -> None:
    assert in_the_zip[0] == "True"


def test_every_distribution_that_a_worker_imports_is_checked(in_the_zip: list[str]) -> None:
    assert set(in_the_zip[1].split()) - BROUGHT_ALONG == set(REQUIRED)


def test_worker_with_the_drivers_code_and_versions_passes_the_check(in_the_zip: list[str]) -> None:
    assert in_the_zip[2] == ""


def test_a_worker_with_other_code_or_another_version_is_named() -> None:
    requirements = requirements_of_driver()
    changed = WorkerRequirements(tuple((n, "0.1" if n == "msgspec" else v) for n, v in requirements.versions))
    version, code = changed.faults()
    assert version.startswith(f"msgspec on {HOST} ({sys.executable}) is 0.")
    assert version.endswith("the driver has 0.1")
    assert "streaming/query/executors.py, not the driver's" in code


def test_checkpoint_on_the_drivers_own_disk_is_detected(tmp_path: Path) -> None:
    """An executor would keep the state in a folder of its own machine, and another one would not find it."""
    checkpoint = tmp_path / "spark"
    requirements = with_mark(requirements_of_driver(), str(checkpoint), "app-1")
    assert len(requirements.faults()) == 1, "the code is not from the zip here"
    (checkpoint / MARK_NAME).write_text("app-0")
    assert f"the checkpoint {checkpoint} has to be on shared storage" in requirements.faults()[1]
    (checkpoint / MARK_NAME).unlink()
    assert "No such file or directory" in requirements.faults()[1]


def test_checkpoint_on_a_shared_store_needs_no_mark_file() -> None:
    requirements = requirements_of_driver()
    assert with_mark(requirements, "hdfs://namenode/checkpoint", "app-1") is requirements


def test_worker_that_lacks_packages_unpickles_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failing at the call would be too late: the state of a task without rows is committed, too."""
    sent = pickle.dumps(WorkerFunction(iter, (requirements_of_driver().check,)))
    with pytest.raises(ExecutorsUnfit, match="not the driver's"):
        pickle.loads(sent)
    monkeypatch.setattr(executors, "__file__", f"/work-1/{executors.ZIP_NAME}/streaming/query/executors.py")
    assert pickle.loads(sent) is iter
