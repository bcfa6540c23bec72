"""The page in a browser: photographed, and used by a script as a reader would."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

from fedjax_opt.experiments import rule
from fedjax_opt.experiments.report.page import make_page
from tests.experiments.report.samples import ABOUT, comparison

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

_TOOLS = """
const found = {};
const find = (selector) => [...document.querySelectorAll(selector)];
const seen = (selector) => find(selector).filter((each) => each.getClientRects().length).length;
const click = (selector, n = 0) => find(selector)[n].click();
addEventListener("load", () => (document.body.dataset.found = JSON.stringify(found)));
"""
LOOK = f"""{_TOOLS}
found.panels = seen("figure");
const drawn = '[class^="curve-"]';
found.curves = seen(drawn);
click("#show-1");
found.fewer = seen(drawn);
click("#axis-bytes");
found.one = seen("#curves figure");
click("#axis-all");
"""
USE = f"""{LOOK}
const rows = () => [...find("table.sortable")[0].tBodies[0].rows];
const keys = (n) => rows().map((row) => row.cells[n].dataset.key ?? null);
found.resources = performance.getEntriesByType("resource").length;
found.fits = document.documentElement.scrollWidth <= innerWidth;
click("thead button", 1);
found.down = keys(1);
click("thead button", 1);
found.up = keys(1);
found.order = find("thead button")[1].closest("th").getAttribute("aria-sort");
click("table thead tr:nth-child(2) button", 3);
found.match = keys(6);
click(".legend button", 1);
found.none = seen(drawn);
click(".legend button", 0);
"""


def opened(page, tmp_path, *options):
    """Opens a page; returns its photograph, its document and its console."""
    path, picture = tmp_path / "report.html", tmp_path / "page.png"
    path.write_text(page, encoding="utf-8")
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-quic", "--disable-background-networking", "--disable-component-update"),
        *("--disable-sync", "--hide-scrollbars", "--window-size=1280,2400"),
        "--host-resolver-rules=MAP * ~NOTFOUND",  # also for what the browser itself would ask
        *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"),
        *(f"--screenshot={picture}", "--dump-dom", *options, path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return matplotlib.image.imread(picture), done.stdout, console


def brightness(picture):
    return np.median(picture[..., :3])


def colours(picture):
    levels = (picture[..., :3] * 255).astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)
    return len(np.unique(levels))


def with_script(page, script):
    """The page with one more script, which its policy allows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def answer(document):
    """What the script found."""
    return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', document)[1]))


@pytest.fixture(scope="module")
def page():
    return make_page(ABOUT, comparison(), rule(comparison()))


def test_a_reader_s_visit(page, tmp_path):
    """In light: nothing is asked of the network, nothing complains, and what can be used works."""
    picture, document, console = opened(with_script(page, USE), tmp_path)
    assert console == []
    assert brightness(picture) > 0.95 and colours(picture) > 500
    assert 'data-hacked="' not in document
    found = answer(document)
    assert found["resources"] == 0 and found["fits"]
    assert (found["panels"], found["one"]) == (6, 1)
    down, up = (np.array(found[way], float) for way in ("down", "up"))
    assert np.all(np.diff(down) < 0) and np.all(np.diff(up) > 0)
    assert found["order"] == "ascending"
    reached = [key for key in found["match"] if key is not None]
    assert found["match"][-1] is None and reached == sorted(reached, key=float)
    # Four axes with four curves, a loss with three, a drift with two; one less in each.
    assert (found["curves"], found["fewer"], found["none"]) == (21, 15, 0)


def test_in_the_dark(page, tmp_path):
    picture, _, console = opened(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert console == []
    assert brightness(picture) < 0.15 and colours(picture) > 500


def test_without_the_page_s_script(page, tmp_path):
    """All panels are there, and the legend and the switch work."""
    page = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    picture, document, console = opened(with_script(page, LOOK), tmp_path)
    assert console == [] and colours(picture) > 500
    assert answer(document) == {"panels": 6, "curves": 21, "fewer": 15, "one": 1}
