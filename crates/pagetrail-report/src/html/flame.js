"use strict";
// The flame graph and the table of functions below a heatmap. `code` is what was sampled, `pick` is
// called with the function that is chosen, or null.
function Flame(part, code, pick) {
  const ROW = 18, LEAST = 0.4, SHOWN = 20, LETTERS_MAX = 200;
  const canvas = part("flame-graph"), tip = part("flame-tip"), all = part("all-code");
  const scope = part("scope"), body = part("functions").tBodies[0];
  let chosen = null, sums = null, words = "", places = [], boxes = [];
  const group = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const percent = (share) => (share < 0.1 ? (100 * share).toFixed(1) : (100 * share).toFixed(0)) + "%";
  const element = (tag, text, kind) => Object.assign(document.createElement(tag), { textContent: text, className: kind ?? "" });

  // A warm colour that a name always has; what is in brackets is no function's name.
  function colour(name, isDim) {
    let hash = 2166136261;
    for (const c of name) hash = Math.imul(hash ^ c.codePointAt(0), 16777619) >>> 0;
    const grey = name.startsWith("[");
    const hue = 12 + (hash % 36), light = 62 + ((hash >>> 8) % 12);
    return `hsl(${hue} ${grey ? 0 : isDim ? 12 : 78}% ${light}%)`;
  }

  function choose(name) {
    chosen = name === chosen ? null : name;
    // The map shows it, and has this drawn with it.
    pick(chosen);
  }

  function draw() {
    const wide = canvas.parentElement.clientWidth;
    if (wide === 0 || sums === null) return;
    const total = places.length > 0 ? places[0].pages : 0;
    const scale = wide / Math.max(1, total);
    const shown = places.filter((place) => place.pages * scale >= LEAST);
    const depth = shown.reduce((most, place) => Math.max(most, place.depth), 0);
    const height = ROW * (depth + 1);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = '11px ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", monospace';
    c.textBaseline = "middle";
    const letter = c.measureText("m").width || 7;
    boxes = shown.map((place) => ({ place, x: place.from * scale, y: height - ROW * (place.depth + 1), w: place.pages * scale }));
    for (const { place, x, y, w } of boxes) {
      const name = code.name(place.name);
      c.fillStyle = colour(name, chosen !== null && place.name !== chosen);
      c.fillRect(x, y, Math.max(LEAST, w - 0.6), ROW - 1);
      const letters = Math.min(LETTERS_MAX, Math.floor((w - 6) / letter));
      if (letters < 3) continue;
      const characters = Array.from(name);
      c.fillStyle = "#1b1d21";
      c.fillText(characters.length <= letters ? name : characters.slice(0, letters - 1).join("") + "…", x + 3, y + ROW / 2);
    }
    scope.textContent = words;
    all.disabled = chosen === null;
    table(total);
  }

  function table(total) {
    const functions = code.functions(sums);
    const rows = functions.slice(0, SHOWN);
    const of = functions.find((counts) => counts.name === chosen);
    if (of && !rows.includes(of)) rows.push(of);
    const focused = body.contains(document.activeElement) ? document.activeElement.textContent : null;
    body.replaceChildren(...rows.map((counts) => {
      const row = document.createElement("tr");
      if (counts.name === chosen) row.className = "chosen";
      const button = element("button", code.name(counts.name), "plain");
      button.type = "button";
      button.setAttribute("aria-pressed", String(counts.name === chosen));
      button.addEventListener("click", () => choose(counts.name));
      const head = document.createElement("td");
      head.append(button);
      const share = (pages) => element("td", percent(pages / Math.max(1, total)));
      row.append(head, element("td", group(counts.own)), share(counts.own), share(counts.total));
      return row;
    }));
    if (focused !== null) Array.from(body.querySelectorAll("button")).find((button) => button.textContent === focused)?.focus();
    if (functions.length > rows.length) {
      const row = document.createElement("tr");
      const rest = element("td", "and " + group(functions.length - rows.length) + " functions that wrote less");
      rest.colSpan = 4;
      row.append(rest);
      body.append(row);
    }
  }

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return [x, y, boxes.find((b) => x >= b.x && x < b.x + Math.max(1, b.w) && y >= b.y && y < b.y + ROW)];
  };
  canvas.addEventListener("click", (event) => {
    const [, , found] = under(event);
    if (found && found.place.depth > 0) choose(found.place.name);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y, found] = under(event);
    tip.hidden = !found;
    if (!found) return;
    const share = found.place.pages / Math.max(1, places[0].pages);
    tip.replaceChildren(element("b", code.name(found.place.name)), element("div", group(found.place.pages) + " pages written, " + percent(share)));
    const wide = canvas.parentElement.clientWidth;
    tip.style.left = Math.max(4, Math.min(x + 16, wide - tip.offsetWidth - 4)) + "px";
    tip.style.top = y + 16 + "px";
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  all.addEventListener("click", () => choose(null));

  return {
    // Shows the stacks of such cells; `text` says which those are, from the pages attributed.
    show(inColumn, inRow, text) {
      sums = code.sums(inColumn, inRow);
      places = code.flame(sums);
      words = text(places.length > 0 ? places[0].pages : 0);
      draw();
    },
  };
}
