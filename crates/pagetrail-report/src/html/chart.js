"use strict";
// Each heatmap, and the rate of writes or accesses below it.
for (const map of document.querySelectorAll("section.map")) (() => {
  const part = (name) => map.querySelector("." + name);
  // Everything that comes from the recording is data: it reaches the page as text only.
  const data = JSON.parse(part("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

  const plot = part("plot");
  if (data.bands.length === 0) {
    plot.parentElement.classList.add("blank");
    plot.replaceChildren(Object.assign(document.createElement("p"), { className: "empty", textContent: "Nothing was " + data.done + "." }));
    return;
  }

  // --- the grid -----------------------------------------------------------------------------
  const cols = data.edges.length - 1;
  let rows = 0;
  for (const band of data.bands) {
    band.firstRow = rows;
    rows += band.rows.length;
  }
  // A row is its start address, its length in bytes and the pages that it stands for.
  const rowOf = data.bands.flatMap((band) => band.rows);
  // Which code wrote, if that was sampled.
  const code = data.code ? Code(data.code, data.bands.map((band) => band.rows.length), cols) : null;

  // Cells are pairs of LEB128 numbers: how many cells to skip, then page writes in the next one.
  const counts = new Float64Array(rows * cols);
  const levels = new Uint8Array(rows * cols);
  {
    const input = bytes(data.cells);
    let at = 0;
    const number = () => {
      let value = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = input[at++];
        value += (byte & 127) * scale;
        if (byte < 128) return value;
      }
    };
    for (let cell = -1; at < input.length; ) {
      cell += number() + 1;
      const count = number();
      const most = rowOf[Math.floor(cell / cols)][2] * data.roundsIn[cell % cols];
      counts[cell] = count;
      // The same three decades as the legend; anything written is at least level 1.
      levels[cell] = clamp(Math.round(255 * (1 + Math.log10(count / most) / 3)), 1, 255);
    }
  }

  const scaleBytes = bytes(data.scale);
  const palette = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = scaleBytes.subarray(3 * i, 3 * i + 3);
    palette[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  // Where a function is chosen, what it did not write is grey, and levels of what it wrote are 256
  // higher.
  const chosenPalette = new Uint32Array(512);
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = scaleBytes.subarray(3 * i, 3 * i + 3);
    const grey = Math.round(0.25 * r + 0.3 * g + 0.1 * b);
    chosenPalette[i] = i === 0 ? palette[0] : (255 << 24) | (grey << 16) | (grey << 8) | grey;
    chosenPalette[256 + i] = palette[i];
  }
  let shownLevels = levels;
  function choose(name) {
    shownLevels = levels;
    if (name !== null) {
      const cells = code.cellsOf(name);
      shownLevels = new Uint16Array(levels);
      for (let cell = 0; cell < levels.length; cell++)
        if (levels[cell] > 0 && cells[code.cellAt(Math.floor(cell / cols), cell % cols)]) shownLevels[cell] += 256;
    }
    draw();
  }
  {
    const legend = part("legend-strip").getContext("2d");
    const strip = legend.createImageData(256, 1);
    new Uint32Array(strip.data.buffer).set(palette);
    legend.putImageData(strip, 0, 0);
  }

  // --- words --------------------------------------------------------------------------------
  const group = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const binary = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
    return (Number.isInteger(n) || n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2)) + " " + units[unit];
  };
  const seconds = (ms, digits) => {
    const s = ms / 1000;
    if (s < 120) return s.toFixed(digits) + " s";
    const two = (n) => String(n).padStart(2, "0");
    const whole = Math.floor(s + 1e-9);
    const fraction = digits > 0 ? (s - whole).toFixed(digits).slice(1) : "";
    const hours = Math.floor(whole / 3600);
    const rest = two(Math.floor(whole / 60) % 60) + ":" + two(whole % 60) + fraction;
    return hours > 0 ? hours + ":" + rest : rest;
  };
  const hex = (n) => "0x" + n.toString(16);
  const niceStep = (span, ticks) => {
    const raw = span / ticks;
    const clock = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400].map((s) => s * 1000);
    if (raw > 1000) return clock.find((s) => s >= raw) ?? Math.ceil(raw / 86400000) * 86400000;
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  };

  // --- layout -------------------------------------------------------------------------------
  const chart = part("chart");
  const overlay = part("overlay");
  const tip = part("tip");
  const reset = part("reset");
  const RATE_HEIGHT = 112, AXIS_HEIGHT = 30, TOP = 12, BETWEEN = 16, RIGHT = 18;

  // A band's height grows with what was written in it, so that area means writes. Those with next to
  // nothing are lines without a name.
  const SMALL = 0.005;
  const named = data.bands.filter((b) => b.share >= SMALL).length;
  const BAND_LEAST = clamp(360 / Math.max(1, named), 4, 15), BAND_GAP = data.bands.length > 60 ? 0 : 2;
  const LINE = clamp(160 / Math.max(1, data.bands.length - named), 1, 3);
  const weights = data.bands.map((b) => Math.sqrt(b.share) * (b.share >= SMALL ? 1 : 0));
  const weightSum = weights.reduce((a, b) => a + b, 0) || 1;
  const spare = clamp(520 - data.bands.length * BAND_GAP - named * BAND_LEAST, 200, 520);
  let tall = 0;
  data.bands.forEach((band, i) => {
    band.y = tall;
    band.h = band.share >= SMALL ? BAND_LEAST + (spare * weights[i]) / weightSum : LINE;
    tall += band.h + (band.share >= SMALL ? BAND_GAP : 0);
  });
  const heatHeight = Math.max(60, tall - BAND_GAP);
  const full = { t0: data.edges[0], t1: Math.max(data.edges[cols], data.edges[0] + 0.001), y0: 0, y1: heatHeight };
  let view = { ...full };
  let wide = 0, gutter = 0;
  const rateTop = TOP + heatHeight + BETWEEN;
  const height = rateTop + RATE_HEIGHT + AXIS_HEIGHT;

  const plotWidth = () => wide - gutter - RIGHT;
  const xOf = (t) => gutter + ((t - view.t0) / (view.t1 - view.t0)) * plotWidth();
  const tOf = (x) => view.t0 + ((x - gutter) / plotWidth()) * (view.t1 - view.t0);
  const yOf = (y) => TOP + ((y - view.y0) / (view.y1 - view.y0)) * heatHeight;
  const layoutOf = (y) => view.y0 + ((y - TOP) / heatHeight) * (view.y1 - view.y0);
  const columnAt = (t) => {
    let low = 0, high = cols;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (data.edges[middle] <= t) low = middle; else high = middle;
    }
    return low;
  };
  const bandAt = (y) => data.bands.find((b) => y >= b.y && y < b.y + b.h);

  // --- drawing ------------------------------------------------------------------------------
  const context = (canvas) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    return c;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const sans = '12px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  const mono = '11px ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", monospace';

  function drawHeat(c) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(plotWidth() * ratio));
    const high = Math.round(heatHeight * ratio);
    const image = c.createImageData(width, high);
    const pixels = new Uint32Array(image.data.buffer);
    // Per pixel column the grid columns under it: a pixel shows the highest of its cells, so
    // that a single written page stays visible at any zoom.
    const from = new Uint32Array(width), to = new Uint32Array(width);
    for (let x = 0; x < width; x++) {
      const span = (view.t1 - view.t0) / width;
      from[x] = columnAt(view.t0 + x * span);
      to[x] = Math.max(from[x], columnAt(view.t0 + (x + 0.999) * span));
    }
    const colours = shownLevels === levels ? palette : chosenPalette;
    const line = new Uint16Array(cols);
    let lineFrom = -1, lineTo = -1;
    for (let y = 0; y < high; y++) {
      const scale = (view.y1 - view.y0) / high;
      const top = view.y0 + y * scale;
      const band = bandAt(top + scale / 2);
      if (!band) continue;
      const first = band.firstRow + clamp(Math.floor(((top - band.y) / band.h) * band.rows.length), 0, band.rows.length - 1);
      const last = band.firstRow + clamp(Math.ceil(((top + scale - band.y) / band.h) * band.rows.length) - 1, 0, band.rows.length - 1);
      const at = y * width;
      if (first === lineFrom && last === lineTo) {
        pixels.copyWithin(at, at - width, at);
        continue;
      }
      lineFrom = first;
      lineTo = last;
      line.set(shownLevels.subarray(first * cols, (first + 1) * cols));
      for (let row = first + 1; row <= last; row++) {
        const cells = shownLevels.subarray(row * cols, (row + 1) * cols);
        for (let col = 0; col < cols; col++) if (cells[col] > line[col]) line[col] = cells[col];
      }
      for (let x = 0; x < width; x++) {
        let level = 0;
        for (let col = from[x]; col <= to[x]; col++) if (line[col] > level) level = line[col];
        pixels[at + x] = colours[level];
      }
    }
    return image;
  }

  function draw() {
    // That of a process that is not shown has no size.
    if (plot.clientWidth === 0) return;
    wide = plot.clientWidth;
    gutter = clamp(wide * 0.17, 90, 230);
    const c = context(chart);
    context(overlay);
    const ink = colour("--ink"), soft = colour("--soft"), rule = colour("--line");
    const accent = colour("--accent"), wash = colour("--accent-wash");
    const ratio = window.devicePixelRatio || 1;

    // Heat.
    c.save();
    c.beginPath();
    c.rect(0, TOP, wide, heatHeight);
    c.clip();
    const image = drawHeat(c);
    const layer = document.createElement("canvas");
    layer.width = image.width;
    layer.height = image.height;
    layer.getContext("2d").putImageData(image, 0, 0);
    c.imageSmoothingEnabled = false;
    c.drawImage(layer, 0, 0, image.width, image.height, Math.round(gutter * ratio) / ratio, TOP, plotWidth(), heatHeight);

    // Names at the left, with addresses where there is room.
    for (const band of data.bands) {
      const y0 = Math.max(TOP, yOf(band.y)), y1 = Math.min(TOP + heatHeight, yOf(band.y + band.h));
      if (y1 - y0 < 9) continue;
      c.textAlign = "right";
      c.textBaseline = "middle";
      const roomy = y1 - y0 >= 36;
      c.font = sans;
      c.fillStyle = ink;
      const percent = wide < 760 ? "" : "  " + (100 * band.share < 10 ? (100 * band.share).toFixed(1) : (100 * band.share).toFixed(0)) + "%";
      const room = gutter - 24 - c.measureText(percent).width;
      const label = wide < 760 ? band.label.replace(/ [0-9a-f]{6,}$/, "") : band.label;
      c.fillText(shorten(c, label, room) + percent, gutter - 12, roomy ? (y0 + y1) / 2 - 8 : (y0 + y1) / 2);
      if (roomy) {
        c.font = mono;
        c.fillStyle = soft;
        c.fillText(shorten(c, band.rows[0][0], gutter - 24), gutter - 12, (y0 + y1) / 2 + 9);
      }
      c.fillStyle = rule;
      c.fillRect(gutter - 5, y0, 1, y1 - y0);
    }
    c.restore();

    // Time axis and grid lines.
    const step = niceStep(view.t1 - view.t0, Math.max(2, plotWidth() / 110));
    const digits = clamp(-Math.floor(Math.log10(step / 1000) + 1e-9), 0, 6);
    c.font = sans;
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    for (let tick = Math.ceil(view.t0 / step - 1e-9); tick * step <= view.t1 + step * 1e-9; tick++) {
      const x = Math.round(xOf(tick * step)) + 0.5;
      c.fillStyle = rule;
      c.fillRect(x - 0.5, rateTop, 1, RATE_HEIGHT + 5);
      c.fillStyle = soft;
      const label = seconds(tick * step, digits);
      const half = c.measureText(label).width / 2;
      c.fillText(label, clamp(x, gutter + half, wide - half - 4), rateTop + RATE_HEIGHT + 20);
    }

    // Write rate.
    const first = columnAt(view.t0), last = columnAt(view.t1 - 1e-9);
    let most = 0;
    for (let col = first; col <= last; col++) most = Math.max(most, rate(col));
    const unit = 2 ** (10 * Math.floor(Math.log2(Math.max(1, most)) / 10));
    const rateStep = niceRate(most / unit) * unit;
    const top = Math.max(rateStep, Math.ceil(most / rateStep) * rateStep);
    const rateY = (value) => rateTop + RATE_HEIGHT - (value / top) * RATE_HEIGHT;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (let value = 0; value <= top * 1.001; value += rateStep) {
      c.fillStyle = rule;
      c.fillRect(gutter, Math.round(rateY(value)), plotWidth(), 1);
      c.fillStyle = soft;
      if (value > 0) c.fillText(binary(value) + "/s", gutter - 12, rateY(value));
    }
    c.fillStyle = ink;
    c.fillText(data.done === "written" ? "write rate" : "access rate", gutter - 12, rateY(0) - 2);
    c.save();
    c.beginPath();
    c.rect(gutter, rateTop - 2, plotWidth(), RATE_HEIGHT + 3);
    c.clip();
    // Where columns are finer than pixels each pixel shows the highest, as in the heatmap.
    c.beginPath();
    let pen = -1, highest = 0;
    const points = [];
    for (let col = first; col <= last; col++) {
      const x0 = xOf(data.edges[col]), x1 = xOf(data.edges[col + 1]);
      highest = Math.max(highest, rate(col));
      if (x1 - pen < 1 && col < last) continue;
      points.push([Math.max(pen, Math.min(x0, x1)), x1, rateY(highest)]);
      pen = x1;
      highest = 0;
    }
    points.forEach(([x0, x1, y], i) => { i ? c.lineTo(x0, y) : c.moveTo(x0, y); c.lineTo(x1, y); });
    c.strokeStyle = accent;
    c.lineWidth = 1.4;
    c.lineJoin = "round";
    c.stroke();
    if (points.length) {
      c.lineTo(points[points.length - 1][1], rateY(0));
      c.lineTo(points[0][0], rateY(0));
      c.fillStyle = wash;
      c.fill();
    }
    c.restore();
    reset.disabled = Object.keys(full).every((key) => view[key] === full[key]);
    showCode();
  }

  // --- code ---------------------------------------------------------------------------------
  const flame = code ? Flame(part, code, choose) : null;
  const columnPlaces = [], rowPlaces = [];
  if (code) {
    for (let i = 0; i < code.width; i++) columnPlaces.push([data.edges[code.columnStarts[i]], data.edges[code.columnStarts[i + 1]]]);
    for (let i = 0; i < code.height; i++) {
      const first = code.rowStarts[i];
      const band = data.bands.findLast((b) => b.firstRow <= first);
      const y = (row) => band.y + ((row - band.firstRow) / band.rows.length) * band.h;
      rowPlaces.push([y(first), y(code.rowStarts[i + 1]), band]);
    }
  }
  // The flame graph is of what the map shows.
  function showCode() {
    if (!flame) return;
    const inColumn = code.within(columnPlaces, view.t0, view.t1), inRow = code.within(rowPlaces, view.y0, view.y1);
    let written = 0;
    const names = new Set();
    for (let row = 0; row < code.height; row++) {
      if (!inRow[row]) continue;
      names.add(rowPlaces[row][2].name);
      for (let at = code.rowStarts[row]; at < code.rowStarts[row + 1]; at++)
        for (let i = 0; i < code.width; i++)
          if (inColumn[i]) for (let col = code.columnStarts[i]; col < code.columnStarts[i + 1]; col++) written += counts[at * cols + col];
    }
    const fine = clamp(Math.ceil(-Math.log10((view.t1 - view.t0) / 1000)) + 1, 0, 6);
    const span = seconds(view.t0, fine) + " – " + seconds(view.t1, fine);
    const where = names.size > 3 ? group(names.size) + " mappings" : Array.from(names).join(", ");
    flame.show(inColumn, inRow, (pages) => span + ", " + where + ": " + (pages === 0
      ? "none of " + group(written) + " page writes has a sample."
      : Math.min(100, (100 * pages) / Math.max(1, written)).toFixed(1) + "% of " + group(written) + " page writes are attributed to code."));
  }

  const rate = (col) => (data.written[col] * data.pageSize * 1000) / Math.max(1e-6, data.edges[col + 1] - data.edges[col]);
  const niceRate = (span) => {
    const raw = Math.max(span, 1e-9) / 3;
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999);
  };
  const shorten = (c, text, room) => {
    if (c.measureText(text).width <= room) return text;
    // Of a name with its address, the name and the end of the address.
    const [, name, address] = text.match(/^(.*) ([0-9a-f]{7,})$/) ?? [];
    for (let digits = (address ?? "").length - 1; digits >= 6; digits--) {
      const short = name + " …" + address.slice(-digits);
      if (c.measureText(short).width <= room) return short;
    }
    // Addresses differ at their end, names at their beginning.
    const characters = Array.from(text), isAddress = text.startsWith("0x");
    const cut = () => (isAddress ? "…" + characters.join("") : characters.join("") + "…");
    while (characters.length > 1 && c.measureText(cut()).width > room) isAddress ? characters.shift() : characters.pop();
    return cut();
  };

  // --- hover --------------------------------------------------------------------------------
  const clearOverlay = () => {
    const c = overlay.getContext("2d");
    c.clearRect(0, 0, wide, height);
    return c;
  };
  const inside = (x, y) => x >= gutter && x < wide - RIGHT && y >= TOP && y < rateTop + RATE_HEIGHT;
  const fill = (lines) => {
    tip.replaceChildren(...lines.map(([tag, text, kind]) => {
      const element = document.createElement(tag);
      element.textContent = text;
      if (kind) element.className = kind;
      return element;
    }));
  };

  // The highest cell under the pixel at (x, y): the one whose colour is seen there.
  function cellUnder(band, x, y) {
    const rowAt = (py) => band.firstRow + clamp(Math.floor(((layoutOf(py) - band.y) / band.h) * band.rows.length), 0, band.rows.length - 1);
    const first = columnAt(tOf(x - 0.5)), last = columnAt(tOf(x + 0.5));
    let best = rowAt(y) * cols + columnAt(tOf(x));
    for (let row = rowAt(y - 0.5); row <= rowAt(y + 0.5); row++)
      for (let col = first; col <= last; col++)
        if (levels[row * cols + col] > levels[best]) best = row * cols + col;
    return best;
  }

  function hover(x, y) {
    const c = clearOverlay();
    if (!inside(x, y)) { tip.hidden = true; return; }
    c.fillStyle = colour("--cross");
    c.fillRect(Math.round(x), TOP, 1, heatHeight);
    c.fillStyle = colour("--accent");
    c.fillRect(Math.round(x), rateTop, 1, RATE_HEIGHT);
    let column = columnAt(tOf(x));
    const lines = [];
    const band = y < TOP + heatHeight ? bandAt(layoutOf(y)) : undefined;
    if (band) {
      c.fillStyle = colour("--cross");
      c.fillRect(gutter, Math.round(y), plotWidth(), 1);
      const cell = cellUnder(band, x, y);
      column = cell % cols;
      const [start, length, pages] = rowOf[Math.floor(cell / cols)];
      lines.push(["b", band.name + (band.share >= 0.001 ? ", " + (100 * band.share).toFixed(1) + "% of all" : "")]);
      lines.push(["div", start + " – " + hex(BigInt(start) + BigInt(length)), "mono"]);
      const rounds = data.roundsIn[column];
      const written = counts[cell];
      const share = (100 * written) / (pages * rounds);
      const percent = written === 0 ? "" : " (" + (share < 0.1 ? "<0.1" : share.toFixed(share < 10 ? 1 : 0)) + "%)";
      lines.push(["div", rounds === 1
        ? group(written) + " of " + group(pages) + (pages === 1 ? " page" : " pages") + " " + data.done + percent
        : group(written) + (data.done === "written" ? " page writes of " : " page accesses of ") + group(pages) + (pages === 1 ? " page" : " pages") + " in " + rounds + " rounds" + percent, "value"]);
      if (code && written > 0) {
        const { all, functions } = code.writersIn(code.cellAt(Math.floor(cell / cols), column));
        if (all === 0) lines.push(["div", "no sample says which code wrote"]);
        for (const { name, own } of functions.slice(0, 3))
          lines.push(["div", Math.round((100 * own) / all) + "% by " + Array.from(code.name(name)).slice(0, 48).join("")]);
      }
    } else {
      lines.push(["b", data.done === "written" ? "Write rate" : "Access rate"]);
    }
    const fine = clamp(-Math.floor(Math.log10((data.edges[column + 1] - data.edges[column]) / 1000)) + 1, 0, 6);
    lines.push(["div", seconds(data.edges[column], fine) + " – " + seconds(data.edges[column + 1], fine)]);
    lines.push(["div", "all mappings: " + binary(rate(column)) + "/s, " + group(rate(column) / data.pageSize) + " pages/s"]);
    fill(lines);
    tip.hidden = false;
    const left = x + 16 + tip.offsetWidth > wide ? x - 16 - tip.offsetWidth : x + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = clamp(y + 16, 4, Math.max(4, height - tip.offsetHeight - 4)) + "px";
  }

  // --- zoom ---------------------------------------------------------------------------------
  const leastTime = Math.max((full.t1 - full.t0) / 1e6, Math.min(1, full.t1 - full.t0));
  function show(next) {
    const time = clamp(next.t1 - next.t0, leastTime, full.t1 - full.t0);
    const tallness = clamp(next.y1 - next.y0, Math.min(2, heatHeight), heatHeight);
    const t0 = clamp(next.t0, full.t0, full.t1 - time), y0 = clamp(next.y0, 0, heatHeight - tallness);
    view = { t0, t1: t0 + time, y0, y1: y0 + tallness };
    if (time === full.t1 - full.t0) Object.assign(view, { t0: full.t0, t1: full.t1 });
    draw();
  }
  function zoom(factor, x, y) {
    const t = tOf(x), at = layoutOf(y);
    const next = { ...view };
    if (x !== null) Object.assign(next, { t0: t - (t - view.t0) * factor, t1: t + (view.t1 - t) * factor });
    if (y !== null) Object.assign(next, { y0: at - (at - view.y0) * factor, y1: at + (view.y1 - at) * factor });
    show(next);
  }
  const unzoom = () => { view = { ...full }; draw(); };

  let drag = null;
  const place = (event) => {
    const box = overlay.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  // Fingers: a tap shows what is there, one finger moves along time where that is zoomed, two zoom.
  // Up and down is the page's own.
  const fingers = new Map();
  let grip = null;
  const gripNow = () => {
    const xs = [...fingers.values()].map(([x]) => x);
    grip = { xs, moved: false, t0: view.t0, t1: view.t1 };
  };
  const isZoomed = () => view.t1 - view.t0 < full.t1 - full.t0;
  function moveFingers() {
    const xs = [...fingers.values()].map(([x]) => x);
    if (xs.length !== grip.xs.length) return;
    const middle = (of) => of.reduce((a, b) => a + b, 0) / of.length;
    const from = middle(grip.xs), to = middle(xs);
    if (xs.length === 1 && Math.abs(to - from) < 8 && !grip.moved) return;
    grip.moved = true;
    if (xs.length === 1 && !isZoomed()) return;
    const apart = (of) => Math.max(20, Math.abs(of[0] - of[1]));
    const factor = xs.length === 2 ? apart(grip.xs) / apart(xs) : 1;
    const span = (grip.t1 - grip.t0) * factor;
    // What lay under the fingers stays there.
    const under = grip.t0 + ((from - gutter) / plotWidth()) * (grip.t1 - grip.t0);
    const t0 = under - ((to - gutter) / plotWidth()) * span;
    tip.hidden = true;
    clearOverlay();
    show({ ...view, t0, t1: t0 + span });
  }
  overlay.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    if (event.pointerType === "touch") {
      if (fingers.size === 2) return;
      fingers.set(event.pointerId, [x, y]);
      const moved = fingers.size > 1;
      gripNow();
      grip.moved = moved;
      return;
    }
    if (event.button !== 0 || !inside(x, y)) return;
    drag = { x, y, time: y >= TOP + heatHeight };
    overlay.setPointerCapture(event.pointerId);
  });
  const selection = (x, y) => {
    const x1 = clamp(x, gutter, wide - RIGHT), y1 = clamp(y, TOP, TOP + heatHeight);
    const both = !drag.time && Math.abs(y1 - drag.y) > 12;
    return {
      left: Math.min(drag.x, x1), right: Math.max(drag.x, x1),
      top: both ? Math.min(drag.y, y1) : TOP, bottom: both ? Math.max(drag.y, y1) : TOP + heatHeight,
    };
  };
  overlay.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (event.pointerType === "touch") {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, [x, y]);
      return moveFingers();
    }
    if (!drag) return hover(x, y);
    const s = selection(x, y);
    const c = clearOverlay();
    tip.hidden = true;
    c.fillStyle = "rgba(255, 255, 255, 0.14)";
    c.strokeStyle = colour("--cross");
    c.fillRect(s.left, s.top, s.right - s.left, s.bottom - s.top);
    c.strokeRect(s.left + 0.5, s.top + 0.5, s.right - s.left, s.bottom - s.top);
    c.fillStyle = colour("--accent-wash");
    c.fillRect(s.left, rateTop, s.right - s.left, RATE_HEIGHT);
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const tapped = event.type === "pointerup" && fingers.size === 0 && !grip.moved;
    if (fingers.size > 0) { gripNow(); grip.moved = true; }
    if (tapped) hover(...place(event));
  };
  overlay.addEventListener("pointerup", (event) => {
    if (event.pointerType === "touch") return lift(event);
    if (!drag) return;
    const s = selection(...place(event));
    drag = null;
    clearOverlay();
    if (s.right - s.left < 5) return;
    show({ t0: tOf(s.left), t1: tOf(s.right), y0: layoutOf(s.top), y1: layoutOf(s.bottom) });
  });
  overlay.addEventListener("pointercancel", (event) => {
    if (event.pointerType === "touch") return lift(event);
    drag = null;
    clearOverlay();
  });
  overlay.addEventListener("pointerleave", (event) => { if (!drag && event.pointerType !== "touch") { tip.hidden = true; clearOverlay(); } });
  overlay.addEventListener("dblclick", unzoom);
  overlay.addEventListener("wheel", (event) => {
    const [x, y] = place(event);
    if (!inside(x, y)) return;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.shiftKey && sideways && isZoomed()) {
      event.preventDefault();
      const time = (event.deltaX / plotWidth()) * (view.t1 - view.t0);
      show({ ...view, t0: view.t0 + time, t1: view.t1 + time });
      return;
    }
    // The wheel alone scrolls the page. Browsers turn it sideways while Shift is down.
    const delta = event.deltaY || event.deltaX;
    if (!event.ctrlKey || delta === 0) return;
    event.preventDefault();
    const factor = Math.exp(clamp(delta, -120, 120) * 0.0022);
    if (event.shiftKey) zoom(factor, null, y); else zoom(factor, x, null);
    hover(x, y);
  }, { passive: false });
  overlay.addEventListener("keydown", (event) => {
    const time = (view.t1 - view.t0) * 0.15, up = (view.y1 - view.y0) * 0.15;
    const middle = gutter + plotWidth() / 2;
    const act = {
      ArrowLeft: () => show({ ...view, t0: view.t0 - time, t1: view.t1 - time }),
      ArrowRight: () => show({ ...view, t0: view.t0 + time, t1: view.t1 + time }),
      ArrowUp: () => show({ ...view, y0: view.y0 - up, y1: view.y1 - up }),
      ArrowDown: () => show({ ...view, y0: view.y0 + up, y1: view.y1 + up }),
      "+": () => zoom(0.75, middle, null),
      "=": () => zoom(0.75, middle, null),
      "-": () => zoom(1 / 0.75, middle, null),
      Escape: unzoom,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  reset.addEventListener("click", unzoom);

  new ResizeObserver(draw).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
