"""The page as a parser sees it: its structure, its numbers, and that no text gets out of hand."""

import html
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fedjax_opt.experiments.criteria import interval
from fedjax_opt.experiments.report import About, compare, write_report
from fedjax_opt.experiments.report.page import make_page
from fedjax_opt.experiments.report.panels import DASHES, looks
from fedjax_opt.experiments.report.theme import GROUNDS, contrast, readable, style_sheet
from fedjax_opt.planning.figure import COLOURS
from tests.experiments.report.samples import ABOUT, NASTY, comparison, curves, rising

VOID = {"meta", "link", "input", "br", "img"}


class Tree(HTMLParser):
    """Elements with their attributes, the text inside and the tags around; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        element["parents"] = [parent["tag"] for parent in self.open]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        return [
            element
            for element in self.elements
            if element["tag"] == tag and attributes.items() <= element.items()
        ]

    def one(self, tag, **attributes):
        (found,) = self.all(tag, **attributes)
        return found


@pytest.fixture(scope="module")
def page():
    return make_page(ABOUT, comparison())


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


def rows_of(tree, name):
    """The body of a table as texts."""
    rows, inside = [], False
    for element in tree.elements:
        if element["tag"] == "table":
            inside = element["aria-label"] == name
        elif inside and element["tag"] == "tr" and "tbody" in element["parents"]:
            rows.append([])
        elif inside and element["tag"] in ("td", "th") and "tbody" in element["parents"]:
            rows[-1].append(" ".join(element["text"].split()))
    return rows


def test_nothing_is_loaded(page, tree):
    for element in tree.elements:
        assert (
            not {"src", "srcset", "action", "data", "onload", "onclick", "style"} & element.keys()
        )
        assert element.get("href", "#").startswith(("#", "data:,"))
    assert {e["tag"] for e in tree.elements} & {"img", "iframe", "object", "embed", "base"} == set()
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in tree.all("meta")[1]["content"]
    assert not re.search(r"https?://", page)


def test_every_text_is_escaped(page, tree):
    assert NASTY not in page
    assert len(tree.all("script")) == 2 and len(tree.all("style")) == 1
    assert tree.all("i") == []
    assert tree.one("h1")["text"] == tree.all("title")[0]["text"] == ABOUT.title
    assert f"echo {NASTY}" in tree.one("pre")["text"]
    for tag in ("dt", "dd", "figcaption", "title", "desc", "label", "th", "li", "p"):
        assert any(NASTY in element["text"] for element in tree.all(tag)), tag
    data = json.loads(tree.one("script", type="application/json")["text"])
    assert data["accuracy_rounds"]["lines"][3]["label"] == NASTY


def test_labels_that_go_into_attributes():
    tree = Tree(make_page(About("T"), [curves('" onfocus="alert(1)'), curves("'><b>", 0.7)]))
    assert tree.all("b") == [] and not any("onfocus" in element for element in tree.elements)


def test_four_panels_are_there_without_scripts(tree):
    figures = tree.all("figure")
    assert [figure["data-axis"] for figure in figures[:4]] == [
        "rounds",
        "bytes",
        "flops",
        "seconds",
    ]
    assert [figure["data-panel"] for figure in figures[4:]] == ["loss", "client_distance"]
    assert not any("hidden" in figure for figure in figures)
    # Whatever scripts are for, they make themselves.
    assert tree.all("button") == []
    assert [radio["id"] for radio in tree.all("input", type="radio") if "checked" in radio] == [
        "show-all"
    ]


def test_it_can_be_used_without_a_mouse_and_heard(tree):
    ids = [element["id"] for element in tree.elements if "id" in element]
    assert len(ids) == len(set(ids))
    assert tree.one("html")["lang"] == "en"
    assert tree.elements[[e["tag"] for e in tree.elements].index("body") + 1]["href"] == "#main"
    for link in tree.all("a"):
        assert link["href"][1:] in ids
    for image in tree.all("svg"):
        if image["class"] == "plot":
            assert image["role"] == "img"
            assert all(name in ids for name in image["aria-labelledby"].split())
        else:
            assert image["aria-hidden"] == "true"
    for box in tree.all("input"):
        assert "label" in box["parents"] and "fieldset" in box["parents"]
    for heading in tree.all("th"):
        assert heading["scope"] in ("col", "row", "colgroup")
    levels = [int(e["tag"][1]) for e in tree.elements if re.fullmatch("h[1-6]", e["tag"])]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))
    boxes = [e for e in tree.all("div") if e.get("class") == "wide"]
    assert len(boxes) == 4 and all(box["tabindex"] == "0" for box in boxes)


def test_the_table_holds_the_numbers(tree):
    own, fast, dear, weak = rows = rows_of(tree, "Results")
    found = compare(ABOUT, comparison())
    assert all(row[0].startswith(each.label) for row, each in zip(rows, found.rows, strict=True))
    assert own[1] == f"{100 * found.rows[0].best:.1f}± {100 * found.rows[0].half_width:.1f}"
    assert own[6:] == [f"{number}1×" for number in ("100", "200", "400", "300", "1.11")]
    # The same seeds of both, each at its best round; not of one whose seed went wrong.
    lead = interval(rising(0.7, 0.08)[:, -1] - rising(0.6)[:, -1])
    assert fast[2] == f"+{100 * lead.mean:.1f}± {100 * lead.half_width:.1f}"
    assert own[2] == dear[2] == weak[2] == ""
    factor = found.rows[1].factors["rounds"]
    rounds = f"{found.rows[1].to_match['rounds']:.0f}"
    assert fast[6] == f"{rounds}↓ {1 / factor:.1f}×{1 / factor:.1f} times less"
    assert "↑" in dear[7]  # SCAFFOLD's uploads, twice the price
    assert weak[6:] == ["–"] * 5
    assert dear[0].endswith("seed 2 diverged by round 70")
    assert "seed 1 was not finished: it ends at round 70" in weak[0]


def test_units_and_groups_of_the_table(tree):
    titles = [th["text"] for th in tree.all("th") if "data-first" in th][:9]
    assert titles[:5] == [
        "Max accuracy%",
        "Leadpoints",
        "Rounds",
        "UploadMB",
        "FLOPsGFLOP",
    ]
    groups = {th["text"]: th["colspan"] for th in tree.all("th", scope="colgroup")}
    target = compare(ABOUT, comparison()).target
    assert groups == {"To its own best": "3", f"To match FedAvg at {target:.1%}": "5"}


def test_the_best_is_bold_and_never_one_whose_seed_diverged():
    broken = rising(0.9)
    broken[1, 7:] = np.nan
    tree = Tree(
        make_page(About("T"), [curves(), curves("Good", 0.7), curves("Broken", accuracy=broken)])
    )
    bold = [td["text"] for td in tree.all("td") if td.get("class") == "best"]
    assert bold[0].startswith("69.5")
    cards = [li["text"] for li in tree.all("li") if "main" in li["parents"]]
    assert cards[0].startswith("Highest accuracyGood69.5 ± ")
    assert all("Broken" not in card for card in cards[:5])
    assert "Broken: seed 1 diverged by round 80." in cards


def test_hyperparameters_that_only_some_have(tree):
    rows = rows_of(tree, "Hyperparameters")
    assert [row[1:] for row in rows] == [["0.1", "–"]] * 3 + [["1", "a<b = <i>"]]


def test_commands_versions_and_seeds(tree):
    text = tree.one("section", id="how-it-was-made")["text"]
    assert "fedjax-opt compare --out 'runs/<x>'\n" in text and "0.7.2" in text
    assert "0, 1, 2" in text


def test_curves_lie_where_the_numbers_say():
    accuracy = np.linspace(0.1, 0.6, 10)[None]
    tree = Tree(make_page(About("T"), [curves(accuracy=accuracy)]))
    first = tree.all("polyline")[0]["points"].split()
    points = np.array([point.split(",") for point in first], float)
    np.testing.assert_allclose(np.diff(points, n=2, axis=0), 0.0, atol=0.11)  # a straight line
    assert points[-1, 0] == 468 and points[0, 0] == pytest.approx(44 + 42.4)


def test_prices_far_apart_get_an_axis_of_factors():
    tree = Tree(make_page(About("T"), [curves(), curves("Dear", 0.7, price=20.0)]))
    titles = [title["text"] for title in tree.all("title")[1:]]
    assert [title.endswith("log scale") for title in titles] == [False, True, True, True]


@pytest.mark.parametrize(
    "given",
    [
        [curves(costs=None)],
        [curves(accuracy=np.full((3, 10), np.nan))],
        [curves(accuracy=np.full((3, 10), 0.5))],
        [curves(accuracy=rising(0.5, seeds=1), hyperparameters={})],
        [curves()._replace(round=[7], accuracy=[[0.5]], seeds=(4,), costs=None)],
        [curves()._replace(round=[0], accuracy=[[0.5]], seeds=(4,), costs=None)],
        [curves(), curves("Other", loss=np.zeros((3, 10)))],
        [curves(), curves("Other", extra={"norm": np.geomspace(1, 1e9, 30).reshape(3, 10)})],
        [curves(f"algorithm {i}", 0.3 + i / 50) for i in range(30)],
    ],
    ids=["free", "nothing", "flat", "one seed", "one round", "round 0", "zeros", "steep", "many"],
)
def test_odd_comparisons_make_a_page(given):
    page = make_page(About("T"), given)
    Tree(page)
    numbers = re.findall(r'(?:points|d|x|y|cx|cy)="([^"]*)"', page)
    assert not any("nan" in text or "inf" in text for text in numbers)
    assert ">nan" not in page and ">inf" not in page


def test_smoothing_and_targets_are_said():
    text = Tree(make_page(About("T", smoothing=0.9, target=0.99), [curves()])).one("main")["text"]
    assert "moving average of decay 0.9" in text and "reached the target of 99.0%" in text
    assert "No algorithm did." in text


def test_the_same_curves_make_the_same_page(page):
    assert make_page(ABOUT, comparison()) == page


def test_long_curves_stay_small():
    rounds = np.arange(1, 20_001)
    long = curves()._replace(
        round=rounds, accuracy=[np.sqrt(rounds / 40_000)], seeds=(0,), costs=None
    )
    assert len(make_page(About("T"), [long])) < 150_000


def test_writing(tmp_path):
    path = write_report(tmp_path / "new" / "report.html", ABOUT, comparison())
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_curves_are_told_apart_without_colour():
    found = looks([f"{i}" for i in range(24)], "0")
    assert found[0].colour is None
    assert len({(look.colour, look.dash) for look in found[1:]}) == 23
    assert len({(look.dash, look.mark) for look in found[1:]}) == 23
    assert len({(look.dash, look.mark) for look in found[: 1 + len(DASHES)]}) == len(DASHES)


def variables(dark):
    """The colours of a theme."""
    light_part, dark_part = style_sheet(0).split("prefers-color-scheme: dark", 1)
    text = light_part + (dark_part.split("* {")[0] if dark else "")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text))


@pytest.mark.parametrize("theme", GROUNDS)
def test_contrast(theme):
    """WCAG AA: 4.5 for text, 3 for what is drawn or controls."""
    ground, least = GROUNDS[theme]
    colours = variables(dark=theme == "dark")
    for name in ("ink", "muted", "accent", "less", "more"):
        for under in (ground, colours["surface"]):
            assert contrast(colours[name], under) >= 4.5, (name, under)
    assert contrast(colours["ink"], colours["warning"]) >= 4.5
    assert contrast(colours["control"], ground) >= 3
    for colour in COLOURS:
        assert contrast(readable(colour, ground, least), ground) >= least >= 3


def test_contrast_of_known_colours():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert readable("#0072B2", "#ffffff", 3.0) == "#0072b2"


def test_what_is_escaped_is_what_html_escapes():
    assert html.escape(NASTY) in make_page(About(NASTY), [curves()])
