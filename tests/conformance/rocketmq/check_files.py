"""A command that compares this implementation with files of recorded cases.

It prints the failed cases, then `N passed, M failed`. Exit codes: 0 if all cases passed, 1 if some failed, 2
if a file cannot be read or is malformed, or if no file was given.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import DecodeError

Case = TypeVar("Case")

MAX_FAILURES_SHOWN = 20
MAX_FAILURE_CHARS = 600


def run(
    files: Sequence[str], decode: Callable[[bytes], list[Case]], failure: Callable[[Case], str | None]
) -> int:
    """Check every case of the files and return the exit code.

    `decode` returns the cases of a file's content or raises DecodeError. `failure` returns one line that says
    what is wrong with a case, or None if the case passed.
    """
    if not files:
        sys.stderr.write("give at least one file\n")
        return 2
    cases: list[tuple[str, Case]] = []
    for file in files:
        try:
            cases += [(file, case) for case in decode(Path(file).read_bytes())]
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        except (DecodeError, UnicodeDecodeError) as error:
            sys.stderr.write(f"{file}: malformed: {error}\n")
            return 2
    failures = [f"{file}: {text}" for file, case in cases if (text := failure(case)) is not None]
    for line in failures[:MAX_FAILURES_SHOWN]:
        sys.stdout.write(f"{line[:MAX_FAILURE_CHARS]}\n")
    if len(failures) > MAX_FAILURES_SHOWN:
        sys.stdout.write(f"... and {len(failures) - MAX_FAILURES_SHOWN} more\n")
    sys.stdout.write(f"{len(cases) - len(failures)} passed, {len(failures)} failed\n")
    return 1 if failures else 0
