// Following tensors: from an operation or a group to the producers of its inputs and the consumers of its
// outputs.

export const REACHES = {
  near: "neighbours",
  up: "all inputs",
  down: "all consumers",
  both: "both directions",
};

/**
 * {items, edges}: the operations and edges (as sets) that are reached from `item`. `reach` is a key of
 * REACHES; with `output` (a number) only that tensor is followed, to its consumers.
 */
export function follow(stage, item, reach, output) {
  const found = { items: new Set(operations(stage, item)), edges: new Set() };
  const start = [...found.items];
  if (output !== null) readersOf(stage, item, output, found);
  else {
    const far = reach !== "near";
    if (reach !== "down") walk(stage, start, stage.inputs, stage.tree.edges.source, far, found);
    if (reach !== "up") walk(stage, start, stage.readers, stage.tree.edges.target, far, found);
  }
  return found;
}

/** The operations in a group, or the operation itself. */
export function* operations(stage, item) {
  if (stage.has(item)) yield item;
  for (const child of stage.tree.children[item]) yield* operations(stage, child);
}

function readersOf(stage, item, output, found) {
  const { target, index } = stage.tree.edges;
  for (const edge of stage.readers.at(item)) {
    if (index[edge] === output && stage.kindOf(edge) !== "control") {
      found.edges.add(edge);
      found.items.add(target[edge]);
    }
  }
}

function walk(stage, start, adjacency, end, far, found) {
  const seen = new Set(start);
  const pending = [...start];
  while (pending.length) {
    for (const edge of adjacency.at(pending.pop())) {
      found.edges.add(edge);
      const next = end[edge];
      found.items.add(next);
      if (far && !seen.has(next)) {
        seen.add(next);
        pending.push(next);
      }
    }
  }
}
