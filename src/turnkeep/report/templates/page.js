"use strict";
(() => {
  // One figure is a canvas whose parts can be pointed at, or walked with the arrow keys. Each kind says how many parts
  // it has, where each lies, what lies at a point, how it is drawn, and what it tells; the rest is the same for all.
  const tip = document.getElementById("tip");
  const TYPES = {
    uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
    float32: Float32Array, float64: Float64Array,
  };
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function read(figure, name) {
    const data = figure.dataset[name];
    if (data === undefined) return null;
    const type = figure.dataset[name + "Type"];
    if (type === "json") return JSON.parse(data);
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    return new TYPES[type](bytes.buffer);
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = (value) => (Object.is(value, -0) ? "-0" : String(value));
  const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 3 });
  // beside an axis there is room for nine characters
  const brief = (value) => (value < 1e6 ? grouped(value) : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 3 }));

  function mix(from, to, share) {
    const parts = [1, 3, 5].map((at) => {
      const one = parseInt(from.slice(at, at + 2), 16), other = parseInt(to.slice(at, at + 2), 16);
      return Math.round(one + (other - one) * share);
    });
    return `rgb(${parts.join(",")})`;
  }

  function viridis(share) {
    const place = Math.min(3.999, Math.max(0, share * 4)), low = Math.floor(place);
    const parts = VIRIDIS[low].map((one, i) => Math.round(one + (VIRIDIS[low + 1][i] - one) * (place - low)));
    return `rgb(${parts.join(",")})`;
  }

  function tokens(figure) {
    const ids = read(figure, "ids"), logProbs = read(figure, "lp");
    const pitch = 6, row = 30, least = 3;
    let across = 1;
    // 10 nats is one in 22,000; the square root keeps likely tokens apart
    const share = (i) => (logProbs ? Math.sqrt(Math.min(1, Math.max(0, -logProbs[i] / 10))) : 0);
    return {
      count: ids.length,
      layout(width) {
        across = Math.max(1, Math.floor(width / pitch));
        return Math.ceil(ids.length / across) * row;
      },
      box: (i) => [(i % across) * pitch, Math.floor(i / across) * row, pitch, row],
      at(x, y) {
        const i = Math.floor(y / row) * across + Math.floor(x / pitch);
        return Math.floor(x / pitch) < across && i < ids.length ? i : -1;
      },
      step: (key) => ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across })[key] || 0,
      draw(context) {
        const cold = css("--cold"), mild = css("--mild"), hot = css("--hot"), line = css("--line");
        context.fillStyle = line;
        for (let y = row; y <= Math.ceil(ids.length / across) * row; y += row) {
          context.fillRect(0, y - 2, Math.min(ids.length - (y / row - 1) * across, across) * pitch - 1, 1);
        }
        for (let i = 0; i < ids.length; i++) {
          const [x, y] = this.box(i), part = share(i), tall = least + part * (row - 8 - least);
          context.fillStyle = part < 0.5 ? mix(cold, mild, part * 2) : mix(mild, hot, part * 2 - 1);
          context.fillRect(x, y + row - 3 - tall, pitch - 1, tall);
        }
      },
      tell(i) {
        const known = logProbs ? `log prob ${digits(logProbs[i])}, probability ${(100 * Math.exp(logProbs[i])).toPrecision(3)}\u00a0%` : "no log prob";
        return `token index ${i} of ${ids.length}: id ${ids[i]}\n${known}`;
      },
      list: () => Array.from(ids, (id, i) => `${i}\t${id}\t${logProbs ? digits(logProbs[i]) : "-"}`).join("\n"),
    };
  }

  function niceStep(most) {
    const rough = most / 3 || 1, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].find((step) => step * power >= rough) * power;
  }

  function columns(figure) {
    const names = figure.dataset.names.split("|");
    const series = names.map((_, s) => read(figure, "s" + s));
    const count = series[0].length, left = 64, bottom = 20, tall = 150;
    const total = Array.from({ length: count }, (_, i) => series.reduce((sum, one) => sum + (one[i] || 0), 0));
    const most = Math.max(...total, 1e-9), step = niceStep(most);
    let pitch = 1, wide = 1;
    return {
      count,
      layout(width) {
        wide = width;
        pitch = Math.min(48, (width - left) / count);
        return tall + bottom + 8;
      },
      box: (i) => [left + i * pitch, 8, pitch, tall],
      at(x) {
        const i = Math.floor((x - left) / pitch);
        return x >= left && i < count ? i : -1;
      },
      step: (key) => ({ ArrowLeft: -1, ArrowRight: 1 })[key] || 0,
      draw(context) {
        const quiet = css("--quiet"), line = css("--line"), y = (value) => 8 + tall - (value / most) * (tall - 6);
        context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
        context.textAlign = "right";
        for (let value = 0; value <= most * 1.001; value += step) {
          context.fillStyle = line;
          context.fillRect(left, Math.round(y(value)), wide - left, 1);
          context.fillStyle = quiet;
          context.fillText(brief(value), left - 8, y(value) + 4);
        }
        const gap = pitch > 4 ? Math.min(4, pitch * 0.25) : 0;
        for (let i = 0; i < count; i++) {
          let below = 0;
          series.forEach((one, s) => {
            const value = one[i] || 0, x = left + i * pitch, top = y(below + value), high = y(below) - top;
            fill(context, s, x, top, Math.max(1, pitch - gap), high);
            below += value;
          });
        }
        context.textAlign = "center";
        context.fillStyle = quiet;
        const every = Math.max(1, niceStep((count * 40) / Math.max(1, count * pitch) * 3));
        for (let i = 0; i < count; i += every) context.fillText(String(i), left + (i + 0.5) * pitch - gap / 2, tall + bottom + 2);
        context.textAlign = "right";
        context.fillText("turn", left - 8, tall + bottom + 2);
      },
      tell(i) {
        const told = series.map((one, s) => `${names[s]}: ${Number.isNaN(one[i]) ? "not known" : grouped(one[i])}`);
        return `turn ${i}, ${figure.dataset.unit}\n${told.join("\n")}`;
      },
      open: (i) => { location.hash = `turn-${i}`; },
    };
  }

  // The first series is pale, the second solid, the third hatched: they can be told apart without colour.
  function fill(context, series, x, y, width, height) {
    if (!(height > 0)) return;
    context.fillStyle = css("--s" + series);
    if (series < 2) return context.fillRect(x, y, width, height);
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = context.fillStyle;
    context.lineWidth = 1.4;
    context.beginPath();
    for (let at = Math.floor((x + y) / 4) * 4; at < x + width + y + height + 4; at += 4) {
      context.moveTo(at - y + 0, y);
      context.lineTo(at - y - height, y + height);
    }
    context.stroke();
    context.lineWidth = 2;
    context.strokeRect(x, y, width, height);
    context.restore();
  }

  function heat(figure) {
    const values = read(figure, "values"), extra = read(figure, "extra");
    const rows = Number(figure.dataset.rows), across = Number(figure.dataset.columns), isTurn = figure.dataset.column === "turn";
    const left = 64, above = 6, bottom = 20, at = (row, column) => (isTurn ? column * rows + row : row * across + column);
    const high = rows <= 12 ? 16 : rows <= 32 ? 10 : Math.max(3, 320 / rows);
    const low = Number(figure.dataset.low);
    let most = 0, pitch = 1;
    for (const value of values) if (value > most) most = value;
    const sums = isTurn ? [] : Array.from({ length: rows }, (_, row) => {
      let sum = 0;
      for (let column = 0; column < across; column++) sum += values[at(row, column)];
      return sum;
    });
    return {
      count: rows * across,
      layout(width) {
        pitch = Math.min(48, (width - left) / across);
        return above + rows * high + bottom;
      },
      box: (i) => [left + (i % across) * pitch, above + Math.floor(i / across) * high, pitch, high],
      at(x, y) {
        const column = Math.floor((x - left) / pitch), row = Math.floor((y - above) / high);
        return x >= left && y >= above && column < across && row < rows ? row * across + column : -1;
      },
      step: (key) => ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across })[key] || 0,
      draw(context) {
        const quiet = css("--quiet"), gap = pitch > 5 && high > 5 ? 1 : 0;
        context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
        context.lineWidth = 1;
        context.strokeStyle = quiet;
        for (let i = 0; i < rows * across; i++) {
          const value = values[at(Math.floor(i / across), i % across)], [x, y] = this.box(i);
          if (value > 0) {
            context.fillStyle = viridis(most > low ? (value - low) / (most - low) : 1);
            context.fillRect(x, y, Math.max(1, pitch - gap), high - gap);
          } else {
            const size = Math.min(3, pitch / 3, high / 3), middle = [x + (pitch - gap) / 2, y + (high - gap) / 2];
            context.beginPath();
            context.moveTo(middle[0] - size, middle[1] - size);
            context.lineTo(middle[0] + size, middle[1] + size);
            context.moveTo(middle[0] + size, middle[1] - size);
            context.lineTo(middle[0] - size, middle[1] + size);
            context.stroke();
          }
        }
        context.fillStyle = quiet;
        context.textAlign = "right";
        const everyRow = Math.max(1, Math.ceil(14 / high));
        for (let row = 0; row < rows; row += everyRow) context.fillText((row ? "" : "layer ") + row, left - 8, above + row * high + Math.min(high, 14) / 2 + 4);
        context.textAlign = "center";
        const every = Math.max(1, niceStep((40 / pitch) * 3));
        for (let column = 0; column < across; column += every) context.fillText(String(column), left + (column + 0.5) * pitch, above + rows * high + 14);
        context.textAlign = "right";
        context.fillText(figure.dataset.column, left - 8, above + rows * high + 14);
      },
      tell(i) {
        const row = Math.floor(i / across), column = i % across, value = values[at(row, column)];
        if (isTurn) {
          const told = value > 0 ? `as mixed as ${value.toFixed(1)} experts used evenly, ${extra[at(row, column)]} different ones` : "no routes";
          return `layer ${row}, turn ${column}\n${told}`;
        }
        const part = sums[row] ? `, ${((100 * value) / sums[row]).toFixed(2)} % of the layer` : "";
        return `layer ${row}, expert ${column}\ntaken ${grouped(value)} times${part}`;
      },
      open: isTurn ? (i) => { location.hash = `turn-${i % across}`; } : undefined,
    };
  }

  const KINDS = { tokens, columns, heat };
  const redraws = new Set();

  function mount(figure) {
    const canvas = figure.querySelector("canvas"), kind = KINDS[figure.dataset.kind](figure);
    let width = 0, chosen = -1;

    function redraw() {
      const ratio = window.devicePixelRatio || 1, height = kind.layout(width);
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      kind.draw(context);
      if (chosen >= 0) {
        const [x, y, wide, high] = kind.box(chosen);
        context.strokeStyle = css("--ink");
        context.lineWidth = 1.5;
        context.strokeRect(x - 0.5, y + 0.5, wide, high - 1);
      }
    }

    function choose(i) {
      if (i === chosen) return;
      chosen = i;
      redraw();
      if (i < 0) { tip.style.visibility = "hidden"; return; }
      tip.textContent = kind.tell(i);
      const place = canvas.getBoundingClientRect(), [x, y, wide, high] = kind.box(i);
      tip.style.visibility = "visible";
      const below = place.top + y + high + 6, over = place.top + y - tip.offsetHeight - 6;
      tip.style.left = `${scrollX + Math.max(8, Math.min(place.left + x + wide / 2, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${scrollY + (below + tip.offsetHeight < innerHeight ? below : over)}px`;
    }

    canvas.addEventListener("pointermove", (event) => choose(kind.at(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => choose(-1));
    canvas.addEventListener("blur", () => choose(-1));
    canvas.addEventListener("click", () => { if (chosen >= 0 && kind.open) kind.open(chosen); });
    canvas.addEventListener("keydown", (event) => {
      const goal = { Home: 0, End: kind.count - 1 }[event.key] ?? (kind.step(event.key) ? Math.max(chosen, 0) + (chosen < 0 ? 0 : kind.step(event.key)) : null);
      if (event.key === "Escape") choose(-1);
      else if (event.key === "Enter" && chosen >= 0 && kind.open) kind.open(chosen);
      else if (goal === null || event.ctrlKey || event.altKey || event.metaKey) return;
      else if (goal >= 0 && goal < kind.count) choose(goal);
      event.preventDefault();
    });
    function fit(now) {
      if (now && now !== width) { width = now; redraw(); }
    }

    fit(canvas.clientWidth);
    new ResizeObserver((entries) => fit(entries[0].contentRect.width)).observe(canvas);
    const listing = figure.querySelector(".listing");
    if (listing) listing.addEventListener("toggle", () => {
      if (listing.open) listing.querySelector("pre").textContent = `token\tid\tlog prob\n${kind.list()}`;
    });
    redraws.add(redraw);
    figure.dataset.drawn = "yes";
  }

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { observer.unobserve(entry.target); mount(entry.target); }
  }, { rootMargin: "400px" });
  document.querySelectorAll(".fig").forEach((figure) => figure.dataset.kind === "tokens" ? observer.observe(figure) : mount(figure));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
})();
