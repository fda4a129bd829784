// The status page of a cluster. It requests the state from scored once a second and draws it. It
// keeps only the state that it shows. All text is inserted as text, never as HTML.
"use strict";

const KINDS = ["load", "comm", "memory", "disk", "usr0", "usr1"];
const PERIOD_MS = 1000;
const TIMEOUT_MS = 8000;
const BAR_HEIGHT = 46;
const ROW_HEIGHT = 340;
const STACKS_PERIOD_MS = 200;

const byId = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let kind = 0;
let last = null;
let rows = [];
const cards = new Map();

// ---- texts

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function rough(value, units, step) {
  let at = 0;
  while (value >= step && at + 1 < units.length) {
    value /= step;
    at += 1;
  }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)}${units[at]}`;
}

const perSecond = (count) => `${rough(count, ["", " k", " M", " G"], 1000)} messages/s`;
const bytes = (count) => rough(count, [" B", " kB", " MB", " GB", " TB"], 1000);
const memory = (kib) => rough(kib, [" KiB", " MiB", " GiB", " TiB"], 1024);
const percent = (permille) => `${Math.round(permille / 10)} %`;

function duration(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// ---- colours

// The golden angle gives neighbouring job numbers clearly different colours.
const jobColour = (job) => `hsl(${(job * 137.508) % 360} 62% 52%)`;
// Higher values are redder (manual, figure 3.9).
const heat = (share) => `hsl(${Math.round(130 * (1 - share))} 68% 46%)`;

// ---- canvases

// Sets the height of a canvas. The height and the drawing context are in CSS pixels.
function prepare(canvas, height) {
  const width = Math.max(40, canvas.parentElement.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio) || Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, canvas.width / ratio];
}

// Sets the tooltips of a canvas. An area is [x, y, width, height, text].
function explain(canvas, areas) {
  canvas.areas = areas;
  if (canvas.explained) return;
  canvas.explained = true;
  const tip = byId("tip");
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const under = canvas.areas.find(([left, top, w, h]) => x >= left && x < left + w && y >= top && y < top + h);
    tip.hidden = !under;
    if (!under) return;
    tip.textContent = under[4]();
    tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 8)}px`;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
}

// Draws values between 0 and 1 as bars, with a gap before each new group, in as many lines as
// necessary.
function bars(canvas, values, groups, words) {
  const count = values.length;
  const gaps = groups.filter((group, at) => at > 0 && group !== groups[at - 1]).length;
  const width = Math.max(40, canvas.clientWidth);
  const each = Math.max(3, Math.min(26, (width - 4 * gaps) / Math.max(1, count)));
  const places = [];
  let [x, line] = [0, 0];
  for (let at = 0; at < count; at += 1) {
    if (at > 0 && groups[at] !== groups[at - 1]) x += 4;
    if (x + each > width + 0.5) [x, line] = [0, line + 1];
    places.push([x, line * (BAR_HEIGHT + 4)]);
    x += each;
  }
  const [pen] = prepare(canvas, (line + 1) * (BAR_HEIGHT + 4));
  const idle = style("--idle");
  const thick = each - (each > 5 ? 2 : 1);
  const areas = places.map(([left, top], at) => {
    const high = Math.round(values[at] * BAR_HEIGHT);
    pen.fillStyle = idle;
    pen.fillRect(left, top, thick, BAR_HEIGHT);
    pen.fillStyle = heat(values[at]);
    pen.fillRect(left, top + BAR_HEIGHT - Math.max(1, high), thick, Math.max(1, high));
    return [left, top, each, BAR_HEIGHT, () => words(at)];
  });
  explain(canvas, areas);
}

// Draws values between 0 and 1 of the last minute, with the newest at the right.
function trend(canvas, values) {
  const [pen, width] = prepare(canvas, BAR_HEIGHT);
  pen.fillStyle = style("--idle");
  pen.fillRect(0, 0, width, BAR_HEIGHT);
  const step = width / 60;
  values.forEach((value, at) => {
    const high = Math.max(1, value * BAR_HEIGHT);
    pen.fillStyle = heat(value);
    pen.fillRect(width - (values.length - at) * step, BAR_HEIGHT - high, Math.max(1, step - 0.5), high);
  });
}

// ---- jobs

function element(name, className, parent) {
  const made = document.createElement(name);
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function card(job) {
  const article = element("article", "job", byId("jobs"));
  const head = element("div", "head", article);
  const name = element("span", "name", head);
  const swatch = element("span", "swatch", name);
  swatch.style.background = jobColour(job.job);
  element("span", "", name).textContent = `job ${job.job}`;
  const facts = element("span", "fact", head);
  const pictures = element("div", "pictures", article);
  const now = element("figure", "bars", pictures);
  const barCanvas = element("canvas", "", now);
  const barNote = element("figcaption", "", now);
  const past = element("figure", "trend", pictures);
  const trendCanvas = element("canvas", "", past);
  element("figcaption", "", past).textContent = "the last minute";
  const stacks = stacksView(article, job.job, "POST");
  return { article, facts, pictures, barCanvas, barNote, trendCanvas, stacks };
}

// ---- stacks of the user's own jobs, which are read on request

// Creates a button and the tree that it requests. The method POST reads the stacks again.
function stacksView(parent, job, method) {
  const panel = element("div", "stacks", parent);
  const button = element("button", "", panel);
  button.type = "button";
  const note = element("span", "fact", panel);
  const problems = element("p", "fact", panel);
  const tree = element("pre", "", panel);
  tree.tabIndex = 0;
  problems.hidden = tree.hidden = true;
  const view = { panel, button, note };
  button.addEventListener("click", () => showStacks(job, method, { ...view, problems, tree }));
  return view;
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

async function fetchStacks(job, method) {
  const answer = await fetch(`stacks/${job}`, { method, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.status === 404) throw new Error("this job has no stacks, or is not yours");
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

async function showStacks(job, method, { button, note, problems, tree }) {
  button.disabled = true;
  note.textContent = "reading …";
  try {
    let stacks = await fetchStacks(job, method);
    while (stacks.state === "reading") {
      await pause(STACKS_PERIOD_MS);
      stacks = await fetchStacks(job, "GET");
    }
    if (stacks.state !== "read") throw new Error(stacks.text);
    const time = new Date(stacks.read_at * 1000).toLocaleTimeString();
    note.textContent = `${stacks.title ? `${stacks.title}, ` : ""}read at ${time}`;
    problems.textContent = stacks.problems.join("\n");
    problems.hidden = stacks.problems.length === 0;
    tree.textContent = stacks.text;
    tree.hidden = false;
  } catch (error) {
    note.textContent = error instanceof TypeError || error.name === "TimeoutError" ? "scored does not answer" : error.message;
  }
  button.disabled = false;
}

// Only the owner of a job may have its stacks read, even if other users see the job.
function drawStacksButton(view, job) {
  const runs = ["running", "suspended", "suspected-hang"].includes(job.state);
  view.panel.hidden = job.uid !== last.uid || !runs;
  view.button.textContent = job.state === "suspected-hang" ? "it may hang: show its stacks" : "stacks";
}

const ended = new Map();

function drawEnded() {
  const listed = new Set(last.jobs.map((job) => job.job));
  const shown = last.stacks.filter(([job]) => !listed.has(job));
  const numbers = new Set(shown.map(([job]) => job));
  for (const [job, view] of ended) {
    if (!numbers.has(job)) {
      view.panel.remove();
      ended.delete(job);
    }
  }
  for (const [job, title] of shown) {
    if (!ended.has(job)) ended.set(job, stacksView(byId("ended-jobs"), job, "GET"));
    ended.get(job).button.textContent = `job ${job}: ${title || "stacks"}`;
  }
  byId("ended").hidden = shown.length === 0;
}

function hostNames(job) {
  const names = job.hosts.slice(0, 4).map(([host]) => last.hosts[host]?.[0] ?? "?");
  const more = job.hosts.length - names.length;
  return names.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function facts(job) {
  const words = [`user ${job.uid}`];
  words.push(job.state === "waiting" && job.ahead !== null ? `waiting, ${job.ahead} before it` : job.state);
  if (job.nodes !== null) words.push(plural(job.nodes, "process").replace("processs", "processes"));
  if (job.hosts.length > 0) words.push(`on ${hostNames(job)}`);
  if (job.share_permille !== null) words.push(`had ${percent(job.share_permille)} of the last minute`);
  if (job.priority !== null) words.push(`priority ${job.priority}`);
  if (job.since_ms !== null) words.push(`for ${duration(job.since_ms)}`);
  return words.join(" · ");
}

function processWords(job, at) {
  const all = job.processes;
  const where = last.hosts[all.host[at]]?.[0] ?? "?";
  const elementWord = all.element.some((one) => one > 0) ? `, element ${all.element[at]}` : "";
  return [
    `node ${all.node[at]}${elementWord} on ${where}`,
    `busy ${percent(all.shares[0][at])}`,
    `${perSecond(all.messages[at])}, ${bytes(all.bytes[at])}/s`,
    `memory ${memory(all.memory_kib[at])}`,
    `usr0 ${percent(all.shares[4][at])}, usr1 ${percent(all.shares[5][at])}`,
  ].join("\n");
}

function caption(job) {
  const all = job.processes;
  const sum = (column) => column.reduce((total, value) => total + value, 0);
  const values = all.shares[kind];
  const mean = values.length > 0 ? sum(values) / values.length : 0;
  const name = KINDS[kind];
  if (name === "load") return `busy ${percent(mean)} in the mean`;
  if (name === "comm") return `${perSecond(sum(all.messages))}, ${bytes(sum(all.bytes))}/s in all`;
  if (name === "memory") return `${memory(sum(all.memory_kib))} in all`;
  return `${name}: ${percent(mean)} in the mean`;
}

function drawJobs() {
  const listed = new Set(last.jobs.map((job) => job.job));
  for (const [job, old] of cards) {
    if (!listed.has(job)) {
      old.article.remove();
      cards.delete(job);
    }
  }
  byId("no-jobs").hidden = last.jobs.length > 0;
  let shown = 0;
  for (const job of last.jobs) {
    if (!cards.has(job.job)) cards.set(job.job, card(job));
    const view = cards.get(job.job);
    view.facts.textContent = facts(job);
    drawStacksButton(view.stacks, job);
    const count = job.processes.node.length;
    shown += count;
    view.pictures.hidden = count === 0;
    view.pictures.style.display = count === 0 ? "none" : "";
    if (count === 0) continue;
    const values = job.processes.shares[kind].map((permille) => permille / 1000);
    bars(view.barCanvas, values, job.processes.host, (at) => processWords(job, at));
    view.barNote.textContent = caption(job);
    trend(view.trendCanvas, job.trend[kind].map((permille) => permille / 1000));
  }
  document.body.dataset.processes = String(shown);
  document.body.dataset.jobs = String(last.jobs.length);
}

// ---- the gang matrix: a column for each host, time downwards, the newest row at the top

function addRows() {
  const known = rows.length > 0 ? rows[rows.length - 1][0] : -1;
  rows.push(...last.rows.filter(([began]) => began > known));
  const begin = last.at_us - 60e6;
  const kept = rows.findIndex((row, at) => at + 1 >= rows.length || rows[at + 1][0] > begin);
  rows = rows.slice(Math.max(0, kept));
}

function drawMatrix() {
  const canvas = byId("matrix");
  const [pen, width] = prepare(canvas, ROW_HEIGHT + 18);
  const margin = 52;
  const count = Math.max(1, last.hosts.length);
  const column = Math.min(280, (width - margin) / count);
  // The matrix shows about fifty slices, and at least a second.
  const span = Math.min(60e6, Math.max(1e6, last.slice_ms * 1000 * 52));
  const y = (at) => Math.min(ROW_HEIGHT, ((last.at_us - at) / span) * ROW_HEIGHT);
  const faint = style("--faint");
  pen.fillStyle = style("--idle");
  pen.fillRect(margin, 0, column * count, ROW_HEIGHT);
  const places = new Map(last.jobs.map((job) => [job.job, job.hosts]));
  const areas = [];
  rows.forEach(([began, jobs], at) => {
    const end = at + 1 < rows.length ? rows[at + 1][0] : last.at_us;
    const [top, bottom] = [y(end), y(began)];
    if (top >= ROW_HEIGHT || bottom <= top) return;
    const gap = bottom - top > 4 ? 1 : 0;
    const filled = new Map();
    for (const job of jobs) {
      pen.fillStyle = jobColour(job);
      for (const [host, procs] of places.get(job) ?? []) {
        const slots = Math.max(1, last.hosts[host]?.[1] ?? 1);
        const from = filled.get(host) ?? 0;
        const part = Math.min(1 - Math.min(1, from), procs / slots);
        filled.set(host, from + part);
        const left = margin + (host + from) * column;
        pen.fillRect(left, top, Math.max(0.7, part * column - (column > 8 ? 1 : 0)), bottom - top - gap);
      }
    }
    const words = () => {
      const names = jobs.length > 0 ? jobs.map((job) => `job ${job}`).join(", ") : "no job";
      return `${names}\nfor ${((end - began) / 1000).toFixed(1)} ms, ${((last.at_us - end) / 1e6).toFixed(2)} s ago`;
    };
    areas.push([margin, top, column * count, bottom - top, words]);
  });
  explain(canvas, areas);
  pen.fillStyle = faint;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  for (let part = 0; part <= 4; part += 1) {
    const ago = (span / 1e6) * (part / 4);
    pen.fillText(part === 0 ? "now" : `−${ago.toFixed(ago < 10 ? 1 : 0)} s`, 4, Math.min(ROW_HEIGHT - 11, (ROW_HEIGHT * part) / 4));
  }
  const step = Math.ceil(46 / column);
  for (let host = 0; host < last.hosts.length; host += step) {
    const name = last.hosts[host][0];
    pen.fillText(name, margin + host * column + 2, ROW_HEIGHT + 3, step * column - 4);
  }
  const alone = rows.length === 0
    ? "No job has had a time slice yet."
    : `A column for each host, the newest slice at the top. A slice is ${last.slice_ms} ms; a job that shares its processors with no other job is never stopped. ${plural(last.switches, "change")} so far.`;
  byId("matrix-note").textContent = alone;
}

// ---- hosts

function drawHosts() {
  const busy = last.hosts.map(() => 0);
  const placed = last.hosts.map(() => 0);
  for (const job of last.jobs) {
    for (const [host, procs] of job.hosts) placed[host] += procs;
    // The shares are relative to the time in which the job has its processors.
    const part = (job.share_permille ?? 1000) / 1e6;
    job.processes.host.forEach((host, at) => { busy[host] += job.processes.shares[0][at] * part; });
  }
  const canvas = byId("hosts");
  const width = Math.max(40, canvas.clientWidth);
  const count = Math.max(1, last.hosts.length);
  const each = Math.max(10, Math.min(280, (width - 8) / count));
  const perLine = Math.max(1, Math.floor((width - 8) / each));
  const lineHeight = BAR_HEIGHT + 24;
  const [pen] = prepare(canvas, Math.ceil(count / perLine) * lineHeight + 6);
  const [idle, faint, alarm] = [style("--idle"), style("--faint"), style("--alarm")];
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  const areas = last.hosts.map(([name, slots, up], host) => {
    const left = 4 + (host % perLine) * each;
    const top = 4 + Math.floor(host / perLine) * lineHeight;
    const load = Math.min(1, busy[host] / Math.max(1, slots));
    const full = Math.min(1, placed[host] / Math.max(1, slots));
    const thick = each - (each > 12 ? 6 : 2);
    pen.fillStyle = idle;
    pen.fillRect(left, top, thick, BAR_HEIGHT);
    if (up) {
      pen.fillStyle = heat(load);
      pen.fillRect(left, top + BAR_HEIGHT * (1 - load), thick, Math.max(1, BAR_HEIGHT * load));
    }
    pen.fillStyle = faint;
    pen.fillRect(left, top + BAR_HEIGHT + 2, thick * full, 2);
    pen.fillStyle = up ? faint : alarm;
    if (each >= 24) pen.fillText(up ? name : `${name} ✕`, left, top + BAR_HEIGHT + 6, thick);
    const words = () => up
      ? `${name}: busy ${percent(load * 1000)} of ${plural(slots, "slot")}\n${placed[host]} processes of all jobs`
      : `${name} is down`;
    return [left, top, each, lineHeight, words];
  });
  explain(canvas, areas);
}

// ---- the whole page

function draw() {
  if (last === null) return;
  const running = last.jobs.filter((job) => ["running", "suspected-hang"].includes(job.state)).length;
  const waiting = last.jobs.filter((job) => job.state === "waiting").length;
  const up = last.hosts.filter(([, , isUp]) => isUp).length;
  const access = last.operator ? "operator, sees all" : "sees own jobs in full";
  // Only operators receive this number.
  const turn = last.longest_turn_us == null ? "" : ` · longest turn of scored in a minute ${(last.longest_turn_us / 1000).toFixed(1)} ms`;
  byId("summary").textContent =
    `server ${last.server} · ${up} of ${plural(last.hosts.length, "host")} · ` +
    `${running} running, ${waiting} waiting · user ${last.uid} (${access})${turn}`;
  drawJobs();
  drawEnded();
  drawMatrix();
  drawHosts();
}

function showError(text) {
  const alert = byId("trouble");
  alert.hidden = text === "";
  alert.textContent = text;
}

async function fetchState() {
  const answer = await fetch("data", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.status === 403) {
    throw new Error("This address is no longer valid: scored was restarted. scps -page prints the new one.");
  }
  if (!answer.ok) throw new Error(`scored answers ${answer.status} ${answer.statusText}.`);
  return answer.json();
}

async function update() {
  if (!document.hidden) {
    try {
      const data = await fetchState();
      // The time of a restarted server begins at 0.
      if (last !== null && data.at_us < last.at_us) rows = [];
      last = data;
      addRows();
      draw();
      showError("");
    } catch (error) {
      const known = error instanceof TypeError || error.name === "TimeoutError";
      showError(known ? "scored does not answer. What is shown is old." : error.message);
    }
  }
  setTimeout(update, PERIOD_MS);
}

function chooseKinds() {
  KINDS.forEach((name, at) => {
    const label = element("label", "", byId("kinds"));
    const input = element("input", "", label);
    input.type = "radio";
    input.name = "kind";
    input.checked = at === kind;
    input.addEventListener("change", () => {
      kind = at;
      draw();
    });
    element("span", "", label).textContent = ` ${name}`;
  });
}

chooseKinds();
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
update();
