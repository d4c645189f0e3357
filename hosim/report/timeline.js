// The timeline of a report: rows of bars on a canvas, to zoom (wheel, two fingers, + and -), to move (drag, arrow keys), to search, and to
// measure (drag with shift). A click marks a bar, and what belongs to it: with a stall the transfer that it is blamed on, with a recorded op
// the simulated one. Times are nanoseconds from data.begin (0 if there is none) to data.end; the window shown stands in the canvas's
// data-from and data-to.
(() => {
  "use strict";
  const box = document.currentScript.parentElement;
  const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
  const canvas = box.querySelector("canvas");
  const told = box.querySelector(".told");
  const chosen = box.querySelector(".chosen");
  const sought = box.querySelector("input");
  const ruler = box.querySelector("button[data-does='measure']");
  const RIGHT = 36, AXIS = 22, TITLE = 20, ROW = 22, GAP = 4, MEMORY = 56;
  const SHORTEST = 20, SEEN = 0.75, ALONE = 3;
  const LABEL = 0, COLOUR = 1, HATCH = 2, ROLE = 3; // places in a style
  const pen = canvas.getContext("2d");
  const begin = data.begin || 0, end = Math.max(data.end, begin + 1);
  const spans = data.spans || []; // of what is not validated: start, end, reason
  let from = begin, to = end, margin = 118;
  let marked = [], measured = null; // [line, place of the bar] each, and two instants

  // -- what there is ---------------------------------------------------------------------------------------------

  const names = [];
  data.names.rests.forEach((rest, k) => names.push((names[k - 1] || "").slice(0, data.names.shared[k]) + rest));
  const lines = [], groups = [];
  let height = AXIS;
  for (const group of data.groups) {
    const own = [];
    if (group.title) {
      lines.push({ title: group.title, y: height });
      height += TITLE;
    }
    for (const row of group.rows) {
      const starts = [], ends = [], reach = [], named = [];
      let now = 0, name = 0;
      for (const further of row.name) named.push(names[(name += further)]);
      for (let i = 0; i < row.times.length; i += 2) {
        starts.push((now += row.times[i]));
        ends.push((now += row.times[i + 1]));
        reach.push(Math.max(now, reach[reach.length - 1] ?? now)); // the ends so far: recorded ops may overlap a little
      }
      own.push({ row, starts, ends, reach, named, y: height, height: ROW, blames: new Map(), twins: new Map() });
      lines.push(own[own.length - 1]);
      height += ROW + GAP;
    }
    const linked = (links, link) => {
      for (let k = 0, i = 0, j = 0; k < links.length; k += 4) {
        link(own[links[k]], (i += links[k + 1]), own[links[k + 2]], (j += links[k + 3]));
      }
    };
    linked(group.blames, (stalled, i, moved, j) => stalled.blames.set(i, [moved, j]));
    linked(group.twins || [], (one, i, other, j) => {
      one.twins.set(i, [other, j]);
      other.twins.set(j, [one, i]);
    });
    groups.push(own);
    if (group.memory) {
      lines.push({ memory: group.memory, y: height, height: MEMORY });
      height += MEMORY + GAP;
    }
  }

  // -- words -----------------------------------------------------------------------------------------------------

  const digits = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0));
  const human = (value, steps) => {
    const [factor, unit] = steps.find(([least]) => value >= least) || steps[steps.length - 1];
    return factor === 1 ? `${Math.round(value)} ${unit}` : `${digits(value / factor)} ${unit}`;
  };
  const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  const time = (ns) => human(ns, TIMES);
  const instant = (ns) => {
    const [factor, unit] = TIMES.find(([least]) => Math.max(to, 1) >= least) || TIMES[3];
    const places = Math.min(Math.max(0, Math.ceil(Math.log10((2000 * factor) / (to - from)))), Math.round(Math.log10(factor)));
    return `${(ns / factor).toFixed(places)} ${unit}`;
  };
  const SIZES = ["TiB", "GiB", "MiB", "KiB"].map((unit, i) => [1024 ** (4 - i), unit]).concat([[1, "B"]]);
  const size = (bytes) => human(bytes, SIZES);
  const amount = ({ unit }, value) => (unit ? `${Math.round(value).toLocaleString("en")} ${unit}` : size(value)); // a curve of other things
  const short = (name) => (name.length > 100 ? `${name.slice(0, 72)}...${name.slice(-25)}` : name);

  // -- drawing ---------------------------------------------------------------------------------------------------

  const patterns = {};
  const fill = (k) => {
    if (!(k in patterns)) {
      const colour = data.styles[k][COLOUR], hatch = data.styles[k][HATCH];
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const p = tile.getContext("2d");
      p.fillStyle = colour;
      p.fillRect(0, 0, 8, 8);
      p.fillStyle = p.strokeStyle = "#000";
      p.lineWidth = 0.9;
      p.beginPath();
      if (hatch === "/" || hatch === "x") {
        p.moveTo(-2, 10); p.lineTo(10, -2); p.moveTo(-2, 2); p.lineTo(2, -2); p.moveTo(6, 10); p.lineTo(10, 6);
      }
      if (hatch === "\\" || hatch === "x") {
        p.moveTo(-2, -2); p.lineTo(10, 10); p.moveTo(6, -2); p.lineTo(10, 2); p.moveTo(-2, 6); p.lineTo(2, 10);
      }
      p.stroke();
      if (hatch === ".") {
        p.fillRect(1, 1, 1.5, 1.5); p.fillRect(5, 5, 1.5, 1.5);
      }
      patterns[k] = hatch ? pen.createPattern(tile, "repeat") : colour;
    }
    return patterns[k];
  };
  const width = () => canvas.clientWidth - margin - RIGHT;
  const x = (ns) => margin + ((ns - from) / (to - from)) * width();
  const at = (pixel) => from + ((pixel - margin) / width()) * (to - from);
  const first = (ends, ns) => {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < ns) low = middle + 1; else high = middle;
    }
    return low;
  };

  function axis() {
    const most = Math.max(2, Math.floor(width() / 70));
    const raw = (to - from) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(1, [1, 2, 5, 10].find((m) => m * power >= raw) * power);
    const [factor, unit] = TIMES.find(([least]) => Math.max(to, 1) >= least) || TIMES[3];
    const places = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
    pen.textAlign = "center";
    for (let ns = Math.ceil(from / step) * step; ns <= to; ns += step) {
      pen.fillStyle = "#e4e4e4";
      pen.fillRect(x(ns), AXIS - 4, 1, height);
      pen.fillStyle = "#444";
      pen.fillText(`${(ns / factor).toFixed(places)} ${unit}`, x(ns), 12);
    }
  }

  function bars(line) {
    const { row, starts, ends, reach, y } = line;
    const wide = width() / (to - from);
    let painted = -Infinity;
    for (let i = first(reach, from); i < starts.length && starts[i] <= to; i++) {
      const left = Math.max(x(starts[i]), margin);
      const right = Math.min(x(ends[i]), margin + width());
      // What is thinner than a point is painted as thin as it is, so that many have the shade of their share; one by itself is widened.
      const across = right - left < SEEN && left > painted + ALONE ? SEEN : right - left;
      painted = left + across;
      const what = row.what[i];
      if (what >= 0) {
        pen.fillStyle = fill(what);
        pen.fillRect(left, y, across, ROW);
        const named = line.named[i];
        if (across > SHORTEST && (ends[i] - starts[i]) * wide > SHORTEST) {
          pen.strokeStyle = "#fff";
          pen.strokeRect(left, y + 0.5, across, ROW - 1);
          if (named && across > 40 && data.styles[what][ROLE] === "named") {
            pen.save();
            pen.beginPath(); pen.rect(left + 2, y, across - 4, ROW); pen.clip();
            pen.fillStyle = "#fff"; pen.textAlign = "left";
            pen.fillText(named, left + 4, y + 15);
            pen.restore();
          }
        }
      } else {
        // Many bars in one: what part of its time goes to what, from below.
        let bottom = y + ROW;
        row.many[-1 - what].parts.forEach((ns, k) => {
          const up = (ROW * ns) / (ends[i] - starts[i] || 1);
          if (up > 0) {
            pen.fillStyle = fill(k);
            pen.fillRect(left, bottom - up, across, up);
            bottom -= up;
          }
        });
      }
    }
  }

  function curve(line) {
    const { times, bytes, limit, tier } = line.memory;
    const over = Math.min(line.memory.end, to);
    const top = Math.max(limit || 0, ...bytes, 1) * 1.05;
    const up = (value) => line.y + line.height - (value / top) * line.height;
    const begin = Math.max(first(times, from) - 1, 0);
    pen.fillStyle = "#cfd8e3";
    pen.strokeStyle = "#3f5f8a";
    pen.beginPath();
    let last = x(Math.max(times[begin], from));
    pen.moveTo(last, up(0));
    for (let i = begin; i < times.length && times[i] <= over; i++) {
      const stop = i + 1 < times.length ? Math.min(times[i + 1], over) : over;
      pen.lineTo(Math.max(x(times[i]), margin), up(bytes[i]));
      pen.lineTo((last = Math.max(x(stop), margin)), up(bytes[i]));
    }
    pen.lineTo(last, up(0));
    pen.fill();
    pen.stroke();
    if (limit) {
      pen.strokeStyle = "#b2182b";
      pen.setLineDash([5, 3]);
      pen.beginPath(); pen.moveTo(margin, up(limit)); pen.lineTo(margin + width(), up(limit)); pen.stroke();
      pen.setLineDash([]);
    }
    label(tier, line.y + 14);
    pen.fillStyle = "#777";
    pen.fillText(`to ${amount(line.memory, top / 1.05)}`, margin - 8, line.y + 28, margin - 10);
  }

  function label(text, y) {
    pen.textAlign = "right";
    pen.fillStyle = "#222";
    pen.fillText(text, margin - 8, y, margin - 10);
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    margin = canvas.clientWidth < 520 ? 84 : 118;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    axis();
    for (const [start, stop] of spans) {
      const left = Math.max(x(start), margin), right = Math.min(x(stop), margin + width());
      if (right < margin || left > margin + width()) continue;
      pen.fillStyle = "rgba(214, 48, 29, 0.16)";
      pen.fillRect(left, AXIS - 4, Math.max(right - left, 1), height);
      pen.fillStyle = "#d6301d";
      pen.fillRect(left, AXIS - 6, Math.max(right - left, 2), 4);
    }
    for (const line of lines) {
      if (line.title) {
        pen.textAlign = "left";
        pen.fillStyle = "#222";
        pen.font = "bold 12px system-ui, sans-serif";
        pen.fillText(line.title, 4, line.y + 14);
        pen.font = "12px system-ui, sans-serif";
      } else if (line.memory) {
        curve(line);
      } else {
        label(line.row.label, line.y + 15);
        bars(line);
      }
    }
    if (measured) {
      const [left, right] = measured.map((ns) => Math.min(Math.max(x(ns), margin), margin + width())).sort((a, b) => a - b);
      pen.fillStyle = "rgba(47, 111, 176, 0.25)";
      pen.fillRect(left, AXIS - 4, Math.max(right - left, 1), height);
    }
    pen.strokeStyle = "#d6006c";
    pen.lineWidth = 2;
    for (const [line, i] of marked) {
      const left = Math.max(x(line.starts[i]), margin), right = Math.min(x(line.ends[i]), margin + width());
      if (right >= margin && left <= margin + width()) pen.strokeRect(left - 1, line.y - 1, Math.max(right - left, 1) + 2, ROW + 2);
    }
    pen.lineWidth = 1;
    canvas.dataset.from = from;
    canvas.dataset.to = to;
  }

  // -- moving about ----------------------------------------------------------------------------------------------

  function show(low, high) {
    const span = Math.min(Math.max(high - low, Math.min(SHORTEST, end - begin)), end - begin);
    from = Math.min(Math.max(low, begin), end - span);
    to = from + span;
    draw();
  }
  const zoom = (factor, ns) => show(ns - (ns - from) / factor, ns + (to - ns) / factor);
  const middle = () => (from + to) / 2;
  const move = (part) => show(from + part * (to - from), to + part * (to - from));

  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move(e.deltaX / width());
    else zoom(1.2 ** (-e.deltaY / 100), at(e.offsetX));
  }, { passive: false });
  const fingers = new Map(); // their pixels, by pointer
  const apart = () => { const [a, b] = fingers.values(); return Math.max(Math.abs(a - b), 1); };
  let held = null, pinch = null;
  canvas.addEventListener("pointerdown", (e) => {
    fingers.set(e.pointerId, e.offsetX);
    if (fingers.size === 2) {
      const [a, b] = fingers.values();
      pinch = { apart: apart(), ns: at((a + b) / 2), from, to };
    }
    const measures = e.shiftKey || ruler.getAttribute("aria-pressed") === "true";
    held = { pixel: e.offsetX, from, to, moved: false, start: measures ? edge(e.offsetX, e.offsetY) : null };
    if (e.isTrusted) canvas.setPointerCapture(e.pointerId);
  });
  const released = (e) => {
    fingers.delete(e.pointerId);
    held = pinch = null;
  };
  canvas.addEventListener("pointerup", (e) => {
    if (held && !held.moved && !pinch) choose(e.offsetX, e.offsetY);
    released(e);
  });
  canvas.addEventListener("pointercancel", released);
  canvas.addEventListener("pointermove", (e) => {
    if (fingers.has(e.pointerId)) fingers.set(e.pointerId, e.offsetX);
    if (held && Math.abs(e.offsetX - held.pixel) > 3) held.moved = true;
    if (pinch && fingers.size === 2) {
      held.moved = true;
      const part = pinch.apart / apart();
      show(pinch.ns - (pinch.ns - pinch.from) * part, pinch.ns + (pinch.to - pinch.ns) * part);
    } else if (held && held.moved && held.start !== null) {
      measured = [held.start, edge(e.offsetX, e.offsetY)];
      const [a, b] = [...measured].sort((one, other) => one - other);
      chosen.textContent = `${instant(a)} to ${instant(b)}: ${time(b - a)}`;
      draw();
    } else if (held && held.moved) {
      const moved = ((held.pixel - e.offsetX) / width()) * (held.to - held.from);
      show(held.from + moved, held.to + moved);
    }
    tell(e.offsetX, e.offsetY);
  });
  canvas.addEventListener("pointerleave", () => { told.textContent = "\u00a0"; });
  canvas.addEventListener("dblclick", () => show(begin, end));
  canvas.addEventListener("keydown", (e) => {
    const does = {
      "+": () => zoom(1.5, middle()), "=": () => zoom(1.5, middle()), "-": () => zoom(1 / 1.5, middle()),
      ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), 0: () => show(begin, end), "/": () => sought.focus(),
      Escape: () => mark([], "\u00a0"),
    }[e.key];
    if (does) {
      e.preventDefault();
      does();
    }
  });
  for (const button of box.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const measures = ruler.getAttribute("aria-pressed") !== "true";
      ({
        in: () => zoom(2, middle()), out: () => zoom(0.5, middle()), all: () => show(begin, end),
        measure: () => ruler.setAttribute("aria-pressed", measures),
        far: () => (found === furthest ? seek(1) : list(furthest)),
      })[button.dataset.does]();
    });
  }

  function tell(px, py) {
    const ns = at(px);
    const line = lines.find((l) => !l.title && py >= l.y && py < l.y + l.height);
    const inside = ns >= begin && ns <= end;
    told.textContent = [...(line && inside ? [says(line, ns, near())] : []), ...reasons(ns)].join("; ") || "\u00a0";
  }

  // Why an instant is not validated; it is in several spans perhaps.
  function reasons(ns) {
    const why = spans.filter(([start, stop]) => start - near() <= ns && ns <= stop + near());
    return why.map(([start, stop, reason]) => `not validated, ${instant(start)} to ${instant(stop)}: ${reason}`);
  }

  function says(line, ns, near) {
    if (line.memory) {
      const { times, bytes, tier, unit } = line.memory;
      if (ns > line.memory.end) return `${instant(ns)}: all has ended`;
      return `${instant(ns)}: ${tier} ${unit ? "has" : "holds"} ${amount(line.memory, bytes[Math.max(first(times, ns + 1) - 1, 0)])}`;
    }
    const i = bar(line, ns, near);
    return i < 0 ? `${instant(ns)}: ${line.row.label} is idle` : describes(line, i);
  }

  function bar({ starts, reach }, ns, near) {
    const i = first(reach, ns - near);
    return i >= starts.length || starts[i] > ns + near ? -1 : i;
  }

  function describes({ row, starts, ends, named, blames }, i) {
    const when = `${instant(starts[i])} to ${instant(ends[i])} (${time(ends[i] - starts[i])})`;
    if (row.what[i] >= 0 && data.styles[row.what[i]][ROLE] !== "stall") return `${data.styles[row.what[i]][LABEL]}: ${short(named[i])}, ${when}`;
    if (row.what[i] >= 0) {
      const [other, j] = blames.get(i) || [];
      const awaits = other && other.row.what[j] >= 0 ? `, awaits ${short(other.named[j].replace(/, [^,]*$/, ""))} on ${other.row.label}` : "";
      return `${data.styles[row.what[i]][LABEL]}: before ${short(named[i])}${awaits}, ${when}`;
    }
    const { count, parts } = row.many[-1 - row.what[i]];
    const shares = parts.map((part, k) => [part, data.styles[k][LABEL]]).filter(([part]) => part > 0);
    const span = ends[i] - starts[i] || 1;
    return `${count} in one, ${when}: ` + shares.map(([part, what]) => `${what} ${((100 * part) / span).toFixed(0)} %`).join(", ");
  }

  // -- marking, measuring, searching ------------------------------------------------------------------------------

  const near = () => (2 * (to - from)) / width();
  const rowAt = (py) => lines.find((l) => l.row && py >= l.y && py < l.y + l.height);

  function mark(bars, text) {
    marked = bars;
    measured = null;
    chosen.textContent = text;
    draw();
  }

  // The instant below a pixel, or the begin or end of a bar that is within a few pixels of it.
  function edge(px, py) {
    const ns = Math.min(Math.max(at(px), begin), end), line = rowAt(py);
    const i = line ? bar(line, ns, 3 * near()) : -1;
    const ends = i < 0 ? [] : [line.starts[i], line.ends[i]].filter((one) => Math.abs(one - ns) <= 3 * near());
    return ends.sort((a, b) => Math.abs(a - ns) - Math.abs(b - ns))[0] ?? ns;
  }

  function choose(px, py) {
    const line = rowAt(py), i = line ? bar(line, at(px), near()) : -1;
    if (i < 0) return mark([], reasons(at(px)).join("; ") || "\u00a0");
    if (line.twins.has(i)) return mark([[line, i], line.twins.get(i)], compares(line, i));
    const blamed = line.blames.get(i);
    if (!blamed) return mark([[line, i]], describes(line, i));
    const [other, j] = blamed;
    const low = Math.min(line.starts[i], other.starts[j]), high = Math.max(line.ends[i], other.ends[j]);
    mark([[line, i], blamed], `${describes(line, i)}. Blamed on ${other.row.label}: ${describes(other, j)}`);
    if (low < from || high > to) show(low - (high - low) / 10, high + (high - low) / 10);
  }

  // An op of a recording beside its twin: whichever of the two is given, how much later or earlier the simulated one starts.
  function compares(line, i) {
    const [other, j] = line.twins.get(i);
    const [recorded, r, simulated, s] = line.row.label === "simulated" ? [other, j, line, i] : [line, i, other, j];
    const late = simulated.starts[s] - recorded.starts[r];
    const how = late === 0 ? "at the same time" : `${time(Math.abs(late))} ${late > 0 ? "later" : "earlier"}`;
    return `${line.row.label} ${describes(line, i)}. The simulated one starts ${how}`;
  }

  let found = [], place = 0;
  const furthest = (data.far || []).map(([g, i]) => [groups[g][0], i]);
  function seek(step) {
    if (!found.length) return mark([], sought.value ? "nothing of that name" : "\u00a0");
    place = (place + step + found.length) % found.length;
    const [line, i] = found[place];
    const both = line.twins.has(i) ? [[line, i], line.twins.get(i)] : [[line, i]];
    const low = Math.min(...both.map(([l, k]) => l.starts[k])), high = Math.max(...both.map(([l, k]) => l.ends[k]));
    const half = Math.max(Math.min(to - from, 20 * (high - low)), 1.2 * (high - low), SHORTEST) / 2;
    mark(both, `${place + 1} of ${found.length}: ${both.length > 1 ? compares(line, i) : describes(line, i)}`);
    show((low + high) / 2 - half, (low + high) / 2 + half);
  }
  function list(bars) {
    found = bars;
    place = 0;
    seek(0);
  }
  sought.addEventListener("input", () => {
    const text = sought.value.trim().toLowerCase();
    const fits = new Set(names.filter((name) => text !== "" && name.toLowerCase().includes(text)));
    const second = (l, i) => l.row.label === "simulated" && l.twins.has(i); // it is marked with the recorded one
    const fitting = (l) => l.named.flatMap((name, i) => (l.row.what[i] >= 0 && fits.has(name) && !second(l, i) ? [[l, i]] : []));
    list(lines.flatMap((l) => (l.row ? fitting(l) : [])).sort(([a, i], [b, j]) => a.starts[i] - b.starts[j]));
  });
  sought.addEventListener("keydown", (e) => {
    if (e.key === "Enter") seek(e.shiftKey ? -1 : 1);
  });

  window.addEventListener("resize", draw);
  draw();
})();
