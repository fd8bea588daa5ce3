// Makes the page live, shows times in the reader's zone, and lets the timeline be zoomed. Everything else is the
// server's: without this module the pages are complete, but they stay as they are.

const main = () => document.querySelector("#main");
let drag = null;

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

async function show(address, { push = false, part = null } = {}) {
  const asked = new URL(address, location.href);
  if (part) asked.searchParams.set("part", part);
  const response = await fetch(asked, { credentials: "same-origin" });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const open = [...document.querySelectorAll("details[open]")].length > 0;
  const focused = document.activeElement && document.activeElement.id;
  const typed = document.querySelector("#search");
  if (!push && typed && document.activeElement === typed) return; // the reader is typing
  localTimes(page);
  page.querySelector("#now[data-kept]")?.replaceWith(document.querySelector("#now") ?? "");
  main().replaceWith(page.querySelector("#main"));
  document.querySelector("#age").replaceWith(page.querySelector("#age"));
  document.title = page.title;
  document.body.dataset.live = page.body.dataset.live;
  document.body.dataset.version = page.body.dataset.version;
  if (open) document.querySelector("details")?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus();
  if (push) {
    history.pushState(null, "", address);
    follow();
  }
}

// Live: the server says that something has changed, and the page asks for itself again, once a second at most.
let source = null;
let timer = null;
let pause = 500;
let wasRead = null;

function follow() {
  source?.close();
  wasRead = null;
  if (!document.body.dataset.live) return;
  source = new EventSource(document.body.dataset.live);
  source.onmessage = (event) => {
    const told = JSON.parse(event.data);
    const isNew = String(told.version) !== document.body.dataset.version || (wasRead !== null && wasRead !== told.read);
    wasRead = told.read;
    if (isNew && timer === null && drag === null) timer = setTimeout(refresh, pause);
  };
}

// The page asks for itself again after half a second, or, if it is slow to make, after ten times as long as that took.
async function refresh() {
  const began = performance.now();
  try {
    if (drag === null) await show(location.href);
  } catch {
    // No answer: the next event comes when the server is there again.
  }
  pause = Math.max(500, 10 * (performance.now() - began));
  timer = null;
}

// The timeline: drag to zoom in, + and - and the arrows by key.
function limits(svg) {
  return [Number(svg.dataset.from), Number(svg.dataset.to)];
}

function zoom(from, to) {
  const address = new URL(location.href);
  address.searchParams.delete("since");
  address.searchParams.set("from", Math.round(Math.max(from, 0)));
  address.searchParams.set("to", Math.round(to));
  show(address, { push: true, part: "time" }).catch(() => { location.href = address; });
}

document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.("svg.timeline");
  if (!svg || event.button !== 0) return;
  const box = svg.getBoundingClientRect();
  drag = { svg, box, from: event.clientX - box.left, link: event.target.closest("a") };
});

document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const at = Math.min(Math.max(event.clientX - drag.box.left, 0), drag.box.width);
  const mark = drag.svg.querySelector(".selection");
  mark.setAttribute("x", Math.min(at, drag.from));
  mark.setAttribute("width", Math.abs(at - drag.from));
});

document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { svg, box, from } = drag;
  drag = null;
  const at = Math.min(Math.max(event.clientX - box.left, 0), box.width);
  svg.querySelector(".selection").setAttribute("width", 0);
  if (Math.abs(at - from) < 8) return;
  const [begin, end] = limits(svg);
  const ms = (x) => begin + ((end - begin) * x) / box.width;
  zoom(ms(Math.min(at, from)), ms(Math.max(at, from)));
});

document.addEventListener("click", (event) => {
  const mark = event.target.closest?.("svg.timeline rect, svg.timeline path");
  const said = document.querySelector("#said");
  const title = mark?.querySelector("title");
  if (said && title) said.textContent = title.textContent;
});

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("#search");
    if (search) { event.preventDefault(); search.focus(); }
    return;
  }
  const svg = document.querySelector("svg.timeline");
  if (!svg) return;
  const [from, to] = limits(svg);
  const width = to - from;
  const steps = { "+": [0.25, -0.25], "-": [-0.5, 0.5], ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25] };
  const step = steps[event.key];
  if (!step || (event.key.startsWith("Arrow") && event.target.closest(".wide"))) return;
  event.preventDefault();
  zoom(from + width * step[0], to + width * step[1]);
});

window.addEventListener("popstate", () => show(location.href).then(follow).catch(() => location.reload()));

localTimes(document);
follow();
