"""A terminal view of the entries of a replay, moved a key at a time."""

import click
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from cli.live_view import EscapingConsole
from operations.replay.steps import StepBrowser

KEYS = (
    "next: n, →   back: b, ←   next in the history: h, H   search: /   again: .   first, last: g, G   quit: q"
)
_NEXT = frozenset({"n", " ", "\r", "\n", "\x1b[C", "\x1b[B", "\x1bOC", "\x1bOB"})
_BACK = frozenset({"b", "p", "\x7f", "\x1b[D", "\x1b[A", "\x1bOD", "\x1bOA"})
_QUIT = frozenset({"q", "\x1b"})


def walk(steps: StepBrowser) -> None:
    """Show one entry at a time until the user quits."""
    console = EscapingConsole()
    search, remark = "", ""
    with console.screen(hide_cursor=True) as screen:
        while True:
            screen.update(_shown(steps, remark))
            key = click.getchar()
            remark = ""
            if key in _QUIT:
                return
            if key == "/":
                search = _ask_search(console)
            if key in ("/", ".") and search:
                remark = "" if steps.find(search) else f"no later entry names {search}"
            else:
                remark = press(steps, key)


def press(steps: StepBrowser, key: str) -> str:
    """Handle a key. Return a remark for the user, or "" if there is none."""
    if key in _NEXT:
        steps.move(1)
    elif key in _BACK:
        steps.move(-1)
    elif key in ("g", "G"):
        steps.move(-len(steps) if key == "g" else len(steps))
    elif key in ("h", "H") and not steps.next_history(1 if key == "h" else -1):
        return f"no {'later' if key == 'h' else 'earlier'} entry is in the history"
    return ""


def _shown(steps: StepBrowser, remark: str) -> Group:
    title = f"entry {steps.at + 1} of {len(steps)}"
    return Group(
        Panel(Text(steps.detail()), title=title, title_align="left"),
        Panel(Text(steps.group()), title="the group afterwards", title_align="left"),
        Text(remark, style="bold") if remark else Text(KEYS, style="dim"),
    )


def _ask_search(console: Console) -> str:
    """Read the text to search for in the last line of the screen."""
    console.show_cursor()
    try:
        return console.input("search: ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
    finally:
        console.show_cursor(False)
