// The overview: the whole picture in a corner, with a frame around the visible part. Drag to move it.

import { byId } from "./dom.js";

const SIZE = { width: 182, height: 140 };

export class Overview {
  constructor(viewport, redraw) {
    this.canvas = byId("overview");
    this.viewport = viewport;
    this.redraw = redraw;
    const move = (event) => event.buttons && this.#goTo(event);
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.#goTo(event);
    });
    this.canvas.addEventListener("pointermove", move);
  }

  #goTo(event) {
    const bounds = this.canvas.getBoundingClientRect();
    this.viewport.center(
      (event.clientX - bounds.left) / this.scale,
      (event.clientY - bounds.top) / this.scale,
    );
    this.redraw();
  }

  /** Redraw the boxes; afterwards each move needs only `frame`. */
  draw(picture, theme) {
    this.scale = Math.min(SIZE.width / picture.width, SIZE.height / picture.height);
    const [width, height] = [picture.width * this.scale, picture.height * this.scale].map((size) =>
      Math.max(16, Math.round(size)),
    );
    this.canvas.width = width * devicePixelRatio;
    this.canvas.height = height * devicePixelRatio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.theme = theme;
    this.image = new OffscreenCanvas(this.canvas.width, this.canvas.height);
    const context = this.image.getContext("2d");
    const scale = this.scale * devicePixelRatio;
    context.scale(scale, scale);
    const least = 1.2 / this.scale; // keeps small boxes visible
    for (const box of picture.order) {
      context.fillStyle = box.isOpen ? theme.group : theme.muted;
      context.globalAlpha = box.isOpen ? 0.9 : 0.55;
      context.fillRect(box.x, box.y, Math.max(least, box.width), Math.max(least, box.height));
    }
  }

  frame() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.image, 0, 0);
    const scale = this.scale * devicePixelRatio;
    const [left, top, right, bottom] = this.viewport.seen.map((value) => value * scale);
    context.lineWidth = 1.5 * devicePixelRatio;
    context.strokeStyle = this.theme.accent;
    const clamp = (value, most) => Math.max(1, Math.min(most - 1, value));
    const [x1, y1] = [clamp(left, this.canvas.width), clamp(top, this.canvas.height)];
    const [x2, y2] = [clamp(right, this.canvas.width), clamp(bottom, this.canvas.height)];
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
  }
}
