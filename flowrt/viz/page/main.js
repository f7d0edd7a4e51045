// The page: turns the state (state.js) into the picture, and user input into state changes.

import { arrange } from "./arrange.js";
import { colouring, modeShown } from "./colour.js";
import { Details } from "./details.js";
import { byId } from "./dom.js";
import { savePng, saveSvg } from "./download.js";
import { follow } from "./follow.js";
import { formatCount } from "./format.js";
import { Graph } from "./graph.js";
import { boxBeside, listenToKeys } from "./keyboard.js";
import { Legend } from "./legend.js";
import { allOpen, firstOpen, openedTo, toggled } from "./opening.js";
import { Overview } from "./overview.js";
import { paint } from "./paint.js";
import { Pointer } from "./pointer.js";
import { SearchField } from "./search.js";
import { StageBar } from "./stagebar.js";
import { readAddress, State, writeAddress } from "./state.js";
import { onThemeChange, readTheme } from "./theme.js";
import { describe, showTip } from "./tip.js";
import { Viewport } from "./viewport.js";
import { bundle } from "./wires.js";

const LEGIBLE = 0.5; // scale below which a picture is not shown whole at first
const READABLE_AT_ONCE = 0.72; // scale at which groups are opened at first: texts of 9 pixels
const READABLE_SCALE = 0.8; // minimum scale for inspecting an item

class Page {
  constructor(graph) {
    this.graph = graph;
    this.canvas = byId("graph");
    this.viewport = new Viewport();
    this.theme = readTheme();
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    this.viewport.resize(clientWidth, clientHeight);
    const fits = (picture) => this.viewport.scaleFor(picture) >= READABLE_AT_ONCE;
    const open = new Map(
      graph.trees.map((tree) => [
        tree,
        firstOpen(
          graph.stages.filter((stage) => stage.tree === tree),
          fits,
        ),
      ]),
    );
    this.state = new State({
      stage: graph.opensAt,
      selected: "",
      colour: null,
      reach: "near",
      output: null,
      ghosts: true,
      onlyClass: null,
      open,
    });
    this.stagebar = new StageBar(graph, (index) => this.showStage(index));
    this.legend = new Legend(graph, this.state);
    this.details = new Details(this.state, {
      go: (item) => this.goTo(item),
      toggle: (item) => this.toggle(item),
    });
    this.search = new SearchField(
      () => this.stage,
      (item) => this.goTo(item),
    );
    this.overview = new Overview(this.viewport, () => this.redraw());
    this.state.onChange((changed) => this.#react(changed));
    this.#listen();
  }

  get stage() {
    return this.graph.stages[this.state.stage];
  }

  /** The selected item in the tree of this stage, or null. */
  get selected() {
    return this.stage.tree.itemOf(this.state.selected);
  }

  start() {
    document.title = `${this.graph.title} · flowrt`;
    byId("title").textContent = this.graph.title;
    this.#resize();
    Object.assign(this.state, readAddress(this.graph));
    this.colours = colouring(modeShown(this.state, this.stage), this.stage);
    this.#arrange();
    this.#uncover();
    this.#fit(LEGIBLE);
    this.isUntouched = true; // nobody has moved it: it is fitted again to another window
    if (this.selected !== null) this.#reveal(this.selected);
    new ResizeObserver(() => this.#resize()).observe(this.canvas.parentElement);
  }

  #listen() {
    this.pointer = new Pointer(this.canvas, {
      select: (x, y) => this.select(this.itemAt(x, y)),
      toggle: (x, y) => this.toggle(this.itemAt(x, y)),
      point: (x, y) => showTip(this, x === null ? null : this.itemAt(x, y), x, y),
      pan: (dx, dy) => this.#move(() => this.viewport.pan(dx, dy)),
      zoom: (factor, x, y) => this.zoom(factor, x, y),
    });
    listenToKeys(this);
    onThemeChange(() => {
      this.theme = readTheme();
      this.overview.draw(this.picture, this.theme);
      this.redraw();
    });
    addEventListener("hashchange", () => {
      this.state.change(readAddress(this.graph));
      if (this.selected !== null) this.goTo(this.selected);
    });
    byId("zoom-in").addEventListener("click", () => this.zoom(1.3));
    byId("zoom-out").addEventListener("click", () => this.zoom(1 / 1.3));
    byId("fit").addEventListener("click", () => this.fit());
    byId("open-all").addEventListener("click", () => this.#setOpen(allOpen(this.stage.tree), true));
    byId("save-svg").addEventListener("click", () => saveSvg(this.scene, this.fileName));
    byId("save-png").addEventListener("click", () => savePng(this.scene, this.fileName));
    byId("close-all").addEventListener("click", () => this.#setOpen(new Set(), true));
  }

  // --- user actions

  showStage(index) {
    if (index >= 0 && index < this.graph.stages.length)
      this.state.change({ stage: index, output: null, onlyClass: null });
  }

  select(item) {
    this.state.change({ selected: item === null ? "" : this.stage.tree.idOf(item), output: null });
  }

  clear() {
    this.state.change({ selected: "", output: null, onlyClass: null });
  }

  /** Open or close a group; it stays where it is on the screen. */
  toggle(item) {
    const { tree } = this.stage;
    if (item === null || tree.isOperation(item)) return;
    this.#setOpen(toggled(tree, this.state.open.get(tree), item), false, item);
  }

  toggleSelected() {
    this.toggle(this.selected);
  }

  /** Select an item and bring it into sight, with the groups around it open. */
  goTo(item) {
    this.select(item);
    this.#uncover();
    this.#reveal(item);
  }

  step(direction) {
    const next = boxBeside(this.picture, this.wires, this.picture.standsIn[this.selected ?? 0], direction);
    if (next === null) return;
    this.select(next);
    this.#reveal(next);
  }

  zoom(factor, x, y) {
    this.#move(() => this.viewport.zoom(factor, x, y));
  }

  fit(leastScale = 0) {
    this.#move(() => this.#fit(leastScale));
  }

  #fit(leastScale) {
    this.viewport.fitReadable(
      { x: 0, y: 0, width: this.picture.width, height: this.picture.height },
      leastScale,
    );
  }

  /** The innermost item at a point of the canvas, or null. */
  itemAt(x, y) {
    const [px, py] = this.viewport.toPicture(x, y);
    const isAt = (box) => px >= box.x && py >= box.y && px <= box.x + box.width && py <= box.y + box.height;
    return this.picture.order.findLast(isAt)?.item ?? null;
  }

  /** Where an item is on the canvas, or null while it is in a closed group: [left, top, width, height]. */
  placeOf(item) {
    const box = this.picture.boxes.get(item);
    if (!box) return null;
    const { scale } = this.viewport;
    return [...this.viewport.toScreen(box.x, box.y), box.width * scale, box.height * scale];
  }

  // --- reactions to state changes

  #react(changed) {
    if (changed.has("stage") || changed.has("colour"))
      this.colours = colouring(modeShown(this.state, this.stage), this.stage);
    if (changed.has("stage")) this.#uncover();
    const tree = this.picture.stage.tree;
    if (["stage", "open", "ghosts"].some((name) => changed.has(name))) this.#arrange();
    else this.#show();
    if (this.stage.tree !== tree) {
      this.fit(LEGIBLE);
      if (this.selected !== null) this.#reveal(this.selected);
    }
    if (changed.has("stage") || changed.has("selected")) this.#speak();
    writeAddress(this.graph, this.state);
  }

  #arrange() {
    const { tree } = this.stage;
    const open = new Set([...this.state.open.get(tree)].map((name) => tree.groups.get(name)));
    this.picture = arrange(this.stage, open, this.state.ghosts);
    this.wires = bundle(this.picture, this.state.ghosts);
    this.changes = this.stage.changes;
    this.overview.draw(this.picture, this.theme);
    this.#show();
  }

  /** Update everything but the arrangement. */
  #show() {
    const { stage, state, selected } = this;
    this.followed = selected === null ? null : this.#follow(selected);
    this.stagebar.show(state.stage);
    this.legend.show(this.colours, stage);
    this.details.show(
      stage,
      selected,
      selected !== null && Boolean(this.picture.boxes.get(selected)?.isOpen),
    );
    this.redraw();
  }

  #follow(item) {
    const found = follow(this.stage, item, this.state.reach, this.state.output);
    const boxes = new Set([item]);
    for (const reached of found.items) boxes.add(this.picture.standsIn[reached]);
    return { ...found, boxes };
  }

  #setOpen(names, isAll, anchor = null) {
    const { tree } = this.stage;
    const before = anchor === null ? null : this.placeOf(anchor);
    this.state.change({ open: new Map(this.state.open).set(tree, names) });
    const after = before && this.placeOf(anchor);
    if (after)
      this.#move(() =>
        this.viewport.pan(before[0] + before[2] / 2 - after[0] - after[2] / 2, before[1] - after[1]),
      );
    if (isAll) this.fit();
  }

  /** Open the groups around the selected item. */
  #uncover() {
    const { tree } = this.stage;
    if (this.selected === null) return;
    const open = this.state.open.get(tree);
    const opened = openedTo(tree, open, this.selected);
    if (opened.size > open.size) this.state.change({ open: new Map(this.state.open).set(tree, opened) });
  }

  #reveal(item) {
    const box = this.picture.boxes.get(item);
    if (!box) return;
    this.#move(() => {
      if (this.viewport.scale < READABLE_SCALE) this.viewport.zoom(1 / this.viewport.scale);
      this.viewport.reveal(box);
    });
  }

  #move(change) {
    this.isUntouched = false;
    change();
    this.redraw();
  }

  /** What is painted: see paint.js. */
  get scene() {
    const { picture, wires, viewport, theme, colours, changes, selected, followed } = this;
    const { onlyClass } = this.state;
    return { picture, wires, viewport, theme, colours, changes, selected, followed, onlyClass };
  }

  /** The name of a saved picture, without its ending. */
  get fileName() {
    return `${this.stage.name}, ${this.graph.title}`.replace(/[^\w.,-]+/g, "_").slice(0, 80);
  }

  /** Paint in the next frame, once, however often this is called. */
  redraw() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      paint(this.canvas.getContext("2d", { alpha: false }), this.scene);
      this.overview.frame();
      this.canvas.dispatchEvent(new Event("painted"));
    });
  }

  #resize() {
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    this.viewport.resize(clientWidth, clientHeight);
    this.canvas.width = clientWidth * devicePixelRatio;
    this.canvas.height = clientHeight * devicePixelRatio;
    if (this.isUntouched) this.#fit(LEGIBLE);
    if (this.picture) this.redraw();
  }

  /** For screen readers. */
  #speak() {
    const { stage, selected } = this;
    byId("spoken").textContent =
      selected === null
        ? `Stage ${stage.name}, ${formatCount(stage.counts(false)[0], "operation")}`
        : describe(this.picture, selected);
  }
}

/** The data of the page: JSON, compressed with gzip, as base64: no text in it can end its element. */
async function decode(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const page = new Page(new Graph(await decode(byId("data").textContent)));
page.start();
window.flowrtPage = page; // for the console
