"use strict";
(() => {
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };

  // Commands to copy. A page from a file has no clipboard API in some browsers; then it is selected.
  for (const box of $$(".typed")) {
    const code = box.firstElementChild;
    const button = make("button", { type: "button", textContent: "copy" });
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    };
    box.append(button);
  }

  // The table of nodes: search, filter, sort.
  const table = document.getElementById("facts");
  const rows = [...table.tBodies[0].rows].map((row) => ({
    row, text: row.textContent.toLowerCase(), verdict: row.className.slice(2),
  }));
  const search = document.getElementById("search");
  const chips = $$(".chip input");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(chips.filter((chip) => chip.checked).map((chip) => chip.value));
    let shown = 0;
    for (const { row, text, verdict } of rows) {
      const fits = wanted.has(verdict) && words.every((word) => text.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("found").textContent =
      shown === rows.length ? "" : `${shown} of ${rows.length} nodes`;
  };
  search.oninput = filter;
  for (const chip of chips) chip.onchange = filter;
  $$(".tools")[0].hidden = rows.length < 2;
  // A node that is hidden could not be jumped to.
  for (const link of $$(".map a")) {
    link.onclick = () => {
      search.value = "";
      for (const chip of chips) chip.checked = true;
      filter();
    };
  }
  const order = new Intl.Collator("en", { numeric: true });
  const severity = { fail: 0, warn: 1, unknown: 2, pass: 3, skip: 4 };
  const key = ({ row, verdict }, column) =>
    column === 1 ? String(severity[verdict]) : row.cells[column].textContent;
  $$("th", table.tHead).forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of $$("th", table.tHead)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const sorted = [...rows].sort((a, b) => order.compare(key(a, column), key(b, column)));
      table.tBodies[0].append(...(up ? sorted : sorted.reverse()).map(({ row }) => row));
    };
    head.tabIndex = 0;
    head.onclick = sort;
    head.onkeydown = (event) => { if (event.key === "Enter") sort(); };
  });

  // Heat maps. A code of 0 was not measured, 255 failed, the others are steps of a logarithmic scale.
  const maps = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // From better than the median to far worse: what is well stays near the colour of the page. One
  // lightness ramp from yellow to blue, safe for colour-blind eyes; a failure is vermilion.
  const RAMPS = {
    light: ["#fffbe0", "#f3f3c1", "#c4e3b8", "#6cc0bd", "#2f8fb9", "#2a58a0", "#1d2766", "#0b0f30"],
    dark: ["#12191f", "#182436", "#1f3d63", "#235f8c", "#2f8aa5", "#62b8a8", "#b9dd9b", "#fdf6a4"],
  };
  const FAILED = { light: [209, 67, 31], dark: [238, 95, 60] };
  const BEST = -1, WORST = 3; // twice as good as the median to 8 times as bad, in powers of two
  const theme = () => (dark.matches ? "dark" : "light");
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const colour = (octaves) => {
    const ramp = RAMPS[theme()];
    const place = Math.min(1, Math.max(0, (octaves - BEST) / (WORST - BEST))) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(place));
    const [a, b] = [rgb(ramp[low]), rgb(ramp[low + 1])];
    return a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
  };

  class Heat {
    constructor(figure, map, cells) {
      Object.assign(this, { figure, map, cells });
      this.from = { row: 0, column: 0 };
      this.span = map.size;
      this.at = null;
      this.plot = figure.querySelector(".plot");
      this.canvas = this.plot.firstElementChild;
      this.reading = figure.querySelector(".reading");
      this.axis = figure.querySelector(".axis");
      // How bad each code is, so that the worst of many pairs can stand for them in one dot.
      this.octaves = new Float64Array(256);
      for (let code = 1; code < 255; code++) {
        const ratio = Math.log2(this.value(code) / map.median);
        this.octaves[code] = map.more ? -ratio : ratio;
      }
      this.octaves[0] = -Infinity;
      this.octaves[255] = Infinity;
      for (const part of $$(".plot, .axis, .legend", figure)) part.hidden = false;
      this.listen();
      this.draw();
      this.say();
    }

    value(code) { return this.map.low * Math.exp(this.map.step * (code - 1)); }
    figureOf(value) { return `${Number(value.toPrecision(3)).toLocaleString("en")} ${this.map.unit}`; }

    listen() {
      const { canvas } = this;
      canvas.onpointermove = (event) => this.point(this.under(event));
      canvas.onpointerleave = () => this.point(null);
      canvas.onclick = (event) => {
        const pair = this.under(event);
        this.zoom(pair);
        this.point(pair);
      };
      canvas.onkeydown = (event) => {
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (step) {
          const { row, column } = this.at ?? this.from;
          this.point({ row: this.inside(row + step[0], this.from.row), column: this.inside(column + step[1], this.from.column) });
        } else if (event.key === "Enter" && this.at) this.zoom(this.at);
        else if (event.key === "Escape") this.zoom(null);
        else return;
        event.preventDefault();
      };
      dark.addEventListener("change", () => this.draw());
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }

    inside(index, from) { return Math.min(from + this.span - 1, Math.max(from, index)); }

    under(event) {
      const box = this.canvas.getBoundingClientRect();
      const place = (at, start, size, from) => this.inside(from + Math.floor(((at - start) / size) * this.span), from);
      return {
        row: place(event.clientY, box.top, box.height, this.from.row),
        column: place(event.clientX, box.left, box.width, this.from.column),
      };
    }

    zoom(pair) {
      const close = Math.max(16, Math.round(this.map.size / 20));
      const whole = this.span < this.map.size || close >= this.map.size || !pair;
      this.span = whole ? this.map.size : close;
      const start = (index) => (whole ? 0 : Math.min(this.map.size - close, Math.max(0, index - (close >> 1))));
      this.from = { row: start(pair?.row), column: start(pair?.column) };
      this.draw();
    }

    point(pair) {
      this.at = pair;
      this.mark();
      this.say();
    }

    say() {
      const { map, at, reading } = this;
      if (!at) {
        reading.textContent = `${map.nodes.length} nodes`;
        return;
      }
      const code = this.cells[at.row * map.size + at.column];
      const name = (index) => make("code", { textContent: map.nodes[index] });
      reading.replaceChildren(name(at.row), " \u2192 ", name(at.column), ": ", make("b", { textContent: this.told(code, at) }));
    }

    told(code, { row, column }) {
      if (row === column) return "the node itself";
      if (code === 0) return "not measured";
      if (code === 255) return "nothing went through";
      const times = 2 ** this.octaves[code];
      const compared = Math.abs(Math.log2(times)) < 0.07 ? "as the median"
        : times > 1 ? `${times.toFixed(1)} times worse than the median` : `${(1 / times).toFixed(1)} times better than the median`;
      return `about ${this.figureOf(this.value(code))}, ${compared}`;
    }

    // One dot of the screen shows the worst of the pairs under it: a single bad one is not lost.
    draw() {
      const { canvas, map, span, from, cells, octaves } = this;
      const room = Math.round(this.plot.clientWidth * (devicePixelRatio || 1));
      if (!room) return;
      const dots = span >= room ? room : span * Math.floor(room / span);
      canvas.width = canvas.height = dots;
      const palette = new Uint32Array(256);
      const bytes = new Uint8ClampedArray(palette.buffer);
      for (let code = 1; code < 256; code++) {
        bytes.set([...(code === 255 ? FAILED[theme()] : colour(octaves[code])), 255], code * 4);
      }
      const image = new ImageData(dots, dots);
      const pixels = new Uint32Array(image.data.buffer);
      const edge = (dot) => Math.floor((dot * span) / dots);
      for (let y = 0; y < dots; y++) {
        const rowEnd = Math.max(edge(y) + 1, edge(y + 1));
        for (let x = 0; x < dots; x++) {
          const columnEnd = Math.max(edge(x) + 1, edge(x + 1));
          let worst = 0;
          for (let row = edge(y); row < rowEnd; row++) {
            const start = (from.row + row) * map.size + from.column;
            for (let column = edge(x); column < columnEnd; column++) {
              const code = cells[start + column];
              if (octaves[code] > octaves[worst]) worst = code;
            }
          }
          pixels[y * dots + x] = palette[worst];
        }
      }
      this.image = image;
      this.mark();
      this.label();
    }

    mark() {
      if (!this.image) return;
      const context = this.canvas.getContext("2d");
      context.putImageData(this.image, 0, 0);
      if (!this.at) return;
      const size = this.canvas.width / this.span;
      const x = (this.at.column - this.from.column) * size, y = (this.at.row - this.from.row) * size;
      context.strokeStyle = dark.matches ? "#ffffff" : "#000000";
      context.globalAlpha = 0.45;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(0, y + size / 2); context.lineTo(this.canvas.width, y + size / 2);
      context.moveTo(x + size / 2, 0); context.lineTo(x + size / 2, this.canvas.height);
      context.stroke();
      context.globalAlpha = 1;
      if (size > 6) context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }

    label() {
      const { nodes } = this.map;
      const end = (from) => nodes[from + this.span - 1];
      const parts = this.span < this.map.size
        ? [`rows ${nodes[this.from.row]} to ${end(this.from.row)}`, `columns ${nodes[this.from.column]} to ${end(this.from.column)}`]
        : [nodes[0], end(0)];
      this.axis.replaceChildren(...parts.map((text) => make("span", { textContent: text, title: text })));
      if (this.span < this.map.size) {
        const back = make("button", { type: "button", textContent: "show all" });
        back.onclick = () => { this.zoom(null); this.point(null); };
        this.axis.append(back);
      }
      this.legend();
    }

    legend() {
      const strip = make("canvas", { width: 256, height: 1 });
      const image = new ImageData(256, 1);
      for (let x = 0; x < 256; x++) {
        image.data.set([...colour(BEST + ((WORST - BEST) * x) / 255), 255], x * 4);
      }
      strip.getContext("2d").putImageData(image, 0, 0);
      const ticks = make("div", { className: "ticks" });
      const words = ["2\u00d7 better", "median", "2\u00d7 worse", "4\u00d7", "8\u00d7 or more"];
      words.forEach((word, i) => {
        const times = 2 ** (BEST + i);
        const value = this.map.more ? this.map.median / times : this.map.median * times;
        ticks.append(make("span", {}, word, make("br"), String(Number(value.toPrecision(3)))));
      });
      const swatches = make("div", { className: "swatches" }, `in ${this.map.unit}`);
      for (const [kind, text] of [["failed", "nothing went through"], ["missing", "not measured"]]) {
        swatches.append(make("span", {}, make("i", { className: `swatch ${kind}` }), text));
      }
      this.figure.querySelector(".legend").replaceChildren(strip, ticks, swatches);
    }
  }

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  for (const figure of $$(".heat")) {
    const map = maps[Number(figure.dataset.map)];
    unpack(map.cells).then((cells) => new Heat(figure, map, cells)).catch((error) => {
      figure.querySelector(".reading").textContent = `This browser cannot draw the map: ${error.message}`;
    });
  }
  for (const hint of $$(".scripted")) hint.hidden = false;
})();
