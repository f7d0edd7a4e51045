// Human-readable numbers.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function formatBytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < BYTES.length - 1) {
    count /= 1024;
    unit++;
  }
  return `${threeDigits(count)} ${BYTES[unit]}`;
}

export function formatSeconds(seconds) {
  if (seconds >= 1) return `${threeDigits(seconds)} s`;
  if (seconds >= 1e-3) return `${threeDigits(seconds * 1e3)} ms`;
  return `${threeDigits(seconds * 1e6)} µs`;
}

export function formatCount(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** A device of this process by type and number only; other devices without the constant parts of the name. */
export function formatDevice(name) {
  return name
    .replace(/^\/job:localhost\/replica:0\/task:0\/device:/, "")
    .replace("/replica:0", "")
    .replace("/device:", "/");
}

function threeDigits(value) {
  return value >= 100 || Number.isInteger(value)
    ? value.toFixed(0)
    : value.toPrecision(3).replace(/\.?0+$/, "");
}
