// Makes the page live, shows times in the reader's zone, and zooms the timeline. The server does everything else:
// without this module the pages are complete, but static.

const main = () => document.querySelector("#main");
const LEAST_DRAG_PX = 8; // less is a click
const FIRST_PAUSE_MS = 100; // what changes together is shown together
const REPEAT_PAUSE_MS = 150; // a held key sends one request, after its last repeat
let drag = null;
let wasDragged = false;

const clock = (at) => at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

function localTimes(root) {
  const day = new Date().toDateString();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.textContent = (at.toDateString() === day ? "" : at.toLocaleDateString() + " ") + clock(at);
  }
  for (const tick of root.querySelectorAll("text[data-time]")) {
    tick.textContent = clock(new Date(tick.dataset.time));
  }
}

// Only the last request is answered: one that is in flight is aborted, and its `show` ends with AbortError.
let inFlight = null;

async function show(address, { isWanted = false, part = null, whenAnswered = null } = {}) {
  inFlight?.abort();
  inFlight = new AbortController();
  const url = new URL(address, location.href);
  if (part) url.searchParams.set("part", part);
  const response = await fetch(url, { credentials: "same-origin", signal: inFlight.signal });
  const text = await response.text();
  whenAnswered?.();
  const page = new DOMParser().parseFromString(text, "text/html");
  const open = [...document.querySelectorAll("details[open]")].length > 0;
  const focused = document.activeElement && document.activeElement.id;
  const typed = document.querySelector("#search");
  if (!isWanted && typed && document.activeElement === typed) return; // the reader is typing
  localTimes(page);
  page.querySelector("#now[data-kept]")?.replaceWith(document.querySelector("#now") ?? "");
  main().replaceWith(page.querySelector("#main"));
  document.querySelector("#age").replaceWith(page.querySelector("#age"));
  document.title = page.title;
  document.body.dataset.live = page.body.dataset.live;
  document.body.dataset.version = page.body.dataset.version;
  if (open) document.querySelector("details")?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus();
}

// Shows what the reader wants. No earlier request can replace it.
let going = null;

function go(address, options, pause = 0) {
  inFlight?.abort();
  clearTimeout(timer);
  timer = null;
  clearTimeout(going);
  going = setTimeout(() => {
    show(address, options).then(follow).catch((error) => {
      if (error.name !== "AbortError") location.reload();
    });
  }, pause);
}

// Live: when the server sends another version, the page requests itself again.
let source = null;
let timer = null;
let mayAskAt = 0;
let lastEvent = null; // the server's last event

function follow() {
  source?.close();
  lastEvent = null;
  if (!document.body.dataset.live) return;
  source = new EventSource(document.body.dataset.live);
  source.onmessage = (event) => {
    const before = lastEvent;
    lastEvent = JSON.parse(event.data);
    const isOther = String(lastEvent.version) !== document.body.dataset.version;
    if (isOther || (before !== null && before.read !== lastEvent.read)) refreshSoon();
  };
}

function refreshSoon() {
  if (timer !== null || drag !== null) return;
  timer = setTimeout(refresh, Math.max(FIRST_PAUSE_MS, mayAskAt - performance.now()));
}

// The page waits at least half a second before it requests itself again. After a slow response it waits ten times as
// long as the server took, or twice as long as the whole refresh took.
async function refresh() {
  const began = performance.now();
  let answered = began;
  try {
    if (drag === null) await show(location.href, { whenAnswered: () => { answered = performance.now(); } });
  } catch {
    // No response: the next event comes when the server is back.
  }
  const ended = performance.now();
  mayAskAt = ended + Math.max(500, 10 * (answered - began), 2 * (ended - began));
  timer = null;
  refreshIfOld();
}

// The server does not repeat an event that comes during a drag, or during a refresh.
function refreshIfOld() {
  if (lastEvent !== null && lastEvent.version > Number(document.body.dataset.version)) refreshSoon();
}

// The timeline: drag to zoom in, + and - and the arrows by key. The drawn picture is stretched at once, and the
// address changes with it; the server's own picture of that time comes after.
const timeline = () => document.querySelector("svg.timeline");

function limits(svg) {
  return [Number(svg.dataset.from), Number(svg.dataset.to)];
}

// Positions are per cent of the plots' width. So a wider plot is a stretched one, and only texts keep their size.
function stretch(svg, from, to) {
  svg.dataset.drawn ??= limits(svg).join();
  const [begin, end] = svg.dataset.drawn.split(",").map(Number);
  for (const plot of svg.querySelectorAll(".plot")) {
    plot.setAttribute("x", `${(100 * (begin - from)) / (to - from)}%`);
    plot.setAttribute("width", `${(100 * (end - begin)) / (to - from)}%`);
  }
  svg.dataset.from = from;
  svg.dataset.to = to;
  svg.setAttribute("aria-busy", "true");
}

function zoom(svg, wantedFrom, wantedTo) {
  const from = Math.round(Math.max(wantedFrom, 0));
  const to = Math.max(Math.round(wantedTo), from + 1);
  const isAwaited = svg.hasAttribute("aria-busy");
  stretch(svg, from, to);
  const address = new URL(location.href);
  address.searchParams.delete("since");
  address.searchParams.set("from", from);
  address.searchParams.set("to", to);
  history.pushState(null, "", address);
  document.body.dataset.live = ""; // a time with an end is not live
  follow();
  go(address, { isWanted: true, part: "time" }, isAwaited ? REPEAT_PAUSE_MS : 0);
}

function select(x, width) {
  const mark = timeline()?.querySelector(".selection");
  mark?.setAttribute("x", x);
  mark?.setAttribute("width", width);
}

document.addEventListener("pointerdown", (event) => {
  wasDragged = false;
  const svg = event.target.closest?.("svg.timeline");
  if (!svg || event.button !== 0) return;
  const box = svg.getBoundingClientRect();
  drag = { box, from: event.clientX - box.left };
});

const reached = (event) => Math.min(Math.max(event.clientX - drag.box.left, 0), drag.box.width);

document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const at = reached(event);
  select(Math.min(at, drag.from), Math.abs(at - drag.from));
});

// The picture may have been replaced during the drag. The limits are those of the one that the reader sees now.
document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { box, from } = drag;
  const at = reached(event);
  drag = null;
  select(0, 0);
  const svg = timeline();
  if (!svg || Math.abs(at - from) < LEAST_DRAG_PX) {
    refreshIfOld();
    return;
  }
  wasDragged = true;
  const [begin, end] = limits(svg);
  const ms = (x) => begin + ((end - begin) * x) / box.width;
  zoom(svg, ms(Math.min(at, from)), ms(Math.max(at, from)));
});

document.addEventListener("pointercancel", () => {
  drag = null;
  select(0, 0);
});

// A drag may begin on a rebalance, which is a link. The link is neither dragged away nor followed.
document.addEventListener("dragstart", (event) => {
  if (drag) event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (!wasDragged || event.detail === 0) return; // 0: by key
  event.preventDefault();
  event.stopPropagation();
}, { capture: true });

document.addEventListener("click", (event) => {
  const mark = event.target.closest?.("svg.timeline rect, svg.timeline path");
  const description = document.querySelector("#said");
  const title = mark?.querySelector("title");
  if (description && title) description.textContent = title.textContent;
});

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("#search");
    if (search) { event.preventDefault(); search.focus(); }
    return;
  }
  const svg = timeline();
  if (!svg) return;
  const [from, to] = limits(svg);
  const width = to - from;
  const steps = { "+": [0.25, -0.25], "-": [-0.5, 0.5], ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25] };
  const step = steps[event.key];
  if (!step || (event.key.startsWith("Arrow") && event.target.closest(".wide"))) return;
  event.preventDefault();
  zoom(svg, from + width * step[0], to + width * step[1]);
});

window.addEventListener("popstate", () => go(location.href, {}));

localTimes(document);
follow();
