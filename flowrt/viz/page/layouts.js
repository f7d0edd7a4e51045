// The layouts of a step with a mesh, over the picture that main.js paints: labels and marks on the wires, a
// legend of the marks, what moves in the tip and in the details. Pages of other steps do without.

import { byId, element, replaceChildren } from "./dom.js";
import { operations } from "./follow.js";
import { formatBytes } from "./format.js";
import { LAYOUTS } from "./graph.js";
import { labelsOf, marksOn, Moves, placeOfMark, totals } from "./marks.js";
import { FADED } from "./paint.js";
import { BESIDE, MARGIN } from "./tip.js";

const MARK = 5; // radius of a mark, in pixels
const NEAR = 9; // pixels from a mark at which the pointer is on it
const LABELLED = 0.7; // scale below which layouts are left out
const MOST_MOVES = 60; // listed in the details

class LayoutView {
  constructor(page) {
    this.page = page;
    this.moves = new Map(page.graph.trees.map((tree) => [tree, new Moves(page.graph, tree)]));
    this.legend = element("ul", { id: "collectives", "aria-label": "Redistributions" });
    byId("lines").after(this.legend);
    page.canvas.addEventListener("painted", () => this.#paint());
    page.canvas.addEventListener("pointermove", (event) => this.#point(event));
    page.state.onChange(() => this.#show());
    this.#show();
    page.redraw();
  }

  get isShown() {
    return this.page.stage.name === LAYOUTS;
  }

  /** The moves of the tree that is shown. */
  get shownMoves() {
    return this.moves.get(this.page.stage.tree);
  }

  #show() {
    const rows = totals(this.shownMoves.all).map(([collective, count, bytes]) =>
      element(
        "li",
        {},
        swatch(collective),
        element("span", { class: "name" }, collective),
        element("span", { class: "what" }, `${count.toLocaleString("en")} · ${formatBytes(bytes)}`),
      ),
    );
    this.legend.hidden = !this.isShown || !rows.length;
    replaceChildren(this.legend, ...rows);
    byId("redistributions")?.remove();
    if (this.isShown && this.page.selected !== null) this.#detail(this.page.selected);
  }

  /** What moves to and from the selected operation, or those in the selected group. */
  #detail(item) {
    const { stage } = this.page;
    const edges = [...operations(stage, item)].flatMap((op) => [
      ...stage.inputs.at(op),
      ...stage.readers.at(op),
    ]);
    const moves = this.shownMoves.on(edges);
    if (!moves.length) return;
    const rest = moves.length - MOST_MOVES;
    const section = element(
      "section",
      { id: "redistributions" },
      element("h3", {}, "Redistributions"),
      element(
        "ul",
        { class: "tensors" },
        moves.slice(0, MOST_MOVES).map((move) =>
          element(
            "li",
            { class: "move" },
            swatch(move.collective),
            element("span", {}, sentence(move)),
            element("code", { class: "what" }, move.becomes),
          ),
        ),
        rest > 0 ? element("li", { class: "note" }, `and ${rest.toLocaleString("en")} more`) : null,
      ),
    );
    const panel = byId("details");
    panel.insertBefore(section, panel.querySelector("section"));
  }

  // --- on the canvas

  #paint() {
    if (!this.isShown) return;
    this.#collect();
    const { canvas, viewport, followed } = this.page;
    const context = canvas.getContext("2d", { alpha: false });
    const scale = devicePixelRatio * viewport.scale;
    context.setTransform(scale, 0, 0, scale, devicePixelRatio * viewport.x, devicePixelRatio * viewport.y);
    if (viewport.scale > LABELLED && followed === null)
      for (const [item, text] of this.labels) this.#label(context, item, text);
    for (const mark of this.#seenMarks()) {
      const isFaded = followed !== null && !mark.wire.edges.some((edge) => followed.edges.has(edge));
      context.globalAlpha = isFaded ? FADED : 1;
      this.#mark(context, mark);
    }
    context.globalAlpha = 1;
  }

  /** Labels and marks, once for all paintings of one arrangement. */
  #collect() {
    const { stage, wires } = this.page;
    if (this.wires === wires) return;
    this.wires = wires;
    this.marks = marksOn(wires, this.shownMoves);
    this.labels = labelsOf(stage, wires);
  }

  /** The marks in sight; the curves of other wires are never made. */
  #seenMarks() {
    const [left, top, right, bottom] = this.page.viewport.seen;
    return this.marks.filter(({ wire }) => {
      if (wire.top > bottom || wire.bottom < top) return false;
      return wire.curve.left <= right && wire.curve.right >= left;
    });
  }

  /** Below a box, where all of its wires begin; those that are followed have labels of their own. */
  #label(context, item, text) {
    const { picture, theme } = this.page;
    const box = picture.boxes.get(item);
    const [x, y] = [box.x + box.width / 2, box.y + box.height + 11];
    context.font = `10.5px ${theme.font}`;
    const width = context.measureText(text).width + 6;
    context.fillStyle = theme.page;
    context.fillRect(x - width / 2, y - 7, width, 14);
    context.fillStyle = theme.muted;
    context.textAlign = "center";
    context.fillText(text, x, y + 0.5);
    context.textAlign = "left";
  }

  /** A dot per collective, side by side, at a visible size at any scale. */
  #mark(context, { wire, moves }) {
    const { theme, viewport } = this.page;
    const radius = MARK * this.#enlarged;
    const kinds = totals(moves);
    const [x, y] = placeOfMark(wire.curve);
    kinds.forEach(([collective], i) => {
      context.beginPath();
      context.arc(x + (2 * i + 1 - kinds.length) * radius, y, radius, 0, 2 * Math.PI);
      context.fillStyle = colourOf(collective);
      context.fill();
      context.strokeStyle = theme.page;
      context.lineWidth = 1 / viewport.scale;
      context.stroke();
    });
  }

  /** How much larger than the picture marks are drawn, which would else vanish where it is small. */
  get #enlarged() {
    return Math.max(1, 0.5 / this.page.viewport.scale);
  }

  /** Where the mark of a move of `tensor` is on the canvas. */
  placeOf(tensor) {
    const mark = this.marks.find(({ moves }) => moves.some((move) => move.tensor === tensor));
    return this.page.viewport.toScreen(...placeOfMark(mark.wire.curve));
  }

  // --- the tip

  #point(event) {
    if (!this.isShown || event.buttons || !this.marks) return;
    const { canvas, viewport } = this.page;
    const bounds = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const [px, py] = viewport.toPicture(x, y);
    const near = NEAR * this.#enlarged;
    const mark = this.#seenMarks().find(({ wire, moves }) => {
      const [mx, my] = placeOfMark(wire.curve);
      return Math.abs(px - mx) <= near * totals(moves).length && Math.abs(py - my) <= near;
    });
    if (mark) showMoves(mark.moves, viewport, x, y);
  }
}

/** Over what tip.js shows there. */
function showMoves(moves, viewport, x, y) {
  const tip = byId("tip");
  const lines = moves.slice(0, 8).map((move) => `${sentence(move)} → ${move.becomes}`);
  const rest = moves.length - lines.length;
  tip.textContent = [...lines, ...(rest > 0 ? [`and ${rest.toLocaleString("en")} more`] : [])].join("\n");
  tip.hidden = false;
  const left = Math.max(0, Math.min(x + BESIDE.x, viewport.width - tip.offsetWidth - MARGIN));
  const top = Math.max(0, Math.min(y + BESIDE.y, viewport.height - tip.offsetHeight - MARGIN));
  tip.style.translate = `${left}px ${top}px`;
}

/** `x:0: AllReduce over tp, 2 KiB`. */
function sentence({ tensor, collective, axes, bytes }) {
  return `${tensor}: ${collective} over ${axes}${bytes ? `, ${formatBytes(bytes)}` : ""}`;
}

function swatch(collective) {
  return element("span", { class: `swatch collective ${collective}`, "aria-hidden": "true" });
}

function colourOf(collective) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${collective}`).trim();
}

window.flowrtLayouts = new LayoutView(window.flowrtPage); // for the console
