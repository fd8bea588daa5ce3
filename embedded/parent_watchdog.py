"""Run a command for as long as this process's standard input stays open.

    python -I -S parent_watchdog.py GRACE_SECONDS COMMAND...

Prints the command's process id, then waits. The kernel closes standard input even if the process at the other
end is SIGKILLed. Then the command gets SIGTERM, and SIGKILL if it still runs after the grace period. The exit
code is the command's, or 128 + N if signal N ended it, as in a shell. Linux's PR_SET_PDEATHSIG is no
alternative to the pipe: it is tied to the *thread* that started the child, needs code between fork and exec,
and exists on Linux only.

This file imports only the standard library and no part of this project, because it is run as a file.
"""

import os
import subprocess
import sys
import threading


def main(arguments: list[str]) -> int:
    """Run ``GRACE_SECONDS COMMAND...``. Returns the command's exit code."""
    grace_s, command = float(arguments[0]), arguments[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    threading.Thread(target=_end_child_with_stdin, args=(child, grace_s), daemon=True).start()
    exit_code = child.wait()
    return exit_code if exit_code >= 0 else 128 - exit_code  # Popen's code is -N if signal N ended it


def _end_child_with_stdin(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Wait for the end of standard input, then end the child: SIGTERM, and SIGKILL after the grace period."""
    # Not sys.stdin, because its lock, held by this thread, would abort the interpreter if the command ends
    # first.
    while os.read(0, 1024):
        pass
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
