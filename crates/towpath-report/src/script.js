"use strict";
// Cursor, zoom and switching of series. The page is complete without this script; the charts are
// already drawn, and everything here only reads numbers out or changes what is shown.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 10000, HEIGHT = 1000;
  const make = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, parent, text = "") => {
    const node = document.createElement(name);
    node.textContent = text;
    parent.append(node);
    return node;
  };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const say = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    return value.toFixed(size >= 99.95 || Number.isInteger(value) ? 0 : size >= 9.995 ? 1 : 2);
  };

  class Panel {
    constructor(root, data) {
      Object.assign(this, { root, data, from: 0, to: data.end, at: null });
      this.points = Math.max(1, Math.round(data.end / data.step));
      this.charts = [...root.querySelectorAll("figure[data-chart]")].map((figure) => this.chart(figure));
      this.tools();
      root.classList.add("interactive");
    }

    chart(figure) {
      const svg = figure.querySelector("svg.plot");
      const chart = {
        ...this.data.charts[Number(figure.dataset.chart)],
        figure, svg, area: svg.querySelector("svg.data"), keys: [...figure.querySelectorAll("li[data-s]")],
        cursor: make("line", { class: "cursor", y2: "100%", visibility: "hidden" }, svg),
        selection: make("rect", { class: "selection", height: "100%", visibility: "hidden" }, svg),
      };
      chart.keys.forEach((key) => this.button(key));
      svg.setAttribute("tabindex", "0");
      this.listen(chart);
      return chart;
    }

    button(key) {
      key.setAttribute("role", "button");
      key.setAttribute("tabindex", "0");
      key.setAttribute("aria-pressed", "true");
      key.title = "show or hide";
      key.addEventListener("click", () => this.toggle(key.dataset.name));
      key.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        this.toggle(key.dataset.name);
      });
    }

    tools() {
      const bar = document.createElement("div");
      bar.className = "tools";
      this.root.prepend(bar);
      const add = (text, title, action) => {
        const button = html("button", bar, text);
        button.type = "button";
        button.title = title;
        button.addEventListener("click", action);
        return button;
      };
      add("+", "zoom in", () => this.scale(0.5));
      add("−", "zoom out", () => this.scale(2));
      this.reset = add("whole run", "show the whole run", () => this.zoom(0, this.data.end));
      this.reset.disabled = true;
      this.time = html("output", bar);
      html("span", bar, "Drag to zoom, double-click for the whole run, click a name to hide it. In a chart the arrow keys move the cursor (Shift: ten times as far), + and − zoom.").className = "help";
      this.spoken = html("span", bar);
      this.spoken.className = "spoken";
      this.spoken.setAttribute("aria-live", "polite");
    }

    /** Time under the pointer. */
    timeAt(chart, event) {
      const style = getComputedStyle(chart.svg);
      const box = chart.svg.getBoundingClientRect();
      const left = box.left + parseFloat(style.paddingLeft);
      const width = box.right - parseFloat(style.paddingRight) - left;
      return this.from + clamp((event.clientX - left) / width, 0, 1) * (this.to - this.from);
    }

    listen(chart) {
      const { svg } = chart;
      let start = null;
      svg.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0) {
          start = this.timeAt(chart, event);
          svg.setPointerCapture(event.pointerId);
        }
        this.show(this.timeAt(chart, event));
      });
      svg.addEventListener("pointermove", (event) => {
        const time = this.timeAt(chart, event);
        this.show(time);
        if (start !== null) this.select(Math.min(start, time), Math.max(start, time));
      });
      const end = (event) => {
        if (start === null) return;
        const time = this.timeAt(chart, event);
        const [from, to] = [Math.min(start, time), Math.max(start, time)];
        start = null;
        this.select(0, 0);
        if (event.type === "pointerup" && to - from > (this.to - this.from) / 50) this.zoom(from, to);
      };
      svg.addEventListener("pointerup", end);
      svg.addEventListener("pointercancel", end);
      svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse" && start === null) this.show(null);
      });
      svg.addEventListener("dblclick", () => this.zoom(0, this.data.end));
      svg.addEventListener("keydown", (event) => this.key(event, chart));
    }

    key(event, chart) {
      const now = this.at ?? this.from;
      const step = this.data.step * (event.shiftKey ? 10 : 1);
      const actions = {
        ArrowLeft: () => this.show(now - step), ArrowRight: () => this.show(now + step),
        Home: () => this.show(this.from), End: () => this.show(this.to),
        "+": () => this.scale(0.5), "=": () => this.scale(0.5), "-": () => this.scale(2),
        0: () => this.zoom(0, this.data.end), Escape: () => this.show(null),
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[event.key]();
      const values = chart.keys.map((key) => `${key.dataset.name} ${key.querySelector("output").textContent}`);
      this.spoken.textContent = this.at === null ? "" : `${this.time.textContent}: ${values.join(", ")}`;
    }

    percent(time) {
      return `${100 * (time - this.from) / (this.to - this.from)}%`;
    }

    /** Moves the cursor of every chart and reads the values out; `null` takes it away. */
    show(time) {
      this.at = time === null ? null : clamp(time, this.from, this.to);
      this.root.classList.toggle("reading", this.at !== null);
      const point = this.at === null ? -1 : clamp(Math.floor(this.at / this.data.step + 1e-6), 0, this.points - 1);
      const [from, to] = [point * this.data.step, (point + 1) * this.data.step];
      const digits = clamp(Math.ceil(-Math.log10(this.data.step)), 0, 3);
      this.time.textContent = point < 0 ? "" : `${from.toFixed(digits)}–${to.toFixed(digits)} s`;
      for (const { cursor, keys, series } of this.charts) {
        cursor.setAttribute("visibility", point < 0 ? "hidden" : "visible");
        if (point >= 0) for (const end of ["x1", "x2"]) cursor.setAttribute(end, this.percent(this.at));
        for (const key of keys) {
          const values = series[Number(key.dataset.s)].v;
          key.querySelector("output").textContent = point < 0 ? "" : say(values[point]);
        }
      }
    }

    select(from, to) {
      for (const { selection } of this.charts) {
        selection.setAttribute("visibility", to > from ? "visible" : "hidden");
        selection.setAttribute("x", this.percent(from));
        selection.setAttribute("width", `${100 * (to - from) / (this.to - this.from)}%`);
      }
    }

    scale(factor) {
      const middle = this.at ?? (this.from + this.to) / 2;
      const half = (this.to - this.from) * factor / 2;
      this.zoom(middle - half, middle + half);
    }

    zoom(from, to) {
      const { end, step } = this.data;
      const span = clamp(to - from, Math.min(end, step * 4), end);
      this.from = clamp((from + to - span) / 2, 0, end - span);
      this.to = this.from + span;
      this.reset.disabled = span >= end;
      this.root.classList.toggle("zoomed", span < end);
      for (const { area, svg, fit } of this.charts) {
        const x = WIDTH * this.from / end;
        const [top, height] = this.fit(fit, svg);
        area.setAttribute("viewBox", `${x} ${top} ${WIDTH * span / end} ${height}`);
        this.ticks(svg.querySelector(".times"));
        for (const mark of svg.querySelectorAll(".marks > g")) this.move(mark);
      }
      this.show(this.at);
    }

    /** Sequence numbers grow, so a part of the time is a part of the height: its top and height. */
    fit(fit, svg) {
      if (!fit) return [0, HEIGHT];
      const { low, high, bottoms, tops } = fit;
      const point = (time) => clamp(Math.floor(time / this.data.step + 1e-6), 0, tops.length - 1);
      const whole = this.to - this.from >= this.data.end;
      const [from, to] = [point(this.from), point(this.to - 1e-9)];
      const room = 0.04 * (tops[to] - bottoms[from]) || 1e-6;
      const [least, most] = whole ? [low, high] : [bottoms[from] - room, tops[to] + room];
      const y = (value) => `${100 * (most - value) / (most - least)}%`;
      const group = svg.querySelector(".levels");
      group.replaceChildren();
      const [step, digits] = this.step((most - least) / 5);
      for (let n = Math.ceil(least / step - 1e-9); n * step <= most + step * 1e-9; n += 1) {
        make("line", { class: n === 0 ? "zero" : "grid", x2: "100%", y1: y(n * step), y2: y(n * step) }, group);
        make("text", { x: -6, y: y(n * step), dy: ".33em", "text-anchor": "end" }, group).textContent = (n * step).toFixed(digits);
      }
      for (const text of svg.querySelectorAll("[data-level]")) {
        const value = Number(text.dataset.level);
        text.setAttribute("y", y(value));
        text.setAttribute("visibility", value < least || value > most ? "hidden" : "inherit");
      }
      return [HEIGHT * (high - most) / (high - low), HEIGHT * (most - least) / (high - low)];
    }

    /** A round step of an axis, and the decimals that it needs. */
    step(raw) {
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * (1 - 1e-9));
      return [step, clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 6)];
    }

    ticks(group) {
      const [step, digits] = this.step((this.to - this.from) / 5);
      group.replaceChildren();
      for (let n = Math.ceil(this.from / step - 1e-9); n * step <= this.to + step * 1e-9; n += 1) {
        const x = this.percent(n * step);
        make("line", { class: "tick", x1: x, x2: x, y1: "100%", y2: "100%" }, group);
        make("text", { x, y: "100%", dy: 16, "text-anchor": "middle" }, group).textContent = (n * step).toFixed(digits);
      }
    }

    move(mark) {
      const at = Number(mark.dataset.at);
      mark.setAttribute("visibility", at < this.from || at > this.to ? "hidden" : "inherit");
      for (const line of mark.querySelectorAll("line")) for (const end of ["x1", "x2"]) line.setAttribute(end, this.percent(at));
      for (const text of mark.querySelectorAll("text")) text.setAttribute("x", this.percent(at));
    }

    /** Shows or hides a series in every chart that has it. */
    toggle(name) {
      for (const chart of this.charts) {
        for (const key of chart.keys.filter((key) => key.dataset.name === name)) {
          const off = key.classList.toggle("off");
          key.setAttribute("aria-pressed", String(!off));
          chart.area.querySelector(`g[data-s="${key.dataset.s}"]`).classList.toggle("off", off);
          for (const mark of chart.svg.querySelectorAll(`g[data-of="${key.dataset.s}"]`)) mark.classList.toggle("off", off);
        }
        chart.figure.classList.toggle("changed", chart.keys.some((key) => key.classList.contains("off")));
        this.stack(chart);
      }
    }

    /** Puts the visible bands on top of each other again. */
    stack({ series, max, area, keys }) {
      const floor = new Array(this.points).fill(0);
      const x = (point) => Math.round(WIDTH * point * this.data.step / this.data.end);
      const y = (value) => Math.round(HEIGHT * (1 - value / max));
      keys.forEach((key, number) => {
        if (series[number].k !== "s" || key.classList.contains("off")) return;
        const group = area.querySelector(`g[data-s="${number}"]`);
        let [above, below] = ["", ""];
        series[number].v.forEach((value, point) => {
          const [low, high] = [y(floor[point]), y(floor[point] + (value ?? 0))];
          floor[point] += value ?? 0;
          above += `${above ? "L" : "M"}${x(point)} ${high}H${x(point + 1)}`;
          below = `L${x(point + 1)} ${low}H${x(point)}${below}`;
        });
        group.replaceChildren(make("path", { d: `${above}${below}z` }));
      });
    }
  }

  const panels = JSON.parse(document.getElementById("data").textContent);
  for (const root of document.querySelectorAll("[data-panel]")) new Panel(root, panels[Number(root.dataset.panel)]);
  // On paper every run is there; long lists stay as the reader left them.
  addEventListener("beforeprint", () => document.querySelectorAll(".run > details").forEach((part) => { part.open = true; }));
})();
