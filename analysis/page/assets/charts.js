// Drawing: numbers as text, a chart with a readout and keyboard, bands and glyphs on a uPlot canvas.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children. Strings become text nodes, so markup in a name stays text.
function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const svg = ["svg", "rect", "line", "path", "circle", "text"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const show = {
  loss: (v) => v.toFixed(4),
  signed: (v, digits) => `${v > 0 ? "+" : v < 0 ? "\u2212" : ""}${Math.abs(v).toFixed(digits)}`,
  percent: (v, digits = 2) => `${show.signed(v, digits)} %`,
  share: (v) => `${(100 * v).toFixed(v < 0.0995 ? 1 : 0)} %`,
  power: (v) => v.toExponential(2).replace("e+", "e"),
  tick: (v) => v.toExponential(1).replace(".0e", "e").replace("e+", "e"),
  whole: (v) => v.toLocaleString("en-US"),
  // three significant digits with a letter: 59.9k, 3.00M, 1.60B
  count: (v) => {
    for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (v >= size) return `${(v / size).toPrecision(3)}${letter}`;
    }
    return String(v);
  },
  // as many digits as the distance between two ticks needs
  axisValue: (v, step) => v >= 1e4 ? show.count(v) : v.toFixed(Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))),
  short: (v) => (Math.abs(v) >= 1000 ? show.count(v) : String(Number(v.toPrecision(3)))),
  axisCount: (v) => {
    for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (v >= size) return `${Number((v / size).toPrecision(3))}${letter}`;
    }
    return String(v);
  },
  time: (v) => (v ? `${v.slice(0, 10)} ${v.slice(11, 16)} UTC` : "unknown"),
};

function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(
    ["ink", "muted", "faint", "grid", "line", "surface", "accent", "rung", "band99", "band90", "band50", "alarm", "watch"]
      .map((name) => [name, value(name)]));
}

// Several [x...], [y...] pairs on one sorted x: what uPlot wants, null where a series has no value.
function aligned(series) {
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const index = new Map(xs.map((x, k) => [x, k]));
  return [xs, ...series.map((s) => {
    const column = new Array(xs.length).fill(null);
    s.x.forEach((x, k) => { column[index.get(x)] = s.y[k]; });
    return column;
  })];
}

const px = () => window.devicePixelRatio || 1;

// A point at (x, y): "disc" filled, "ring" hollow, "diamond" filled with a halo.
function glyph(u, shape, x, y, color, size = 4) {
  if (x === null || y === null) return;
  const left = u.valToPos(x, "x", true), top = u.valToPos(y, "y", true);
  const { ctx, bbox } = u, r = size * px();
  if (left < bbox.left - r || left > bbox.left + bbox.width + r) return;
  if (top < bbox.top - r || top > bbox.top + bbox.height + r) return;
  ctx.save();
  ctx.beginPath();
  if (shape === "diamond") {
    for (const [dx, dy] of [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]]) ctx.lineTo(left + dx * r, top + dy * r);
    ctx.closePath();
  } else ctx.arc(left, top, r, 0, 2 * Math.PI);
  ctx.lineWidth = (shape === "ring" ? 1.6 : 3) * px();
  ctx.strokeStyle = shape === "ring" ? color : theme().surface;
  ctx.fillStyle = shape === "ring" ? theme().surface : color;
  if (shape === "ring") { ctx.fill(); ctx.stroke(); } else { ctx.stroke(); ctx.fill(); }
  ctx.restore();
}

function label(u, text, x, y, color, dx, dy, align = "center") {
  const { ctx } = u;
  ctx.save();
  ctx.font = `${12 * px()}px system-ui, sans-serif`;
  ctx.textAlign = align;
  const left = u.valToPos(x, "x", true) + dx * px(), top = u.valToPos(y, "y", true) + dy * px();
  ctx.lineWidth = 3 * px();
  ctx.strokeStyle = theme().surface;
  ctx.strokeText(text, left, top);
  ctx.fillStyle = color;
  ctx.fillText(text, left, top);
  ctx.restore();
}

// Vertical marks: what happened, at which x. Where two meet, the first of `events` keeps its label.
function marks(u, events, color) {
  const { ctx, bbox } = u, taken = [];
  ctx.save();
  ctx.font = `${11 * px()}px system-ui, sans-serif`;
  for (const event of events) {
    const left = Math.round(u.valToPos(event.x, "x", true)) + 0.5;
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = event.color || color;
    ctx.setLineDash([3 * px(), 3 * px()]);
    ctx.lineWidth = px();
    ctx.beginPath(); ctx.moveTo(left, bbox.top); ctx.lineTo(left, bbox.top + bbox.height); ctx.stroke();
    const text = event.text.slice(0, 24), width = ctx.measureText(text).width + 6 * px();
    const right = left + width < bbox.left + bbox.width;
    const start = right ? left : left - width;
    if (taken.every(([from, to]) => start + width < from || start > to)) {
      ctx.textAlign = right ? "left" : "right";
      ctx.fillText(text, left + (right ? 4 : -4) * px(), bbox.top + 11 * px());
      taken.push([start, start + width]);
    }
  }
  ctx.restore();
}

const charts = [];

// One chart in `holder`. spec: data (uPlot's), series, bands, x and y {range, ticks, splits}, draw(u),
// height, describe (aria label), caption (text at rest), readout(index) -> [[label, value], ...].
function chart(holder, readout, spec) {
  const t = theme();
  const axis = (a) => ({
    stroke: t.muted, font: "12px system-ui, sans-serif", grid: { stroke: t.grid, width: 1 },
    ticks: { show: false }, gap: 6, values: (u, splits, axis, space, step) => splits.map((v) => (v === null ? "" : a.ticks(v, step))),
    ...(a.splits ? { splits: a.splits } : {}), ...(a.space ? { space: a.space } : {}), ...(a.size ? { size: a.size } : {}),
  });
  const rest = () => { readout.replaceChildren(spec.caption); };
  const options = {
    width: Math.max(holder.clientWidth, 200), height: spec.height, legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: () => spec.x.range }, y: { range: () => spec.y.range } },
    axes: [axis({ space: 60, size: 30, ...spec.x }), axis({ space: 34, size: 52, ...spec.y })],
    series: [{}, ...spec.series.map((s) => ({ points: { show: false }, spanGaps: true, width: 0, ...s }))],
    bands: spec.bands || [],
    padding: [8, 20, 0, 0], pxAlign: 0,
    hooks: {
      draw: [(u) => {
        u.ctx.save();
        if (spec.draw) spec.draw(u);
        u.ctx.restore();
      }],
      setCursor: [(u) => {
        const index = u.cursor.idx;
        if (index === null || index === undefined) return rest();
        const parts = spec.readout(index).filter((part) => part[1] !== null && part[1] !== undefined);
        readout.replaceChildren(...parts.flatMap(([name, value], k) => [k ? ", " : "", `${name} `, h("b", {}, value)]));
      }],
    },
  };
  rest();
  const u = new uPlot(options, spec.data, holder);
  holder.tabIndex = 0;
  holder.setAttribute("role", "img");
  holder.setAttribute("aria-label", `${spec.describe} Left and right arrow keys read its values.`);
  holder.addEventListener("keydown", (event) => {
    const last = spec.data[0].length - 1;
    const at = u.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") u.setCursor({ left: -10, top: -10 });
    if (to === undefined) return;
    event.preventDefault();
    const index = Math.min(Math.max(to, 0), last);
    u.setCursor({ left: u.valToPos(spec.data[0][index], "x"), top: u.over.clientHeight / 2 });
  });
  const observer = new ResizeObserver(() => {
    const width = holder.clientWidth;
    if (width > 0 && width !== u.width) u.setSize({ width, height: spec.height });
  });
  observer.observe(holder);
  charts.push({ destroy() { observer.disconnect(); u.destroy(); } });
  return u;
}

// [low, high] with a margin of `share` on both sides.
function padded(values, share = 0.06) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  const low = Math.min(...known), high = Math.max(...known), pad = (high - low || Math.abs(high) || 1) * share;
  return [low - pad, high + pad];
}

// Ticks of a log10 axis that is drawn on a linear scale: 1-2-5 where there is room, else decades.
function decades(u, axis, low, high) {
  const steps = high - low < 0.8 ? [1, 1.5, 2, 3, 4, 5, 7] : high - low < 2.2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = Math.floor(low); e <= Math.ceil(high); e++) {
    for (const m of steps) {
      const v = e + Math.log10(m);
      if (v >= low && v <= high) ticks.push(v);
    }
  }
  return ticks;
}
