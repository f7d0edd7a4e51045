"""The page that shows a graph in a browser: small ES modules without a framework; data, not code.

    data (`flowrt.viz.page_data`) -> graph.js -> arrange.js, wires.js (detours.js) -> paint.js
    state.js holds the reader's choices; main.js passes them to all others

`flowrt.viz.html` joins them to one file.
"""
