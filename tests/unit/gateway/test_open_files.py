"""The limit of open files, tested in separate processes because a lowered hard limit stays."""

import subprocess
import sys

import pytest

from gateway.limits import Limits
from gateway.net.open_files import files_for

SCRIPT = """
import resource, sys
from gateway.net.open_files import allow_open_files
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_open_files(wanted)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""

RAISED = "the limit of open files was raised"
TOO_LOW = "too few open files for the maximum number of clients"


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "now", "logged"),
    [
        (100, 400, 300, 300, {RAISED}),
        (100, 400, 500, 400, {RAISED, TOO_LOW}),
        (400, 400, 500, 400, {TOO_LOW}),
        (350, 400, 300, 350, set()),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed_and_allowed(
    soft: int, hard: int, wanted: int, now: int, logged: set[str]
) -> None:
    arguments = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(wanted)]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert output.splitlines()[-1] == f"{now} {hard}"
    assert {line for line in (RAISED, TOO_LOW) if line in output} == logged


def test_each_client_may_have_a_connection_to_its_broker() -> None:
    assert files_for(Limits(connections=10_000)) > 20_000
