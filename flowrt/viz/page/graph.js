// The graph as data: trees of items, and the stages of the compile over them. Nothing here depends on pixels.
//
//   Graph   texts and tensors, the trees, the stages in order
//   Tree    items (the graph itself is item 0, groups, operations) with their parents, layers and columns
//   Stage   the operations and edges that exist, and the changes from the previous stage
//
// An item is its number in its tree; a record is the data of an operation in a stage; an edge is a row of the
// tree's edges.

import { formatDevice } from "./format.js";
import { Training } from "./training.js";

export const ROOT = 0;
export const LAYOUTS = "layouts"; // the name of the stage that shows them

export class Graph {
  constructor(data) {
    this.title = data.title;
    this.opensAt = data.opensAt;
    this.strings = data.strings;
    this.attrs = data.attrs;
    this.tensors = data.tensors;
    this.edgeKinds = data.edgeKinds;
    this.secondsAre = data.facts.secondsAre;
    this.seconds = byName(data.facts.seconds, data.strings);
    this.codeRows = byName(data.facts.code, data.strings);
    this.unplanned = data.facts.unplanned;
    this.fused = byName(data.facts.fused, data.strings, data.strings);
    this.members = keysByValue(this.fused);
    const differentiated = byName(data.facts.training.derivatives, data.strings, data.strings);
    this.training = new Training(data.facts.training, data.strings, keysByValue(differentiated));
    this.trees = data.trees.map((tree) => new Tree(tree, data));
    this.stages = [];
    const latest = new Map();
    for (const stage of data.stages) {
      const tree = this.trees[stage.tree];
      const made = new Stage(this, tree, stage, this.stages.at(-1) ?? null, latest.get(tree) ?? null);
      latest.set(tree, made);
      this.stages.push(made);
    }
  }

  /** The text that runs the operation, or the reason why the step was not planned. */
  code(name) {
    const rows = this.codeRows.get(name);
    return rows ? rows.map((row) => this.strings[row]).join("\n") : this.unplanned;
  }
}

/** name -> value; with `texts` the values are rows of it. */
function byName([names, values], strings, texts = null) {
  return new Map(names.map((name, i) => [strings[name], texts ? texts[values[i]] : values[i]]));
}

/** value -> the keys that have it */
function keysByValue(map) {
  const found = new Map();
  for (const [key, value] of map) {
    if (found.has(value)) found.get(value).push(key);
    else found.set(value, [key]);
  }
  return found;
}

class Tree {
  constructor(data, page) {
    const { items, records, edges, routes } = data;
    this.size = items.parent.length;
    this.parent = Int32Array.from(items.parent);
    this.layer = Int32Array.from(items.layer);
    this.column = Float32Array.from(items.column, (steps) => steps / page.columnSteps);
    this.kind = items.kind.map((kind) => page.kinds[kind]);
    this.names = items.name.map((row) => page.strings[row]);
    this.labels = items.label.map((row, item) =>
      this.kind[item] === "device" ? formatDevice(page.strings[row]) : page.strings[row],
    );
    this.records = records;
    this.edges = { ...edges, source: Int32Array.from(edges.source), target: Int32Array.from(edges.target) };
    this.children = Array.from({ length: this.size }, () => []);
    this.depth = new Int32Array(this.size);
    this.operations = new Map();
    this.groups = new Map();
    for (let item = 1; item < this.size; item++) {
      this.children[this.parent[item]].push(item);
      (this.isOperation(item) ? this.operations : this.groups).set(this.names[item], item);
    }
    this.outerFirst = this.#outerFirst();
    for (const item of this.outerFirst) if (item) this.depth[item] = this.depth[this.parent[item]] + 1;
    this.role = new Int32Array(this.size);
    for (const item of this.outerFirst)
      if (item) this.role[item] = this.kind[item] === "role" ? item : this.role[this.parent[item]];
    this.routes = new Map();
    for (const [source, target, ...columns] of routes) {
      const route = { source, target, columns: columns.map((steps) => steps / page.columnSteps) };
      const known = this.routes.get(this.parent[source]);
      if (known) known.push(route);
      else this.routes.set(this.parent[source], [route]);
    }
  }

  #outerFirst() {
    const order = [ROOT];
    for (let at = 0; at < order.length; at++) order.push(...this.children[order[at]]);
    return order;
  }

  /** A stable id of an item across stages and page loads: its name, with a slash appended for a group. */
  idOf(item) {
    return this.isOperation(item) ? this.names[item] : `${this.names[item]}/`;
  }

  /** The item with this id, or null. A group is also found by its name alone if no operation has it. */
  itemOf(id) {
    const group = id.endsWith("/") ? id.slice(0, -1) : id;
    return this.operations.get(id) ?? this.groups.get(group) ?? null;
  }

  isOperation(item) {
    return this.kind[item] === "op";
  }

  /** Whether one of two items is of the model and the other is set apart from it. */
  isApart(a, b) {
    return (this.role[a] === ROOT) !== (this.role[b] === ROOT);
  }

  /** The groups around an item, the innermost first, without the graph itself. */
  *around(item) {
    for (let at = this.parent[item]; at !== ROOT; at = this.parent[at]) yield at;
  }

  /** Two items in one group: those that hold a and b (or are them). Equal if one holds the other. */
  siblings(a, b) {
    const { parent, depth } = this;
    while (depth[a] > depth[b]) a = parent[a];
    while (depth[b] > depth[a]) b = parent[b];
    while (parent[a] !== parent[b]) {
      a = parent[a];
      b = parent[b];
    }
    return [a, b];
  }

  pair(a, b) {
    return a * this.size + b;
  }
}

class Stage {
  constructor(graph, tree, data, previous, base) {
    this.graph = graph;
    this.tree = tree;
    this.name = data.name;
    this.note = data.note;
    this.isPass = data.isPass;
    this.previous = previous;
    this.index = previous ? previous.index + 1 : 0;
    this.record = base ? base.record.slice() : new Int32Array(tree.size).fill(-1);
    this.hasEdge = base ? base.hasEdge.slice() : new Uint8Array(tree.edges.source.length);
    const [dropped, added] = data.records;
    for (const row of dropped) this.record[tree.records.item[row]] = -1;
    for (const row of added) this.record[tree.records.item[row]] = row;
    for (const row of data.edges[0]) this.hasEdge[row] = 0;
    for (const row of data.edges[1]) this.hasEdge[row] = 1;
  }

  has(item) {
    return this.record[item] >= 0;
  }

  // --- the data of an operation

  op(item) {
    return this.#text("op", item);
  }

  device(item) {
    return this.#text("device", item);
  }

  source(item) {
    return this.#text("source", item);
  }

  #text(column, item) {
    const row = this.record[item];
    return row < 0 ? "" : this.graph.strings[this.tree.records[column][row]];
  }

  /** [name, value] of each attribute. */
  attrs(item) {
    const row = this.record[item];
    if (row < 0) return [];
    const texts = this.graph.attrs[this.tree.records.attrs[row]].map((text) => this.graph.strings[text]);
    return Array.from({ length: texts.length / 2 }, (_, i) => [texts[2 * i], texts[2 * i + 1]]);
  }

  /** {text, bytes} of each output; bytes are -1 if the shape does not determine them. */
  outputs(item) {
    const row = this.record[item];
    if (row < 0) return [];
    return this.tree.records.outputs[row].map((tensor) => this.tensor(tensor));
  }

  tensor(row) {
    const [text, bytes] = this.graph.tensors[row];
    return { text: this.graph.strings[text], bytes };
  }

  bytes(item) {
    const row = this.record[item];
    if (row < 0) return 0;
    return this.tree.records.outputs[row].reduce(
      (sum, tensor) => sum + Math.max(0, this.graph.tensors[tensor][1]),
      0,
    );
  }

  /** The tensor that an edge carries, or null: what its source puts out, or, of a pair, its target. */
  carried(edge) {
    const { source, target, index } = this.tree.edges;
    if (this.kindOf(edge) === "control") return null;
    return this.outputs(source[edge])[Math.max(0, index[edge])] ?? this.outputs(target[edge])[0] ?? null;
  }

  kindOf(edge) {
    return this.graph.edgeKinds[this.tree.edges.kind[edge]];
  }

  // --- edges

  get edges() {
    return this.#once("edges", () => rows(this.hasEdge));
  }

  get inputs() {
    return this.#once("inputs", () => new Adjacency(this.tree.size, this.edges, this.tree.edges.target));
  }

  get readers() {
    return this.#once("readers", () => new Adjacency(this.tree.size, this.edges, this.tree.edges.source));
  }

  // --- the items to show, with or without the operations that the stage removed ("ghosts")

  /** For each item how many operations it is or holds. */
  counts(withGhosts) {
    return this.#once(`counts ${withGhosts}`, () => {
      const { outerFirst, parent } = this.tree;
      const counts = new Int32Array(this.tree.size);
      for (let at = outerFirst.length - 1; at > 0; at--) {
        const item = outerFirst[at];
        if (this.has(item) || (withGhosts && this.changes.marks.get(item) === "removed")) counts[item]++;
        counts[parent[item]] += counts[item];
      }
      return counts;
    });
  }

  shownEdges(withGhosts) {
    return withGhosts && this.changes.edges.length ? [...this.edges, ...this.changes.edges] : this.edges;
  }

  /** The pairs of siblings that have an edge between them, or between what they hold. */
  links(withGhosts) {
    return this.#once(`links ${withGhosts}`, () => {
      const { source, target } = this.tree.edges;
      const found = new Set();
      for (const edge of this.shownEdges(withGhosts)) {
        const [a, b] = this.tree.siblings(source[edge], target[edge]);
        if (a !== b) found.add(this.tree.pair(a, b));
      }
      return found;
    });
  }

  /** {name, item} of each loss: see `Training`. */
  get losses() {
    return this.#once("losses", () => this.graph.training.lossesIn(this));
  }

  /** The variables that are updated in a group: {update, op, variable} each. */
  updates(group) {
    const { tree } = this;
    const all = this.#once("updates", () => this.graph.training.updatesIn(this));
    return group === ROOT ? all : all.filter(({ update }) => [...tree.around(update)].includes(group));
  }

  /** The names of the operations that one called `name` computes: of a compiled loop those in it, too. */
  computedBy(name) {
    const inside = this.graph.members.get(name) ?? [];
    const isHere = (member) => this.has(this.tree.operations.get(member) ?? -1);
    return [name, ...inside.filter((member) => member !== name && !isHere(member))];
  }

  /** The operations that compute the gradient of an item: see `Training`. */
  gradient(item) {
    return this.graph.training.gradientIn(this, item);
  }

  /** The changes from the previous stage: see `compare`. */
  get changes() {
    return this.#once("changes", () => compare(this));
  }

  #cache = new Map();

  #once(key, make) {
    if (!this.#cache.has(key)) this.#cache.set(key, make());
    return this.#cache.get(key);
  }
}

/**
 * marks: item -> "added" | "changed" | "removed"; added, changed, removed: their numbers; inside: for each
 * group the same of what is in it; edges: those that the stage removed; areAll: whether it changed every
 * operation, so that a mark tells nothing.
 */
function compare(stage) {
  const { previous, tree } = stage;
  const marks = new Map();
  const edges = [];
  if (previous && previous.tree === tree) {
    markRecords(stage, previous, marks);
    markEdges(stage, previous, marks, edges);
  } else if (previous) {
    for (const [name, item] of tree.operations) {
      const before = previous.tree.operations.get(name);
      if (stage.has(item) && (before === undefined || !previous.has(before))) marks.set(item, "added");
    }
  }
  const inside = new Map();
  for (const [item, mark] of marks) {
    for (const group of [...tree.around(item), ROOT]) {
      if (!inside.has(group)) inside.set(group, { added: 0, changed: 0, removed: 0 });
      inside.get(group)[mark]++;
    }
  }
  const numbers = inside.get(ROOT) ?? { added: 0, changed: 0, removed: 0 };
  return { marks, edges, inside, areAll: numbers.changed === stage.counts(false)[ROOT], ...numbers };
}

function markRecords(stage, previous, marks) {
  for (let item = 1; item < stage.tree.size; item++) {
    const [before, after] = [previous.record[item], stage.record[item]];
    if (before !== after) marks.set(item, before < 0 ? "added" : after < 0 ? "removed" : "changed");
  }
}

function markEdges(stage, previous, marks, edges) {
  const { source, target } = stage.tree.edges;
  for (let edge = 0; edge < source.length; edge++) {
    if (stage.hasEdge[edge] === previous.hasEdge[edge]) continue;
    if (!marks.has(target[edge])) marks.set(target[edge], "changed");
    if (previous.hasEdge[edge]) edges.push(edge);
  }
}

function rows(has) {
  const found = [];
  for (let row = 0; row < has.length; row++) if (has[row]) found.push(row);
  return found;
}

/** The edges at each item. */
class Adjacency {
  constructor(size, edges, end) {
    this.start = new Int32Array(size + 1);
    for (const edge of edges) this.start[end[edge] + 1]++;
    for (let item = 0; item < size; item++) this.start[item + 1] += this.start[item];
    this.list = new Int32Array(edges.length);
    const next = this.start.slice();
    for (const edge of edges) this.list[next[end[edge]]++] = edge;
  }

  at(item) {
    return this.list.subarray(this.start[item], this.start[item + 1]);
  }
}
