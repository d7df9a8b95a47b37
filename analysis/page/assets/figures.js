// The figures: each takes the page's data and answers with a card.
"use strict";

const KEYS = {
  ring: (c) => [h("circle", { cx: 11, cy: 6, r: 3.6, fill: "none", stroke: c, "stroke-width": 1.6 })],
  diamond: (c) => [h("path", { d: "M11 .8 16.2 6 11 11.2 5.8 6Z", fill: c })],
  line: (c) => [h("line", { x1: 1, x2: 21, y1: 6, y2: 6, stroke: c, "stroke-width": 2 })],
  dash: (c) => [h("line", { x1: 1, x2: 21, y1: 6, y2: 6, stroke: c, "stroke-width": 1.4, "stroke-dasharray": "4 3" })],
  box: (c) => [h("rect", { x: 1, y: 0, width: 20, height: 12, rx: 2, fill: c })],
  // bands lie on each other in the plot, so they do in its key
  band50: () => ["99", "90", "50"].flatMap((level) => KEYS.box(`var(--band${level})`)),
  band90: () => ["99", "90"].flatMap((level) => KEYS.box(`var(--band${level})`)),
  dots: (c) => [h("line", { x1: 1, x2: 21, y1: 6, y2: 6, stroke: c, "stroke-width": 1.6 }), h("circle", { cx: 11, cy: 6, r: 3.4, fill: c })],
};

function key(shape, color, text) {
  const picture = h("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" }, KEYS[shape](`var(--${color})`));
  return h("li", {}, picture, text);
}

// A card with title, axis line, readout, plot and legend; `make` is called with (plot, readout) once it is laid out.
function figure(title, axis, size, keys, make) {
  const readout = h("div.readout", { "aria-live": "polite" }), plot = h("div.plot");
  const card = h(`figure.card${size ? `.${size}` : ""}`, {},
    h("header", {}, h("h2", {}, title), h("div.axis", {}, axis)), readout, plot,
    keys.length ? h("ul.legend", {}, keys) : null);
  card.draw = () => make(plot, readout);
  return card;
}

const brief = (name) => (name.length > 12 ? `${name.slice(0, 11)}\u2026` : name);

function absent(title, size, text) {
  return h(`figure.card${size ? `.${size}` : ""}`, {}, h("header", {}, h("h2", {}, title)), h("div.empty", {}, text));
}

const targetOf = (data) => data.runs.find((run) => run.role === "target");
const log10 = (values) => values.map((v) => Math.log10(v));

function scaling(data) {
  const done = data.runs.filter((run) => run.finished && run.role !== "target");
  const target = targetOf(data), f = data.forecast;
  if (!done.length) return absent("Scaling", "half", "No rung has finished yet.");
  const landed = target && target.finished ? target : null;
  const curve = f ? f.scaling : { flops: [], median: [], lo90: [], hi90: [] };
  const keys = [key("ring", "rung", "rung runs")];
  if (f) keys.push(key("line", "accent", "law"), key("box", "band90", "90 % band"));
  if (landed) keys.push(key("diamond", "ink", `${landed.run}, observed`));
  return figure("Scaling", `final loss, ${data.unit}, against training FLOPs`, "half", keys, (plot, readout) => {
    const t = theme(), x = log10(curve.flops);
    const points = [...done, ...(landed ? [landed] : [])];
    const data_ = aligned([
      { x, y: curve.median }, { x, y: curve.lo90 }, { x, y: curve.hi90 },
      { x: log10(points.map((run) => run.flops)), y: points.map((run) => run.loss) },
    ]);
    const losses = [...curve.lo90, ...curve.hi90, ...curve.median, ...points.map((run) => run.loss)];
    chart(plot, readout, {
      data: data_, height: 300,
      series: [{ stroke: t.accent, width: 2 }, { stroke: "transparent" }, { stroke: "transparent" }, { stroke: "transparent" }],
      bands: [{ series: [3, 2], fill: t.band90 }],
      x: { range: padded([...data_[0]], 0.07), ticks: (v) => show.tick(10 ** v), splits: decades },
      y: { range: padded(losses, 0.1), ticks: show.axisValue },
      caption: f ? `${f.equation}, grade ${f.grade}, ${f.condition}.` : "Final losses of the finished rung runs.",
      describe: `Scaling plot: ${done.length} finished rung runs${f ? ", the fitted law with its 90 % band" : ""}${landed ? " and the target" : ""}.`,
      readout: (k) => {
        const here = points.filter((run) => Math.log10(run.flops) === data_[0][k]);
        const at = (column) => (column[k] === null ? null : show.loss(column[k]));
        const [median, low, high] = [data_[1], data_[2], data_[3]].map(at);
        return [["at", `${show.power(10 ** data_[0][k])} FLOPs`], ...here.map((run) => [run.run, show.loss(run.loss)]),
          ["law", median], ["90 % band", low && `${low} to ${high}`]];
      },
      draw: (u) => {
        let free = -Infinity;
        for (const run of done) glyph(u, "ring", Math.log10(run.flops), run.loss, t.rung, 4);
        for (const run of done.filter((one) => one.role === "rung")) {
          const left = u.valToPos(Math.log10(run.flops), "x");
          const highest = Math.max(...done.filter((one) => one.rung === run.rung).map((one) => one.loss));
          if (left > free) label(u, brief(run.rung), Math.log10(run.flops), highest, t.muted, 6, -11);
          if (left > free) free = left + 8 * brief(run.rung).length;
        }
        if (f && f.lo90 !== null) whisker(u, Math.log10(f.flops), f.lo90, f.hi90, t.accent);
        if (landed) {
          glyph(u, "diamond", Math.log10(landed.flops), landed.loss, t.ink, 5);
          label(u, brief(landed.run), Math.log10(landed.flops), landed.loss, t.ink, 6, f && landed.loss < f.median ? 22 : -12, "right");
        }
      },
    });
  });
}

function whisker(u, x, low, high, color) {
  const left = u.valToPos(x, "x", true), { ctx } = u, cap = 5 * px();
  const [bottom, top] = [u.valToPos(low, "y", true), u.valToPos(high, "y", true)];
  ctx.strokeStyle = color; ctx.lineWidth = 1.6 * px();
  ctx.beginPath();
  ctx.moveTo(left, bottom); ctx.lineTo(left, top);
  for (const y of [bottom, top]) { ctx.moveTo(left - cap, y); ctx.lineTo(left + cap, y); }
  ctx.stroke();
}

const bandKeys = () => [key("band50", "", "50 %"), key("band90", "", "90 %"), key("box", "band99", "99 %")];

// The forecast's six band edges around its median, as aligned series and uPlot bands.
function bandSeries(t, x, columns) {
  const edges = ["hi99", "lo99", "hi90", "lo90", "hi50", "lo50"];
  return {
    series: edges.map((name) => ({ x, y: columns[name] })),
    options: edges.map(() => ({ stroke: "transparent" })),
    bands: [[1, 2, t.band99], [3, 4, t.band90], [5, 6, t.band50]].map(([a, b, fill]) => ({ series: [a, b], fill })),
  };
}

function eventMarks(data, run, x) {
  const t = theme(), order = ["runaway", "precursor", "watch"];
  const rank = (event) => (order.indexOf(event.state) + 1 || 4);
  return data.events.filter((event) => event.run === run).sort((a, b) => rank(a) - rank(b)).map((event) => ({
    x: x(event), text: event.state || event.kind,
    color: event.state === "watch" ? t.watch : event.state && event.state !== "normal" ? t.alarm : t.muted,
  }));
}

function trajectory(data) {
  const f = data.forecast, target = targetOf(data);
  const begun = data.runs.filter((run) => run.evals.loss.length);
  if (!begun.length) return absent("Loss against tokens", "half", "No evaluation yet.");
  const rungs = begun.filter((run) => run.role === "rung");
  const watched = target && target.evals.loss.length ? target : null;
  const keys = [...(f ? [key("line", "accent", "forecast"), ...bandKeys()] : []), ...(watched ? [key("dots", "ink", watched.run)] : []), key("line", "rung", "rungs")];
  return figure("Loss against tokens", `held-out loss, ${data.unit}`, "half", keys, (plot, readout) => {
    const t = theme(), bands = f ? f.bands : null;
    const tokens = bands ? bands.tokens : [], band = bands ? bandSeries(t, tokens, bands) : { series: [], options: [], bands: [] };
    const lines = [...rungs, ...(watched ? [watched] : [])];
    const values = aligned([...band.series, ...(bands ? [{ x: tokens, y: bands.median }] : []),
      ...lines.map((run) => ({ x: run.evals.tokens, y: run.evals.loss }))]);
    // the first evaluations fall so fast that a full range would flatten the rest
    const late = (run) => run.evals.loss.filter((_, k) => run.evals.progress[k] >= 0.095 || run.evals.loss.length < 3);
    const calm = bands ? bands.progress.map((p, k) => (p >= 0.095 ? k : -1)).filter((k) => k >= 0) : [];
    const seen = [...(watched ? late(watched) : []), ...calm.flatMap((k) => [bands.median[k], bands.lo99[k], bands.hi99[k]]),
      ...(bands ? [] : rungs.flatMap(late))];
    const end = Math.max(...data.runs.map((run) => (run.role === "target" || !f ? run.tokens : 0)), ...tokens);
    const first = (bands ? 1 : 0) + band.series.length;
    chart(plot, readout, {
      data: values, height: 300,
      series: [...band.options, ...(bands ? [{ stroke: t.accent, width: 1.6 }] : []),
        ...rungs.map(() => ({ stroke: t.rung, width: 1, alpha: 0.75 })), ...(watched ? [{ stroke: t.ink, width: 1.6 }] : [])],
      bands: band.bands,
      x: { range: [0, end * 1.02], ticks: (v) => (v ? show.axisCount(v) : "0") },
      y: { range: padded(seen, 0.08), ticks: show.axisValue },
      caption: f ? "The frozen forecast of the target, and what the runs measured." : "Evaluations of the runs so far.",
      describe: `Loss against tokens${f ? " with the forecast's 50, 90 and 99 % bands" : ""}${watched ? ` and ${watched.evals.loss.length} evaluations of ${watched.run}` : ""}.`,
      readout: (k) => {
        const at = (n) => (n && values[n][k] !== null ? show.loss(values[n][k]) : null);
        const low = bands && at(4), high = bands && at(3);
        return [["at", `${show.count(values[0][k])} tokens`], ["forecast", bands && at(7)],
          ["90 % band", low && `${low} to ${high}`], ...lines.map((run, n) => [run.run, at(first + n + 1)])];
      },
      draw: (u) => {
        if (target) marks(u, eventMarks(data, target.run, (e) => e.tokens), t.muted);
        if (watched) watched.evals.tokens.forEach((x, k) => glyph(u, "disc", x, watched.evals.loss[k], t.ink, 3));
      },
    });
  });
}

function residual(data) {
  const f = data.forecast, target = data.target;
  const title = "Distance from the forecast";
  if (!f) return absent(title, "", "No forecast is frozen yet.");
  const b = f.bands, x = b.progress.map((p) => 100 * p);
  const relative = (name) => b[name].map((v, k) => (v === null ? null : 100 * (v / b.median[k] - 1)));
  const names = ["hi99", "lo99", "hi90", "lo90", "hi50", "lo50", "sim_hi90", "sim_lo90"];
  const columns = Object.fromEntries(names.map((name) => [name, relative(name)]));
  const keys = [...bandKeys(), key("dash", "accent", "90 % for the whole curve"), ...(target ? [key("dots", "ink", target.run)] : [])];
  return figure(title, "percent, against progress of the run", "", keys, (plot, readout) => {
    const t = theme(), band = bandSeries(t, x, columns);
    const points = target ? { x: target.residual.progress.map((p) => 100 * p), y: target.residual.percent } : { x: [], y: [] };
    const values = aligned([...band.series, { x, y: columns.sim_hi90 }, { x, y: columns.sim_lo90 }, points]);
    const late = b.progress.map((p, k) => (p >= 0.095 ? k : -1)).filter((k) => k >= 0);
    const seen = [0.5, -0.5, ...late.flatMap((k) => [columns.hi99[k], columns.lo99[k], columns.sim_hi90[k], columns.sim_lo90[k]]),
      ...points.y.filter((_, k) => points.x[k] >= 9.5 || points.y.length < 3)];
    const dashed = { stroke: t.accent, width: 1.2, dash: [5, 4], alpha: 0.8 };
    chart(plot, readout, {
      data: values, height: 250,
      series: [...band.options, dashed, dashed, { stroke: t.ink, width: 1.6 }],
      bands: band.bands,
      x: { range: [0, 100], ticks: (v) => `${v} %` },
      y: { range: padded(seen, 0.08), ticks: (v) => show.percent(v, Math.abs(v) < 1 && v ? 1 : 0) },
      caption: target ? `${target.run} is ${Math.abs(target.percent).toFixed(2)} % ${target.percent > 0 ? "above" : "below"} the forecast at ${show.share(target.progress)} of the run.`
        : "The forecast's bands around its own median; the target has no evaluation yet.",
      describe: `Distance from the forecast in percent, with bands${target ? `; ${target.run} last at ${show.percent(target.percent)}` : ""}.`,
      readout: (k) => {
        const at = (n) => (values[n][k] === null ? null : show.percent(values[n][k]));
        return [["at", `${Number(values[0][k].toPrecision(3))} % of the run`], ["90 % band", at(4) && `${at(4)} to ${at(3)}`],
          ["whole curve", at(8) && `${at(8)} to ${at(7)}`], [target ? target.run : "", at(9)]];
      },
      draw: (u) => {
        const { ctx, bbox } = u, zero = Math.round(u.valToPos(0, "y", true));
        ctx.strokeStyle = t.accent; ctx.lineWidth = 1.6 * px();
        ctx.beginPath(); ctx.moveTo(bbox.left, zero); ctx.lineTo(bbox.left + bbox.width, zero); ctx.stroke();
        const run = targetOf(data);
        if (run) marks(u, eventMarks(data, run.run, (e) => 100 * e.progress), t.muted);
        points.x.forEach((v, k) => glyph(u, "disc", v, points.y[k], t.ink, 3.4));
      },
    });
  });
}

function dynamics(data, panel) {
  const target = panel.lines.find((line) => line.role === "target" && line.x.length);
  const rungs = panel.lines.filter((line) => line.role !== "target" && line.x.length);
  const keys = [...(rungs.length ? [key("line", "rung", "rungs, median")] : []),
    ...(target ? [key("line", "ink", `${target.run}, median`), key("box", "line", "its extremes")] : [])];
  return figure(panel.title, "", "third", keys, (plot, readout) => {
    const t = theme(), all = [...rungs, ...(target ? [target] : [])];
    const percent = (line) => line.x.map((v) => 100 * v);
    const values = aligned([...(target ? [{ x: percent(target), y: target.high }, { x: percent(target), y: target.low }] : []),
      ...all.map((line) => ({ x: percent(line), y: line.middle }))]);
    const offset = target ? 2 : 0;
    const late = (line, column) => column.filter((_, k) => line.x[k] >= 0.03 || line.x.length < 4);
    const seen = [...(target ? [...late(target, target.high), ...late(target, target.low)] : []),
      ...rungs.flatMap((line) => late(line, line.middle))];
    chart(plot, readout, {
      data: values, height: 210,
      series: [...(target ? [{ stroke: "transparent" }, { stroke: "transparent" }] : []),
        ...rungs.map(() => ({ stroke: t.rung, width: 1, alpha: 0.75 })), ...(target ? [{ stroke: t.ink, width: 1.6 }] : [])],
      bands: target ? [{ series: [1, 2], fill: t.line }] : [],
      x: { range: [0, 100], ticks: (v) => `${v} %`, space: 44 },
      y: { range: padded(seen, 0.08), ticks: show.axisValue, size: 46 },
      caption: "Against progress of the run.", describe: `${panel.title} against progress for ${all.length} runs.`,
      readout: (k) => [["at", `${Number(values[0][k].toPrecision(3))} %`],
        ...all.map((line, n) => [line.run, values[offset + n + 1][k] === null ? null : show.short(values[offset + n + 1][k])]),
        ["extremes", target && values[1][k] !== null ? `${show.short(values[2][k])} to ${show.short(values[1][k])}` : null]],
      draw: (u) => { if (target) marks(u, eventMarks(data, target.run, (e) => 100 * e.progress), t.muted); },
    });
  });
}
