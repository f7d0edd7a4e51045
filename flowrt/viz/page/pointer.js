// Mouse, pen and fingers on the graph: drag to pan, wheel or pinch to zoom, a click to select, a double one
// to open or close.

const CLICK = 4; // pixels that a hand may shake

export class Pointer {
  /** `on` has the functions select(x, y), toggle(x, y), point(x, y), pan(dx, dy) and zoom(factor, x, y). */
  constructor(canvas, on) {
    Object.assign(this, { canvas, on, pressed: new Map(), moved: 0 });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.pressed.delete(event.pointerId));
    canvas.addEventListener("dblclick", (event) => on.toggle(...this.#at(event)));
    canvas.addEventListener("pointerleave", () => on.point(null, null));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  #at(event) {
    const bounds = this.canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  }

  #down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed.set(event.pointerId, this.#at(event));
    this.moved = 0;
  }

  #move(event) {
    const [x, y] = this.#at(event);
    const before = this.pressed.get(event.pointerId);
    if (!before) return this.on.point(x, y);
    this.moved += Math.hypot(x - before[0], y - before[1]);
    const spread = this.#spread();
    this.pressed.set(event.pointerId, [x, y]);
    const share = 1 / this.pressed.size;
    this.on.pan((x - before[0]) * share, (y - before[1]) * share);
    if (spread) this.on.zoom(this.#spread() / spread, x, y);
  }

  /** Pixels between two fingers; 0 with one. */
  #spread() {
    if (this.pressed.size !== 2) return 0;
    const [[x1, y1], [x2, y2]] = this.pressed.values();
    return Math.hypot(x1 - x2, y1 - y2);
  }

  #up(event) {
    if (this.pressed.delete(event.pointerId) && this.moved <= CLICK) this.on.select(...this.#at(event));
  }

  #wheel(event) {
    event.preventDefault();
    const [x, y] = this.#at(event);
    const pixels = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? event.deltaY * 16 : event.deltaY;
    this.on.zoom(Math.exp(-Math.max(-240, Math.min(240, pixels)) / 400), x, y);
  }
}
