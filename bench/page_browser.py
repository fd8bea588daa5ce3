"""The times that a reader meets in a real browser, in milliseconds of wall time as the browser
measures them.
"""

from typing import Any, NamedTuple

from selenium.webdriver import Chrome

_OPENED = """
const pages = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
if (!paint || !pages[0].loadEventEnd) return null;
const sent = [...pages, ...performance.getEntriesByType("resource")].map((one) => one.transferSize);
return [Math.max(paint.startTime, pages[0].loadEventEnd), sent.reduce((sum, one) => sum + one)];
"""

# After a frame's callbacks the browser draws it, and only then delivers the message.
_WATCH_DRAG = """
const range = () => {
  const {from, to} = document.querySelector("svg.timeline").dataset;
  return [Number(from), Number(to)];
};
const first = range();
window.dragged = new Promise((done) => addEventListener("pointerup", (event) => {
  window.droppedAt = event.timeStamp;
  requestAnimationFrame(() => {
    const after = new MessageChannel();
    const isExact = !document.querySelector("svg.timeline").hasAttribute("aria-busy");
    after.port1.onmessage = () => done([performance.now() - event.timeStamp, first, range(), isExact]);
    after.port2.postMessage(null);
  });
}, { once: true, capture: true }));
const box = document.querySelector("svg.timeline").getBoundingClientRect();
return [box.left, box.top, box.width];
"""

_ANSWERED = """
const done = arguments[0];
const look = () => {
  if (document.querySelector("svg.timeline[aria-busy]")) requestAnimationFrame(look);
  else done(performance.now() - window.droppedAt);
};
look();
"""

_WATCH_TEXT = """
const [selector, text] = arguments;
window.seen = new Promise((done) => {
  const look = () => {
    const isThere = [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text));
    if (isThere) done(performance.timeOrigin + performance.now());
    return isThere;
  };
  if (!look()) {
    const observer = new MutationObserver(() => { if (look()) observer.disconnect(); });
    observer.observe(document.documentElement, { childList: true, subtree: true });
  }
});
"""


class Opened(NamedTuple):
    """A page that was opened: the time from the request to its first picture with all of its content, and
    the bytes that came with it, of its own files too.
    """

    ms: float
    sent_bytes: int


class Dragged(NamedTuple):
    """A drag: the time from the end of the drag to the changed picture, and the times that the picture showed
    before and after. `is_exact`: that picture was already the server's.
    """

    ms: float
    before_ms: tuple[int, int]
    after_ms: tuple[int, int]
    is_exact: bool


def opened(driver: Chrome, url: str) -> Opened:
    """Open a page."""
    driver.get(url)
    while (found := driver.execute_script(_OPENED)) is None:
        pass  # each look is a request to the browser, which is about to draw
    return Opened(*found)


def drag(driver: Chrome, begin: float, end: float, top_px: float = 25) -> Dragged:
    """Drag over the timeline with the mouse, from one part of its width to another."""
    left, top, width = driver.execute_script(_WATCH_DRAG)
    for kind, part, buttons in (
        ("mouseMoved", begin, 0),
        ("mousePressed", begin, 1),
        ("mouseMoved", (begin + end) / 2, 1),
        ("mouseMoved", end, 1),
        ("mouseReleased", end, 0),
    ):
        place: dict[str, Any] = {"x": left + width * part, "y": top + top_px, "button": "left"}
        event = {"type": kind, **place, "buttons": buttons, "clickCount": 1}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    ms, before, after, is_exact = driver.execute_async_script("window.dragged.then(arguments[0])")
    return Dragged(ms, tuple(before), tuple(after), is_exact)


def wait_for_answer(driver: Chrome) -> float:
    """Return the time from the end of the drag until the picture is the server's. Waits for it."""
    ms: float = driver.execute_async_script(_ANSWERED)
    return ms


def watch(driver: Chrome, selector: str, text: str) -> None:
    """Begin to look for an element with a text."""
    driver.execute_script(_WATCH_TEXT, selector, text)


def seen_ms(driver: Chrome) -> float:
    """Return when the page had what is watched, in milliseconds since the epoch. Waits for it."""
    found: float = driver.execute_async_script("window.seen.then(arguments[0])")
    return found
