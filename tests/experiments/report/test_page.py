"""The page: whole without network or scripts, and safe with any text."""

import csv
import re

import markupsafe
import numpy as np
import pytest

from fedjax_opt.experiments import Curves, measure, rule, save_plots, write_report
from fedjax_opt.experiments.report.page import clearly_best, make_page, spread
from tests.experiments.report.samples import ABOUT, NASTY, ROUNDS, comparison, curves, rising


@pytest.fixture(scope="module")
def page():
    return make_page(ABOUT, comparison(), rule(comparison()))


def test_nothing_is_loaded_and_one_script_runs(page):
    assert not re.search(r'(?:src|href)="(?!#|data:,")', page)
    assert page.count("<script>") == 1 and "script-src 'sha256-" in page


def test_every_text_is_escaped(page):
    assert NASTY not in page and str(markupsafe.escape(NASTY)) in page


def test_no_id_is_there_twice(page):
    own = re.findall(r'<(?:section|input)[^>]* id="([^"]*)"', page)
    assert len(own) == len(set(own))
    assert not re.search(r'id="(?:figure|axes|line2d|curve-)', page)


def test_each_curve_has_a_class_in_each_picture(page):
    assert page.count("<figure") == 6  # four axes, the loss, the drift
    assert [page.count(f'class="curve-{i}"') for i in range(4)] == [6, 6, 5, 4]
    assert page.count('class="cross-2"') == 4 and page.count('class="level"') == 4


def test_what_went_wrong_is_said(page):
    assert "SCAFFOLD: seed 2 diverged in round 65." in page
    assert "seed 1 has no finite accuracy after round 70" in page


def test_settings_that_only_some_have_stand_in_one_column(page):
    assert "a&lt;b = &lt;i&gt;" in page


def test_the_same_curves_make_the_same_page(page):
    assert make_page(ABOUT, comparison(), rule(comparison())) == page


def test_settings_that_differ_between_runs_are_a_column():
    about = ABOUT._replace(differing={"cohort": [5, 5, 50, 5]})
    made = make_page(about, comparison(), rule(comparison()))
    assert "<span>cohort</span>" in made and re.search(r'data-key="50"[^>]*>50<', made)


def test_any_metric_makes_a_page(tmp_path):
    errors = 3 - rising(0.6)
    found = [
        Curves(label, {}, (0, 1, 2), ROUNDS, {"rmse": errors - shift}, {})
        for label, shift in (("a", 0.0), ("b", 1.0))
    ]
    path = write_report(
        tmp_path / "report.html", ABOUT._replace(beside=()), found, rule(found, "rmse")
    )
    text = path.read_text(encoding="utf-8")
    assert "Lowest rmse" in text and "Rmse against rounds" in text
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 60 and float(lines[0]["rmse"]) == errors[0, 0]


def test_two_seeds_give_no_interval():
    two = measure([curves(accuracy=rising(0.6, seeds=2))], rule([curves()])).rows[0]
    assert np.isnan(two.half_width)
    assert spread(two, rule([curves()])) == "58.6 and 60.6"
    one = measure([curves(accuracy=rising(0.6, seeds=1))], rule([curves()])).rows[0]
    assert spread(one, rule([curves()])) == ""


def test_the_best_is_marked_where_its_interval_meets_no_other():
    def marked(*best):
        found = [curves(f"a{i}", one) for i, one in enumerate(best)]
        return clearly_best(measure(found, rule(found)).rows, rule(found))

    assert marked(0.5, 0.9) == 1 and marked(0.6, 0.61) is None and marked(0.5) is None


def test_plots_are_files_too(tmp_path):
    found = measure(comparison()[:2], rule(comparison()))
    names = [path.name for path in save_plots(tmp_path, found, formats=("pdf",))]
    assert names[0] == "accuracy_rounds.pdf" and set(names[4:]) == {
        "loss.pdf",
        "client_distance.pdf",
    }
    first = (tmp_path / "loss.pdf").read_bytes()
    save_plots(tmp_path, found, formats=("pdf",))
    assert (tmp_path / "loss.pdf").read_bytes() == first


def test_curves_that_diverged_at_once_make_a_page():
    lost = np.full((3, 10), np.nan)
    found = [curves(), curves("b", accuracy=lost, diverged={0: 1, 1: 1, 2: 1})]
    assert "b: seed 0 diverged in round 1" in make_page(ABOUT, found, rule(found))
