"""The HTML page in a real browser: Debian's Chromium, without a screen."""

import json
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.viz.export import export
from flowrt.viz.html import page as html_page
from flowrt.viz.page_data import PageStage, page_data
from flowrt.viz.stages import stages
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, NodeView
from tests.viz.browser import chromium, find_chromium
from tests.viz.graphs import network, two_devices_session
from tests.viz.test_html import EVIL

pytest.importorskip("igraph", reason="igraph is not installed: pip install 'flowrt[viz]'")
pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium here; on Debian: apt-get install chromium"
)

MATMUL = "layer_1/MatMul"
SERIES = "layer[0..3]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(path, stages) of the page of a training step on two devices."""
    graph, _, loss, train = network()
    path = tmp_path_factory.mktemp("page") / "network.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWRT_JIT", "background")
        with two_devices_session(graph) as session:
            export(session, path, fetches=[train, loss])
            return path, stages(session, [train, loss])


@pytest.fixture
def page(browser, written):
    opened = browser.open(written[0])
    yield opened
    assert opened.errors == []
    assert opened.requests == [written[0].resolve().as_uri()]
    opened.close()


# --- what a reader's hands do, at the places where things are drawn


def item(name):
    """JavaScript: the item called ``name`` in the stage that is shown."""
    return f"flowrtPage.stage.tree.itemOf({json.dumps(name)})"


def is_shown(page, name):
    return page.evaluate(f"flowrtPage.placeOf({item(name)}) !== null")


def place(page, name):
    """The middle of a box on the screen; of an open group its title."""
    return page.evaluate(f"""(() => {{
        const [left, top, width, height] = flowrtPage.placeOf({item(name)});
        const field = flowrtPage.canvas.getBoundingClientRect();
        const isOpen = flowrtPage.picture.boxes.get({item(name)}).isOpen;
        return [field.x + left + width / 2, field.y + top + (isOpen ? 6 : height / 2)];
    }})()""")


def click(page, name, count=1):
    page.click(*place(page, name), count=count)


def tab(page, name):
    number = page.evaluate(f"flowrtPage.graph.stages.findIndex((s) => s.name === {json.dumps(name)})")
    page.click_on(f"[role=tab]:nth-of-type({number + 1})")


def colour_of(page, name):
    """The colour of a box, just inside its left side."""
    return page.evaluate(f"""(() => {{
        const [left, top, width, height] = flowrtPage.placeOf({item(name)});
        const at = [left + 6, top + height / 2].map((value) => Math.round(value * devicePixelRatio));
        return [...flowrtPage.canvas.getContext("2d").getImageData(...at, 1, 1).data].slice(0, 3);
    }})()""")


def flag_colour(page, name):
    """The colour above the right corner of a box, "#rrggbb"."""
    return page.evaluate(f"""(() => {{
        const [left, top, width] = flowrtPage.placeOf({item(name)});
        const at = [left + width - 4, top - 6].map((value) => Math.round(value * devicePixelRatio));
        const colour = flowrtPage.canvas.getContext("2d").getImageData(...at, 1, 1).data;
        return "#" + [...colour].slice(0, 3).map((part) => part.toString(16).padStart(2, "0")).join("");
    }})()""")


# --- the tests


def test_a_double_click_opens_a_series_and_its_scopes_and_closes_them(page):
    assert not is_shown(page, "layer_1")
    click(page, SERIES, count=2)
    page.wait_for(f"flowrtPage.placeOf({item('layer_1')}) !== null")
    click(page, "layer_1", count=2)
    page.wait_for(f"flowrtPage.placeOf({item(MATMUL)}) !== null")
    click(page, SERIES, count=2)
    page.wait_for(f"flowrtPage.placeOf({item('layer_1')}) === null")


def test_what_is_opened_stays_under_the_pointer(page):
    before = page.evaluate(f"flowrtPage.placeOf({item(SERIES)})")
    click(page, SERIES, count=2)
    page.wait_for(f"flowrtPage.placeOf({item('layer_1')}) !== null")
    after = page.evaluate(f"flowrtPage.placeOf({item(SERIES)})")
    assert after[1] == pytest.approx(before[1], abs=1)
    assert after[0] + after[2] / 2 == pytest.approx(before[0] + before[2] / 2, abs=1)


def test_roles_are_beside_the_model_and_their_edges_shown_on_request(page):
    left, _, width, _ = page.evaluate(f"flowrtPage.placeOf({item(SERIES)})")
    assert page.evaluate(f"flowrtPage.placeOf({item('[gradients]/')})")[0] > left + width
    ends = f"w.from === {item(SERIES)} && w.to === {item('[gradients]/')}"
    wire = f"flowrtPage.wires.find((w) => {ends})"
    shown = f"[{wire}.isApart, Boolean(flowrtPage.followed)]"
    assert page.evaluate(shown) == [True, False]
    before = page.evaluate("flowrtPage.canvas.toDataURL()")
    click(page, "[gradients]/")
    page.painted()
    assert page.evaluate(shown) == [True, True]
    assert page.evaluate("flowrtPage.canvas.toDataURL()") != before


def test_the_loss_the_updates_and_the_largest_tensor_are_told_at_first_sight_in_every_stage(page):
    stages = page.evaluate("flowrtPage.graph.stages.length")
    for stage in range(stages):
        page.evaluate(f"flowrtPage.showStage({stage})")
        told = page.text_of("#details")
        is_fused = page.evaluate(f"flowrtPage.stage.losses[0].item !== {item('loss')}")
        assert "LOSS\nloss\n" + ("in gradients/" if is_fused else "float32[], 4 B\n") in told
        largest = told.partition("LARGEST TENSOR\n")[2].splitlines()[:2]
        assert largest[0] in ("large", "gradients/MatMul_grad/MatMul_1")
        assert largest[1] == "float32[16, 32], 2 KiB"
        assert "ResourceApplyGradientDescent updates 4 variables\nlayer_0/w\nlayer_1/w" in told
        boxes = "flowrtPage.stage.losses.map(({item}) => flowrtPage.picture.standsIn[item])"
        assert page.evaluate(f"{boxes}.every((item) => flowrtPage.placeOf(item))")
    tab(page, "built")
    assert flag_colour(page, "loss") == page.evaluate("flowrtPage.theme.accent")
    click(page, "[optimizer]/")
    assert "updates 4 variables" in page.text_of("#details")


def test_a_step_without_its_loss_says_so(browser, tmp_path):
    graph, _, _, train = network()
    with two_devices_session(graph) as session:
        export(session, tmp_path / "g.html", view="placed", fetches=[train])
    page = browser.open(tmp_path / "g.html")
    assert "LOSS\nloss\nThis step runs only its gradients." in page.text_of("#details")
    page.close()


def test_the_first_sight_of_every_stage_is_whole_and_has_texts(page):
    for stage in range(page.evaluate("flowrtPage.graph.stages.length")):
        page.evaluate(f"flowrtPage.showStage({stage})")
        width, height, scale = page.evaluate(
            "[flowrtPage.picture.width, flowrtPage.picture.height, flowrtPage.viewport.scale]"
        )
        assert scale >= 0.5
        assert width * scale <= page.evaluate("flowrtPage.viewport.width")
        assert height * scale <= page.evaluate("flowrtPage.viewport.height")


def test_a_picture_is_fitted_to_another_window_until_somebody_moves_it(page):
    scale = "flowrtPage.viewport.scale"
    page.resize(760, 400)
    page.wait_for("flowrtPage.viewport.height < 400")
    small = page.evaluate(scale)
    page.resize(1440, 900)
    page.wait_for("flowrtPage.viewport.height > 600")
    fitted = page.evaluate(scale)
    assert fitted == page.evaluate("flowrtPage.viewport.scaleFor(flowrtPage.picture)")
    assert fitted > small
    page.evaluate("flowrtPage.zoom(2)")
    page.resize(760, 400)
    page.wait_for("flowrtPage.viewport.height < 400")
    assert page.evaluate(scale) == fitted * 2


def test_a_network_in_one_scope_is_open_at_first_and_what_is_around_it_closed(browser, tmp_path):
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [2], name="x")
        with tf.name_scope("network"):
            for layer, operations in enumerate([5, 3, 6, 2, 4, 7], start=ord("a")):
                with tf.name_scope(chr(layer)):
                    for _ in range(operations):
                        x = tf.sin(x)
        for after in ("scale", "clip", "loss", "mean"):
            with tf.name_scope(after):
                x = tf.tanh(tf.exp(x))
    opened = browser.open(Path(export(graph, tmp_path / "network.html")))
    assert is_shown(opened, "network/a")
    assert not is_shown(opened, "loss/Tanh")
    opened.close()


def test_letters_do_what_brackets_and_the_slash_do(page):
    first = page.evaluate("flowrtPage.state.stage")
    page.press("n")
    assert page.evaluate("flowrtPage.state.stage") == first + 1
    page.ask("Input.dispatchKeyEvent", type="keyDown", key="з", code="KeyP")  # a Russian keyboard's
    page.painted()
    assert page.evaluate("flowrtPage.state.stage") == first
    page.press("s")
    assert page.evaluate("document.activeElement.id") == "query"


def test_a_stage_says_what_it_changed(page):
    tab(page, "placed")
    page.wait_for("flowrtPage.stage.name === 'placed'")
    said = page.text_of("#details")
    assert "CHANGED: DEVICE" in said
    assert "→ CPU:1" in said


def test_the_picture_is_saved_as_svg_and_as_png(page, browser, tmp_path):
    browser.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for kind in ("svg", "png"):
        page.click_on(f"#save-{kind}")
    deadline = time.monotonic() + 30
    while sorted(path.suffix for path in tmp_path.iterdir()) != [".png", ".svg"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    svg, png = (next(tmp_path.glob(f"*.{kind}")) for kind in ("svg", "png"))
    texts = [element.text for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"x", "layer × 4", "Gradients", "Optimizer"} <= set(texts)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_two_graphs_are_compared(browser, tmp_path):
    earlier, *_ = network()
    with earlier.as_default():
        tf.identity(tf.placeholder(tf.float32, [6, 24], "size"), "resized")
    tf.train.write_graph(earlier, str(tmp_path), "earlier.pb", as_text=False)
    graph, *_ = network()
    with graph.as_default():
        tf.exp(graph.get_tensor_by_name("loss:0"), name="new")
        tf.identity(tf.placeholder(tf.float32, [6, 30], "size"), "resized")
    export(graph, tmp_path / "compared.html", against=tmp_path / "earlier.pb")
    opened = browser.open(tmp_path / "compared.html")  # at what has changed
    assert opened.text_of("h1") == "graph, compared with earlier.pb"
    counts = opened.evaluate("['added', 'removed', 'changed'].map((kind) => flowrtPage.changes[kind])")
    assert counts == [1, 0, 2]
    told = opened.evaluate("[...document.querySelectorAll('#details .what')].map((what) => what.textContent)")
    assert "float32[6, 24] → float32[6, 30]" in told
    opened.close()


def test_search_finds_opens_and_selects(page):
    page.press("/")
    page.type("layer_1 matmul")
    page.wait_for("document.querySelectorAll('#results [role=option]').length > 0")
    assert page.text_of("#results [role=option]").startswith(MATMUL)
    page.press("Enter")
    page.wait_for(f"flowrtPage.placeOf({item(MATMUL)}) !== null")
    assert page.text_of("#details h2") == "MatMul"
    assert page.evaluate("document.activeElement.id") == "graph"
    assert page.text_of("#spoken").startswith(MATMUL)


def test_the_page_opens_at_the_stage_of_its_view(browser, tmp_path):
    graph, _, loss, _ = network()
    opened = browser.open(Path(export(graph, tmp_path / "placed.html", view="placed", fetches=loss)))
    assert opened.evaluate("flowrtPage.stage.name") == "placed"
    assert opened.evaluate("document.querySelector('[aria-selected=true] .name').innerText") == "placed"
    assert opened.errors == []
    opened.close()


def test_a_word_that_nothing_has_is_searched_for_in_its_parts(page):
    page.press("s")
    page.type("layer_1_matmul_grad")
    found = page.evaluate(
        "[...document.querySelectorAll('#results .name')].map((n) => n.textContent.toLowerCase())"
    )
    assert found
    assert all(word in name for name in found for word in ("layer", "1", "matmul", "grad"))


def test_search_says_when_there_is_nothing(page):
    page.click_on("#query")
    page.type("no such thing")
    page.wait_for("!document.getElementById('results').hidden")
    assert "Nothing" in page.text_of("#results")


def test_a_click_shows_what_is_known_of_an_operation(page):
    tab(page, "scheduled")
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.evaluate("flowrtPage.clear()")
    page.painted()
    click(page, MATMUL)
    text = page.text_of("#details")
    assert "CPU:1" in text  # its device
    assert "float32[8, 16]" in text  # its output
    assert "graphs.py:19" in text  # the user's line
    assert "transpose_a" in text  # an attribute
    assert "= MatMul(" in page.text_of("#details pre")  # the program


def test_a_layer_shows_what_its_gradient_reads(page):
    click(page, SERIES, count=2)
    page.wait_for(f"flowrtPage.placeOf({item('layer_1')}) !== null")
    click(page, "layer_1")
    said = page.text_of("#details")
    told = said[said.index("GRADIENT: ") : said.index("TYPES")]
    assert "MatMul_grad" in told
    assert "layer_0" in told  # the activations, by which the weights' gradient is multiplied
    assert "layer_2" in told  # from which the gradient comes
    page.click_on("#details section:has(.note) .tensor .link")
    assert "grad" in page.text_of("#details h2").lower() + page.text_of("#details .full").lower()


def test_a_compiled_loop_shows_the_gradient_of_all_that_is_in_it(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default():
        x, w = tf.placeholder("float32", [50, 40]), tf.Variable(tf.ones([40, 40]))
        a = tf.sin(tf.matmul(x, w), name="a")
        b = tf.multiply(a, 2.0, name="b")
        slope = tf.gradients(tf.reduce_sum(tf.matmul(b, w)) + tf.reduce_sum(tf.matmul(a, w)), w)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            tf.viz.export(session, tmp_path / "page.html", fetches=slope, feed_dict={x: np.ones([50, 40])})
    opened = browser.open(tmp_path / "page.html")
    told = opened.evaluate("""(() => {
        const stage = flowrtPage.graph.stages.find((stage) => stage.name === "fuse");
        const loop = stage.tree.operations.get(flowrtPage.graph.fused.get("b"));
        return [stage.tree.names[loop], stage.gradient(loop).map((item) => stage.tree.names[item])];
    })()""")
    assert told[0] != "a"  # which is in it
    assert any("a_grad" in name for name in told[1]), told


def test_each_stage_shows_its_operations_and_what_it_changed(page, written):
    for stage in written[1]:
        number = written[1].index(stage)
        page.click_on(f"[role=tab]:nth-of-type({number + 1})")
        page.wait_for(f"flowrtPage.state.stage === {number}")
        shown = page.evaluate("flowrtPage.stage.counts(false)[0]")
        assert shown == sum(len(part) for part in stage.parts.values())
        added, removed, changed = page.evaluate(
            "(({added, removed, changed}) => [added, removed, changed])(flowrtPage.stage.changes)"
        )
        assert (added, removed) == (len(stage.change.added), len(stage.change.removed)), stage.name
        assert changed >= 0
        assert page.evaluate("document.querySelector('[aria-selected=true] .name').innerText") in (
            stage.phase,
            stage.name.replace("_", " "),
        )


def test_an_operation_that_a_pass_removes_is_marked_and_can_be_hidden(page, written):
    stage = next(stage for stage in written[1] if stage.phase == "pruned")
    removed = next(name for name in stage.change.removed if name.startswith("layer_0/"))
    page.click_on(f"[role=tab]:nth-of-type({written[1].index(stage) + 1})")
    page.evaluate(f"flowrtPage.goTo({item(removed)})")
    page.painted()
    assert is_shown(page, removed)
    assert page.text_of("#details .chip.removed") == "removed"
    page.click_on("#ghosts")
    page.wait_for(f"flowrtPage.placeOf({item(removed)}) === null")


def test_what_a_pass_changed_of_an_operation_is_told(page):
    tab(page, "placed")
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.painted()
    assert page.text_of(".difference ins") == "CPU:1"


def test_a_tensor_is_followed_near_and_far(page):
    tab(page, "placed")
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    followed = "[...flowrtPage.followed.items].map((item) => flowrtPage.stage.tree.names[item])"
    near = page.evaluate(followed)
    assert "layer_1/out" in near
    assert "layer_3/MatMul" not in near
    page.click_on("#graph")  # keys go to the graph, wherever it is clicked
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.click_on("#details .choice button:nth-child(2)")
    up = page.evaluate(followed)
    assert "layer_0/MatMul" in up
    assert "layer_2/MatMul" not in up
    page.click_on("#details .choice button:nth-child(3)")
    down = page.evaluate(followed)
    assert "layer_3/MatMul" in down
    assert "layer_0/MatMul" not in down
    page.click_on("#details .follow")
    assert MATMUL in page.evaluate(followed)
    assert "layer_0/out" not in page.evaluate(followed)
    assert "layer_1/out" in page.evaluate(followed)


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_colours_follow_the_mode_and_the_legend_tells_them(page):
    tab(page, "placed")
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.evaluate("flowrtPage.clear()")
    seen = {}
    for mode in page.evaluate("[...document.querySelectorAll('#colour option')].map((o) => o.value)"):
        page.evaluate(f"""(() => {{
            const select = document.getElementById("colour");
            select.value = {json.dumps(mode)};
            select.dispatchEvent(new Event("change"));
        }})()""")
        page.painted()
        seen[mode] = (colour_of(page, MATMUL), page.text_of("#legend"))
    assert set(seen) == {"type", "device", "fusion", "time", "memory"}
    assert "MatMul" in seen["type"][1]
    assert "CPU:1" in seen["device"][1]
    assert "total" in seen["time"][1]
    assert "KiB" in seen["memory"][1]
    assert len({tuple(colour) for colour, _ in seen.values()}) >= 3


def test_colours_are_devices_where_operations_have_several_until_one_is_chosen(page):
    shown = "[document.getElementById('colour').value, document.getElementById('legend').innerText]"
    assert page.evaluate(shown)[0] == "type"
    tab(page, "placed")
    mode, legend = page.evaluate(shown)
    assert mode == "device"
    assert "CPU:0" in legend
    assert "CPU:1" in legend
    assert "colour" not in page.evaluate("location.hash")
    page.evaluate("flowrtPage.state.change({colour: 'type'})")
    tab(page, "partitioned")
    assert page.evaluate(shown)[0] == "type"


def test_the_panel_lists_the_largest_tensors_where_colours_show_memory(page):
    page.evaluate("flowrtPage.state.change({colour: 'memory'})")
    largest = page.evaluate(
        "[...document.querySelectorAll('#details section')].find((s) => /most/i.test(s.innerText))"
        ".querySelector('.link').title"
    )
    bytes_of = "[...flowrtPage.stage.tree.names.keys()].map((i) => flowrtPage.stage.bytes(i))"
    assert page.evaluate(f"flowrtPage.stage.bytes({item(largest)}) === Math.max(...{bytes_of})")
    page.evaluate("flowrtPage.state.change({colour: 'type'})")
    assert "memory" not in page.text_of("#details").lower()


def test_a_class_of_the_legend_can_be_seen_alone(page):
    page.click_on("#legend button")
    assert page.evaluate("flowrtPage.state.onlyClass") == 0
    assert page.evaluate("document.querySelector('#legend button').ariaPressed") == "true"
    page.click_on("#legend button")
    assert page.evaluate("flowrtPage.state.onlyClass") is None


def test_keys_do_what_the_pointer_does(page):
    page.evaluate("document.getElementById('graph').focus()")
    page.evaluate(f"flowrtPage.select({item('x')})")
    page.press("ArrowDown")
    assert page.evaluate("flowrtPage.state.selected") == f"{SERIES}/"
    page.press("Enter")
    assert is_shown(page, "layer_1")
    page.press("]")
    assert page.evaluate("flowrtPage.stage.name") == "pruned"
    page.press("f")
    assert page.evaluate("flowrtPage.state.reach") == "up"
    scale = page.evaluate("flowrtPage.viewport.scale")
    page.press("+")
    assert page.evaluate("flowrtPage.viewport.scale") > scale
    page.press("Escape")
    assert page.evaluate("flowrtPage.selected") is None


def test_a_scope_and_the_operation_of_its_name_are_two(page):
    """A variable's scope has the name of its handle."""
    page.evaluate(f"flowrtPage.goTo({item('layer_1/w')})")
    assert page.text_of("#details .chip") == "VarHandleOp"
    click(page, "layer_1/w/")
    assert page.text_of("#details .chip") == "scope"
    assert page.evaluate("location.hash").count("w%2F") == 1


def test_a_button_of_the_panel_keeps_the_focus_when_it_was_pressed(page):
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.evaluate("document.querySelector('#details .choice button:nth-child(3)').focus()")
    page.press("Enter")
    assert page.evaluate("flowrtPage.state.reach") == "down"
    assert page.evaluate("document.activeElement.innerText") == "all consumers"
    page.evaluate("document.querySelector('#details .path button').focus()")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "details"


def test_the_address_leads_back(page, browser, written):
    tab(page, "placed")
    page.evaluate(f"flowrtPage.goTo({item(MATMUL)})")
    page.evaluate("flowrtPage.state.change({colour: 'memory', reach: 'up'})")
    fragment = page.evaluate("location.hash")
    again = browser.open(written[0], fragment=fragment)
    state = again.evaluate("(({selected, colour, reach}) => [selected, colour, reach])(flowrtPage.state)")
    assert state == [MATMUL, "memory", "up"]
    assert again.evaluate("flowrtPage.stage.name") == "placed"
    assert is_shown(again, MATMUL)
    assert again.errors == []
    again.close()


@pytest.mark.parametrize(
    "fragment", ["#stage=none&op=none&colour=none&reach=none", "#%00&=&stage", "#constructor"]
)
def test_a_wrong_address_shows_the_beginning(browser, written, fragment):
    opened = browser.open(written[0], fragment=fragment)
    assert opened.evaluate("flowrtPage.state.stage") == 0
    assert opened.errors == []
    opened.close()


def test_partitions_stand_side_by_side_and_transfers_have_their_ends(page):
    tab(page, "partitioned")
    boxes = page.evaluate("""[...flowrtPage.picture.boxes.values()]
        .filter((box) => flowrtPage.stage.tree.kind[box.item] === "device")
        .map(({x, width}) => [x, width])""")
    assert len(boxes) == 2
    (first, width), (second, _) = sorted(boxes)
    assert first + width < second
    assert page.evaluate("flowrtPage.wires.filter((wire) => wire.kind === 'transfer').length") > 0


@pytest.mark.parametrize("stage", ["partitioned", "built"])
def test_what_is_selected_stays_in_sight_where_a_stage_is_arranged_anew(page, stage):
    page.resize(900, 300)
    page.evaluate("flowrtPage.showStage(flowrtPage.graph.stages.length - 1)")
    if stage == "partitioned":
        tab(page, "built")
    page.evaluate(f"flowrtPage.goTo(flowrtPage.stage.tree.itemOf({json.dumps(MATMUL)}))")
    tab(page, stage)
    page.painted()
    left, top, right, bottom = page.evaluate("""(() => {
        const [left, top, width, height] = flowrtPage.placeOf(flowrtPage.selected);
        const {clientWidth, clientHeight} = flowrtPage.canvas;
        return [left, top, clientWidth - left - width, clientHeight - top - height];
    })()""")
    assert min(left, top, right, bottom) >= 0


def test_boxes_do_not_overlap_when_all_is_open(page):
    for number in range(page.evaluate("flowrtPage.graph.stages.length")):
        page.evaluate(f"flowrtPage.showStage({number})")
        page.click_on("#open-all")
        overlapping = page.evaluate("""(() => {
            const {tree} = flowrtPage.stage;
            const boxes = flowrtPage.picture.order;
            const found = [];
            for (const a of boxes) for (const b of boxes) {
                if (a.item >= b.item || tree.parent[a.item] !== tree.parent[b.item]) continue;
                const isBeside = a.x >= b.x + b.width || b.x >= a.x + a.width;
                if (!isBeside && a.y < b.y + b.height && b.y < a.y + a.height)
                    found.push([tree.names[a.item], tree.names[b.item]]);
            }
            return found;
        })()""")
        assert overlapping == []


def test_boxes_stand_inside_of_their_groups(browser, tmp_path):
    shown = browser.open(Path(export(spread_loop(), tmp_path / "loop.html")))
    for number in range(shown.evaluate("flowrtPage.graph.stages.length")):
        shown.evaluate(f"flowrtPage.showStage({number})")
        shown.click_on("#open-all")
        outside = shown.evaluate("""(() => {
            const {tree} = flowrtPage.stage;
            const {boxes, order} = flowrtPage.picture;
            const isInside = (box, group) =>
                box.x >= group.x && box.x + box.width <= group.x + group.width &&
                box.y >= group.y && box.y + box.height <= group.y + group.height;
            return order.filter((box) => boxes.has(tree.parent[box.item]))
                .filter((box) => !isInside(box, boxes.get(tree.parent[box.item])))
                .map((box) => tree.names[box.item]);
        })()""")
        assert outside == []
    shown.close()


def spread_loop():
    """A loop on two devices, behind a product: on the second a wide box stands below narrow ones."""
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/cpu:0"):
            x = tf.placeholder("float32", [16, 64], name="x")
            w = tf.get_variable("w", [64, 32])
        with tf.device("/cpu:1"):
            h = tf.nn.relu(tf.matmul(x, w), name="hidden")
            with tf.name_scope("loop"):
                h = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.tanh(a)), [0, h])[1]
        with tf.device("/cpu:0"):
            loss = tf.reduce_mean(tf.square(h), name="loss")
            tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return graph


def luminance(colour):
    """Of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_contrast_in_light_and_in_dark(browser, written, dark):
    opened = browser.open(written[0], dark=dark)
    theme = opened.evaluate("flowrtPage.theme")
    opened.close()
    assert (luminance(theme["page"]) < 0.1) == dark
    behind = [theme[name] for name in ("page", "box", "group", "deep")] + theme["fills"]
    for ground in behind:
        assert contrast(theme["ink"], ground) > 4.5  # WCAG's AA
        assert contrast(theme["muted"], ground) > 4.5
    assert all(contrast(theme["ink"], ground) > 4.5 for ground in theme["amounts"])
    for mark in ("accent", "added", "removed", "changed"):
        assert contrast(theme[mark], theme["box"]) > 4.5


def test_every_field_and_button_has_a_name(page):
    nameless = page.evaluate("""[...document.querySelectorAll("button, input, select, canvas, [tabindex]")]
        .filter((e) => !(e.ariaLabel || e.innerText || e.closest("label") || e.ariaHidden))
        .map((e) => e.outerHTML)""")
    assert nameless == []


def test_names_are_never_markup(browser, tmp_path):
    nodes = {name: NodeView(name, name, name, "", name, {name: name}, (), name) for name in EVIL}
    edges = [EdgeView(a, b, EdgeKind.DATA, f"{a}:0") for a, b in pairwise(EVIL)]
    view = GraphView(nodes, edges, {})
    path = Path(tmp_path) / "evil.html"
    path.write_bytes(html_page(page_data(EVIL[0], [PageStage(EVIL[1], EVIL[1], False, view)])))
    opened = browser.open(path)
    before = opened.evaluate("document.querySelectorAll('*').length")
    for name in EVIL:
        opened.evaluate(f"flowrtPage.goTo({item(name)})")
        opened.painted()
        assert opened.text_of("#details h2") == name
        opened.move(*place(opened, name))
    opened.press("/")
    opened.type("img")
    opened.wait_for("document.querySelectorAll('#results [role=option]').length === 1")
    assert opened.evaluate("document.querySelectorAll('img, script:not([type]), iframe').length") == 0
    assert before > 0
    assert opened.text_of("h1") == EVIL[0]
    assert opened.errors == []
    assert opened.requests == [path.resolve().as_uri()]
    opened.close()


def test_a_notebook_shows_it_in_a_frame(browser, tmp_path):
    graph, _, loss, _ = network()
    notebook = tmp_path / "notebook.html"
    frame = tf.viz.show(graph, fetches=loss)._repr_html_().replace("sandbox=", "data-without=")
    notebook.write_text(f"<!doctype html><script>flowrtPage = {{}}</script>{frame}", "utf-8")
    page = browser.open(notebook)
    inside = "document.querySelector('iframe').contentWindow.flowrtPage"
    page.wait_for(f"{inside}?.stage !== undefined")
    page.evaluate(f"{inside}.state.change({{ stage: 1 }})")  # which a page of its own notes in its address
    assert page.evaluate(f"{inside}.stage.name") == "pruned"
    assert page.errors == []
    page.close()
