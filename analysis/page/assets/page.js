// The page around the figures: headline, facts, tables, notes. Everything is text from the data.
"use strict";

const SIGNS = { calm: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1Z", watch: "M6 0 12 6 6 12 0 6Z", alarm: "M6 .6 12 11.4H0Z", waiting: "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1Zm0 2a3 3 0 1 1 0 6a3 3 0 0 1 0-6Z" };
const TONE = { normal: "calm", finished: "calm", watch: "watch", stopped: "watch", precursor: "alarm", runaway: "alarm", failed: "alarm" };
const sign = (tone) => h("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, h("path", { d: SIGNS[tone], fill: "currentColor", "fill-rule": "evenodd" }));
const chip = (text, tone) => h(`span.chip.${tone}`, {}, sign(tone), text);

// Where the last evaluation (or the final forecast) lies in its band, as a strip.
function strip(data) {
  const f = data.forecast;
  if (!f || f.lo90 === null) return null;
  const b = f.bands, at = data.target;
  const k = at ? b.progress.findIndex((p) => Math.abs(p - at.progress) < 1e-5) : b.progress.length - 1;
  const edge = (name) => b[name][k], width = 480;
  const ends = [edge("lo99"), edge("hi99"), ...(at ? [at.loss] : [])];
  const low = Math.min(...ends), high = Math.max(...ends), pad = (high - low) * 0.09;
  const x = (v) => ((v - low + pad) / (high - low + 2 * pad)) * width;
  const box = (level) => h("rect", { x: x(edge(`lo${level}`)), width: x(edge(`hi${level}`)) - x(edge(`lo${level}`)), y: 34, height: 26, rx: 3, fill: `var(--band${level})` });
  const text = (v, y, words, kind = "", anchor = "middle") => h(`text${kind}`, { x: x(v), y, "text-anchor": anchor }, words);
  const side = (v, room) => (x(v) < room ? "start" : x(v) > width - room ? "end" : "middle");
  const parts = [box(99), box(90), box(50), h("rect", { x: x(edge("median")) - 1, width: 2, y: 34, height: 26, fill: "var(--accent)" }),
    text(edge("lo90"), 78, show.loss(edge("lo90")), "", "end"), text(edge("hi90"), 78, show.loss(edge("hi90")), "", "start"),
    text(edge("median"), 96, `forecast ${show.loss(edge("median"))} and its 90 % band`, "", side(edge("median"), 110))];
  if (at) {
    parts.push(h("path", { d: `M${x(at.loss)} 24v42`, stroke: "var(--surface)", "stroke-width": 6 }), h("path", { d: `M${x(at.loss)} 26v38`, stroke: "var(--ink)", "stroke-width": 3 }),
      text(at.loss, 16, `${at.run} ${show.loss(at.loss)}`, ".value", side(at.loss, 90)));
  }
  const says = at ? `${at.run} at ${show.loss(at.loss)}` : "final forecast";
  return h("svg.strip", { viewBox: `0 0 ${width} 102`, role: "img", "aria-label": `${says}: median ${show.loss(edge("median"))}, 90 % band ${show.loss(edge("lo90"))} to ${show.loss(edge("hi90"))} ${data.unit}` }, parts);
}

function warned(f) {
  const count = f.warnings.filter((w) => w.severity === "warning").length;
  return count ? [", ", h("a", { href: "#fit" }, `${count} warning${count > 1 ? "s" : ""}`)] : [];
}

function facts(data) {
  const f = data.forecast, { state } = data.headline;
  const rows = [["Monitor", state ? chip(state, TONE[state]) : chip("not yet", "waiting")]];
  if (f) {
    rows.push(["90 % half-width", f.half_width_percent === null ? "no band" : `±${f.half_width_percent.toFixed(2)} %`],
      ["Reach", `${Number(f.times.toPrecision(2))}× the top rung`], ["Grade of the fit", [f.grade, ...warned(f)]],
      ["Forecast frozen", show.time(f.created)], ["sha256", h("code", { title: f.sha256 }, f.sha256.slice(0, 12))]);
  }
  if (!f) {
    const rungs = data.runs.filter((run) => run.role !== "target"), target = targetOf(data);
    rows.push(["Rung runs finished", `${rungs.filter((run) => run.finished).length} of ${rungs.length}`]);
    if (target) rows.push(["Target", target.run], ["Its training", `${show.count(target.tokens)} tokens, ${show.power(target.flops)} FLOPs`]);
  }
  return h("dl.facts", {}, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

const tied = (text) => text.replaceAll(" %", "\u00a0%"); // a number stays with its percent sign
const cell = (name, value, kind = "") => h(`td${kind}`, { "data-label": name }, value ?? "\u2013");

function runTable(data) {
  const columns = ["Run", "Role", "Parameters", "Active", "Tokens", "FLOPs", "Steps", "Loss", "State"];
  const rows = data.runs.map((run) => h(`tr${run.role === "target" ? ".target" : ""}`, {},
    cell("Run", run.run), cell("Role", run.role, ".text"), cell("Parameters", show.count(run.parameters)), cell("Active", show.count(run.active)),
    cell("Tokens", show.count(run.tokens)), cell("FLOPs", show.power(run.flops)),
    cell("Steps", run.step === null || run.step === run.steps ? show.whole(run.steps) : `${show.whole(run.step)} / ${show.whole(run.steps)}`),
    cell("Loss", run.loss === null ? null : show.loss(run.loss)),
    cell("State", [h(`span.state.${TONE[run.state] || "waiting"}`, {}, sign(TONE[run.state] || "waiting"), run.state),
      run.reason ? h("span.why", {}, run.reason) : null], ".text.wide")));
  return h("section.card", {}, h("h2", {}, "Runs"), h("div.scroll", { tabindex: 0 }, h("table.cards", {},
    h("thead", {}, h("tr", {}, columns.map((name) => h(["Role", "State"].includes(name) ? "th.text" : "th", { scope: "col" }, name)))),
    h("tbody", {}, rows))));
}

function gateCard(data) {
  if (!data.gates.length) return null;
  const tone = (gate) => (gate.word === "inside" ? "calm" : !["above", "below"].includes(gate.word) ? "waiting" : gate.overruled ? "watch" : "alarm");
  const rows = data.gates.map((gate) => h("tr", {}, cell("Rung", gate.rung), cell("Predicted", gate.median === null ? null : show.loss(gate.median)),
    cell("Landed", gate.loss === null ? null : show.loss(gate.loss)),
    cell("Distance", gate.loss === null || gate.median === null ? null : show.percent(100 * (gate.loss / gate.median - 1))),
    cell("Word", [h(`span.state.${tone(gate)}`, {}, sign(tone(gate)), gate.word), gate.overruled ? h("span.why", {}, "overruled by --no-gate") : null], ".text"),
    cell(`${100 * gate.level} % band`, gate.lo === null ? null : `${show.loss(gate.lo)} to ${show.loss(gate.hi)}`, ".text.wide"),
    cell("From", gate.below.join(", "), ".text.wide"), cell("Floor E", gate.floor === null ? null : show.loss(gate.floor)),
    cell("Largest |z|, left out", gate.outlier === null ? null : gate.outlier.toFixed(1))));
  return h("section.card", { id: "gates" }, h("h2", {}, "Gates"), h("p.axis", {}, "Each rung from the third on, as predicted from the smaller ones before it started. A floor that drifts from gate to gate is a sign of a bend."),
    h("div.scroll", { tabindex: 0 }, h("table.cards", {}, h("thead", {}, h("tr", {}, ["Rung", "Predicted", "Landed", "Distance"].map((name) => h("th", { scope: "col" }, name)),
      ["Word", `${100 * data.gates[0].level} % band`, "From"].map((name) => h("th.text", { scope: "col" }, name)),
      ["Floor E", "Largest |z|, left out"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))));
}

function fitCard(data) {
  const f = data.forecast;
  if (!f) return null;
  const notes = f.warnings.map((w) => h(`li.${w.severity === "warning" ? "warning" : "note"}`, {}, sign(w.severity === "warning" ? "watch" : "waiting"), w.text));
  const shares = Object.entries(f.shares).map(([name, share]) => `${name} ${Math.round(100 * share)} %`).join(", ");
  const rows = f.rungs.run.map((run, k) => h("tr", {}, cell("Run", run), cell("FLOPs", show.power(f.rungs.flops[k])), cell("Loss", show.loss(f.rungs.loss[k])),
    cell("From the law", show.percent(100 * f.rungs.residual[k])), cell("z, left out", f.rungs.z && f.rungs.z[k] !== null ? show.signed(f.rungs.z[k], 1) : null)));
  return h("section.card", { id: "fit" }, h("h2", {}, "Fit"), h("div.two", {},
    h("dl.plain", {}, [["Law", f.equation], ["Floor E", `${show.loss(f.E[1])} (90 %: ${show.loss(f.E[0])} to ${show.loss(f.E[2])})`],
      ...Object.entries(f.exponents).map(([name, value]) => [`Exponent ${name}`, value.toFixed(3)]), ["Noise of one run", `${(100 * f.noise).toFixed(2)} %`], ["Grade", f.grade], ["Where the width comes from", shares], ["Holds", f.condition]]
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div.scroll", { tabindex: 0 }, h("table", {}, h("thead", {}, h("tr", {}, ["Run", "FLOPs", "Loss", "From the law", "z, left out"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows)))),
    h("h3", {}, notes.length ? "Warnings and notes" : "No warnings"), notes.length ? h("ul.notes", {}, notes) : null);
}

function valuesTable(data) {
  const f = data.forecast;
  if (!f) return null;
  const b = f.bands, target = targetOf(data);
  const losses = new Map(target ? target.evals.progress.map((p, k) => [p.toFixed(5), target.evals.loss[k]]) : []);
  const rows = b.progress.map((p, k) => {
    const loss = losses.get(p.toFixed(5));
    return h("tr", {}, cell("Progress", show.share(p)), cell("Tokens", b.tokens[k] === null ? null : show.count(b.tokens[k])), cell("Forecast", show.loss(b.median[k])),
      cell("90 % band", b.lo90[k] === null ? null : `${show.loss(b.lo90[k])} to ${show.loss(b.hi90[k])}`), cell("Observed", loss ? show.loss(loss) : null),
      cell("Distance", !loss ? null : show.percent(100 * (loss / b.median[k] - 1))));
  });
  return h("details", {}, h("summary", {}, "The same as a table"), h("div.scroll", { tabindex: 0 }, h("table", {}, h("thead", {}, h("tr", {},
    ["Progress", "Tokens", "Forecast", "90 % band", "Observed", "Distance"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))));
}

function eventCard(data) {
  if (!data.events.length) return h("section.card", {}, h("h2", {}, "Events"), h("p.axis", {}, "Nothing was recorded."));
  const order = [...data.events].sort((a, b) => (targetOf(data)?.run === b.run) - (targetOf(data)?.run === a.run));
  const rows = order.map((event) => h("tr", {}, cell("Run", event.run), cell("Step", show.whole(event.step)), cell("Progress", show.share(event.progress)),
    cell("What", event.state ? h(`span.state.${TONE[event.state]}`, {}, sign(TONE[event.state]), event.state) : event.kind, ".text"),
    cell("Detail", [event.detail, event.registered ? null : " (not declared before)"], ".text.wide")));
  return h("section.card", {}, h("h2", {}, "Events"), h("div.scroll", { tabindex: 0 }, h("table.cards", {}, h("thead", {}, h("tr", {}, ["Run", "Step", "Progress"].map((name) => h("th", { scope: "col" }, name)),
    ["What", "Detail"].map((name) => h("th.text", { scope: "col" }, name)))), h("tbody", {}, rows))));
}

function hypothesisCard(data) {
  const stated = data.ladder.hypothesis;
  if (!stated) return h("section.card", {}, h("h2", {}, "Hypothesis"), h("p.axis", {}, "None was declared."));
  const safe = (link) => (/^https?:\/\//.test(link) ? h("a", { href: link, rel: "noopener noreferrer" }, link) : link);
  const rows = [["Question", stated.question], ["Prediction", stated.prediction], ["Decides", stated.decides], ["Links", stated.links.flatMap((link) => [safe(link), " "])]];
  return h("section.card", {}, h("h2", {}, "Hypothesis"), h("dl.plain", {}, rows.filter(([, value]) => value.length).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function render(data) {
  charts.splice(0).forEach((one) => one.destroy());
  const sweep = !targetOf(data) && !data.forecast;
  const figures = [scaling(data), trajectory(data), ...(sweep ? [] : [residual(data)]), ...data.dynamics.map((panel) => dynamics(data, panel))];
  const values = valuesTable(data);
  if (values) figures[2].append(values);
  document.getElementById("page").replaceChildren(
    h("div.eyebrow", {}, h("b", {}, data.ladder.name), h("span", {}, `${data.runs.length} runs`), h("span", {}, `as of ${show.time(data.made)}`)),
    h("div.hero", {}, h("div", {}, h("h1", {}, tied(data.headline.title)), h("p.detail", {}, tied(data.headline.detail))), h("div", {}, strip(data))),
    facts(data),
    ...(data.missing.length ? [h("div.notice", { role: "status" }, h("ul", {}, data.missing.map((text) => h("li", {}, text))))] : []),
    h("div.grid", {}, figures, runTable(data), gateCard(data), fitCard(data), hypothesisCard(data), eventCard(data)),
    h("footer", {},
      h("p", {}, "A 90 % band is a prediction interval: of ten such targets nine should end inside it, given that the recipe transfers from the rungs to the target. The dashed band covers a whole curve at once; the shaded ones each point by itself."),
      h("p", {}, `Scaling Ladder ${data.version}. Losses in ${data.unit}; lower is better.`)));
  figures.forEach((card) => card.draw && card.draw());
}

const pageData = JSON.parse(document.getElementById("data").textContent);
render(pageData);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render(pageData));
// paper is white whatever the screen is
addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; render(pageData); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; render(pageData); });
