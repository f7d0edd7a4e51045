"""The page that shows a graph in a browser: ES modules, one idea each, without a framework; data, not code.

    data (`flowrt.viz.page_data`) -> graph.js -> arrange.js, wires.js -> paint.js
    state.js holds what the reader has chosen; main.js carries it to all others

`flowrt.viz.html` joins them to one file.
"""
