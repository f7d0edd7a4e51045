// What the graph trains, as a stage has it: its losses, and the variables that the optimizer updates.

export class Training {
  constructor({ losses, updates }, strings) {
    this.losses = losses.map((row) => strings[row]);
    this.updates = updates.map((rows) => rows.map((row) => strings[row]));
  }

  /** {name, item} of each loss; the item is null in a step that runs only the gradients of it. */
  lossesIn(stage) {
    return this.losses.map((name) => ({ name, item: shownAs(stage, name) }));
  }

  /** {update, op, variable} for each variable that is updated. */
  updatesIn(stage) {
    const found = this.updates.map(([operation, op, variable]) => ({
      update: shownAs(stage, operation),
      op,
      variable: stage.tree.operations.get(variable),
    }));
    return found.filter(({ update, variable }) => update !== null && variable !== undefined);
  }
}

/** The operation called `name`, or the compiled loop that it is in; null if the stage has neither. */
function shownAs(stage, name) {
  const names = [name, stage.graph.fused.get(name) ?? ""];
  return names.map((each) => stage.tree.operations.get(each) ?? -1).find((item) => stage.has(item)) ?? null;
}
