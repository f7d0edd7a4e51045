// What the reader has chosen, and who wants to know. Everything on the screen follows from it.
//
//   stage     number of the stage           selected  id of an operation or group, or ""
//   colour    key of MODES                  reach     key of REACHES; output: number of a tensor, or null
//   ghosts    whether removed ones show     onlyClass class of the legend that alone has colour, or null
//   open      for each tree the names of its open groups

export class State {
  #listeners = [];

  constructor(values) {
    Object.assign(this, values);
  }

  /** `react(changed)` is called after each change with the names of what was changed, as a set. */
  onChange(react) {
    this.#listeners.push(react);
  }

  change(values) {
    const changed = new Set(Object.keys(values).filter((name) => this[name] !== values[name]));
    if (!changed.size) return;
    Object.assign(this, values);
    for (const react of this.#listeners) react(changed);
  }
}
