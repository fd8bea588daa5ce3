"""Measure the rows of docs/benchmarks.md, each beside the systems with which it is compared."""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench.page import RESULTS, write_page
from bench.report import Measured, from_json, say, text_table, to_json
from bench.rows import ROWS
from bench.rows.bench import Bench, Plan
from bench.separate_process import LoadFailed
from cli.processes.child import ChildFailed
from embedded.broker import BrokerFailed
from kafka_why.cli.output import configure_logs

FAILURES = (BrokerFailed, ChildFailed, LoadFailed)


def main() -> None:
    """Run the selected rows. The exit code is 1 if a row fails or a figure is beyond its required limit."""
    parser = _parser()
    args = parser.parse_args()
    rows = args.only.split(",") if args.only else list(ROWS)
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; rows are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stops the processes that it started
    configure_logs()
    selected = [row for row in ROWS if row in rows]
    measured, failed = _measure(selected, quick=args.quick, packed=not args.single)
    if args.json is not None:
        args.json.write_bytes(to_json(measured))
    if args.write:
        earlier = from_json(RESULTS.read_bytes()) if RESULTS.exists() else []
        write_page(_merged(earlier, measured))
    all_kept = all(figure.verdict != "NOT" for row in measured for figure in row.figures)
    if failed:
        say(f"failed: {', '.join(failed)}")
    sys.exit(0 if all_kept and not failed else 1)


def _measure(rows: list[str], *, quick: bool, packed: bool) -> tuple[list[Measured], list[str]]:
    """Measure the rows, and print each table at once. Return the results, and the rows that failed."""
    measured, failed = [], []
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), Plan.of(quick=quick), packed)
        try:
            for row in rows:
                say(f"{row} (after {time.monotonic() - began_s:.0f} s)")
                row_started_s = time.monotonic()
                try:
                    result = ROWS[row](bench)
                except FAILURES as error:
                    say(f"{row} failed: {error}")
                    failed.append(row)
                    bench.close()  # the systems may be in any state
                    continue
                took_s = time.monotonic() - row_started_s
                measured.append(
                    Measured(
                        row,
                        result.figures,
                        result.plots,
                        result.notes,
                        took_s,
                        machine(),
                        quick,
                        result.table,
                    )
                )
                print(f"\n{text_table(result.figures)}\n", flush=True)
                for note in result.notes:
                    say(f"  {note}")
        finally:
            bench.close()
    return measured, failed


def _merged(earlier: list[Measured], new: list[Measured]) -> list[Measured]:
    """Return the new results and the earlier results of other rows, in the order of the rows."""
    by_row = {measured.row: measured for measured in (*earlier, *new)}
    return [by_row[row] for row in ROWS if row in by_row]


def machine() -> str:
    """Return the processor and the memory of this machine, for which the figures hold."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({cpu}), {memory_gib:.0f} GiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", metavar="ROW[,ROW]", help=f"rows to measure, of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer turns, fewer resting groups")
    parser.add_argument("--single", action="store_true", help="write a record a request instead of packs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument(
        "--write", action="store_true", help="write docs/benchmarks.md; rows that were not measured stay"
    )
    return parser


if __name__ == "__main__":
    main()
