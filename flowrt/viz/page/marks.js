// What the stage of layouts shows on the wires, as data: the layout of what a box puts out, and a mark where a
// reader needs another one. Nothing here depends on the page.

import { BULGE } from "./wires.js";

/** The moves of a tree: {tensor, collective, axes, bytes, becomes} each, and by edge those that are on it. */
export class Moves {
  constructor(graph, tree) {
    const { moved = [], moves = {} } = tree.edges;
    const text = (row) => graph.strings[row];
    this.all = moved.map(([tensor, collective, axes, bytes, becomes]) => ({
      tensor: text(tensor),
      collective: text(collective),
      axes: text(axes),
      bytes,
      becomes: text(becomes),
    }));
    this.rows = new Map(Object.entries(moves).map(([edge, found]) => [Number(edge), found]));
  }

  /** The moves on `edges`, each once: readers that need the same layout have the same moves. */
  on(edges) {
    const found = new Set();
    for (const edge of edges) for (const row of this.rows.get(edge) ?? []) found.add(row);
    return [...found].map((row) => this.all[row]);
  }
}

/** [collective, number, bytes] of each collective, in the order of their first. */
export function totals(moves) {
  const found = new Map();
  for (const { collective, bytes } of moves) {
    const [count, sum] = found.get(collective) ?? [0, 0];
    found.set(collective, [count + 1, sum + bytes]);
  }
  return [...found].map(([collective, sums]) => [collective, ...sums]);
}

/** {wire, moves} of each wire with moves. */
export function marksOn(wires, moves) {
  return wires
    .filter((wire) => !wire.isRemoved)
    .map((wire) => ({ wire, moves: moves.on(wire.edges) }))
    .filter((mark) => mark.moves.length);
}

/** item -> the layout of what it puts out, for items whose wires all carry one layout. */
export function labelsOf(stage, wires) {
  const found = new Map();
  for (const { from, edges } of wires) {
    for (const edge of edges) {
      const tensor = stage.hasEdge[edge] ? stage.carried(edge) : null;
      if (tensor) found.set(from, found.has(from) && found.get(from) !== tensor.text ? "" : tensor.text);
    }
  }
  return new Map([...found].filter(([, text]) => isCut(text)));
}

/** Whether a mesh cuts the tensor with this text, as in `float32[8/dp, 10]` or `float32[]+{tp}`. */
function isCut(text) {
  return /[/+]/.test(text);
}

/**
 * On the last bend of a wire, where wires to one box are apart: in its middle, or, if it comes from above, below
 * the label that is at its beginning.
 */
export function placeOfMark({ points, course }) {
  const [[x1, y1], [x2, y2]] = points.slice(-2);
  if (course === "down") return [x1 + 0.784 * (x2 - x1), y1 + 0.658 * (y2 - y1)]; // its Bézier curve at 0.7
  return [(x1 + x2) / 2 + (course === "around" ? 0.75 * BULGE : 0), (y1 + y2) / 2];
}
