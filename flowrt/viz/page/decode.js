// The data of the page: JSON, compressed with gzip, as base64. So no text in it can end the element it is in.

export async function decode(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
