// Opens a file with Netron's own reader, as its page does, and prints what it found as JSON.
//
//     node netron_reader.mjs DIRECTORY_OF_NETRON FILE
import * as fs from 'node:fs';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , directory, file] = process.argv;
const load = (name) => import(pathToFileURL(path.join(directory, name)).href);
const base = await load('base.js');

globalThis.window ??= globalThis; // a page's globals that the reader asks for
const { ModelFactoryService } = await load('view.js');

const host = {
    environment: () => null,
    require: (id) => load(`${id.replace('./', '')}.js`),
    request: (name, encoding) => fs.readFileSync(path.join(directory, name), encoding),
    exception: (error) => { throw error; },
    event: () => undefined
};

const context = {
    identifier: path.basename(file),
    stream: new base.BinaryStream(new Uint8Array(fs.readFileSync(file))),
    entries: new Map(),
    host,
    environment: host.environment,
    require: host.require,
    request: host.request,
    error: (error) => { throw error; }
};

const model = await new ModelFactoryService(host).open(context);
const nodes = model.modules.flatMap((graph) => graph.nodes);
console.log(JSON.stringify({
    format: model.format,
    nodes: nodes.map((node) => ({
        name: node.name,
        type: node.type.name,
        device: node.device,
        inputs: node.inputs.flatMap((argument) => argument.value.map((value) => value.name)),
        outputs: node.outputs.flatMap((argument) => argument.value.map((value) => value.name))
    }))
}));
