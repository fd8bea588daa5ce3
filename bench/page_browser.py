"""The times that a reader of the page experiences, in milliseconds as a real browser measures them."""

from typing import Any, NamedTuple

from selenium.webdriver import Chrome

_TIMES_IF_OPENED = """
const pages = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
if (!paint || !pages[0].loadEventEnd) return null;
const sent = [...pages, ...performance.getEntriesByType("resource")].map((one) => one.transferSize);
return [Math.max(paint.startTime, pages[0].loadEventEnd), sent.reduce((sum, one) => sum + one)];
"""

# A browser draws a frame after the frame's callbacks, and delivers the message only then.
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

_WAIT_FOR_EXACT_PICTURE = """
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
    """A page that was opened: the time from the request until all content is drawn, and the bytes received,
    including its scripts and styles.
    """

    ms: float
    received_bytes: int


class Dragged(NamedTuple):
    """A drag: the time from its end to the changed picture, and the picture's time ranges before and after.

    The page first stretches the picture itself. `is_exact` is True if the picture was already the server's.
    """

    ms: float
    before_ms: tuple[int, int]
    after_ms: tuple[int, int]
    is_exact: bool


def open_page(driver: Chrome, url: str) -> Opened:
    """Open a page."""
    driver.get(url)
    while (opened := driver.execute_script(_TIMES_IF_OPENED)) is None:
        pass  # no pause is needed: each poll is a request to the browser, which will draw soon
    return Opened(*opened)


def drag(driver: Chrome, begin: float, end: float, top_px: float = 25) -> Dragged:
    """Drag over the timeline with the mouse. `begin` and `end` are fractions of its width."""
    left, top, width = driver.execute_script(_WATCH_DRAG)
    for kind, fraction, buttons in (
        ("mouseMoved", begin, 0),
        ("mousePressed", begin, 1),
        ("mouseMoved", (begin + end) / 2, 1),
        ("mouseMoved", end, 1),
        ("mouseReleased", end, 0),
    ):
        position: dict[str, Any] = {"x": left + width * fraction, "y": top + top_px, "button": "left"}
        event = {"type": kind, **position, "buttons": buttons, "clickCount": 1}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    ms, before, after, is_exact = driver.execute_async_script("window.dragged.then(arguments[0])")
    return Dragged(ms, tuple(before), tuple(after), is_exact)


def wait_for_exact_picture(driver: Chrome) -> float:
    """Wait until the server's picture is shown. Return the ms since the end of the drag."""
    ms: float = driver.execute_async_script(_WAIT_FOR_EXACT_PICTURE)
    return ms


def watch_for_text(driver: Chrome, selector: str, text: str) -> None:
    """Start watching for an element with a text."""
    driver.execute_script(_WATCH_TEXT, selector, text)


def seen_ms(driver: Chrome) -> float:
    """Wait until the watched text is there. Return when it appeared, in milliseconds since the epoch."""
    at_ms: float = driver.execute_async_script("window.seen.then(arguments[0])")
    return at_ms
