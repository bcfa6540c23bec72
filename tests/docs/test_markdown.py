"""The code in the documentation runs, and its links lead somewhere."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
LINKING = PAGES + [
    path
    for folder in ("benchmarks", "examples", "fedjax_opt", "tests")
    for path in sorted((ROOT / folder).rglob("*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]
SKIPPED = "<!-- not executed -->"
FENCE = re.compile(r"^(\s*)```(\w*)")


def _name(path):
    return str(path.relative_to(ROOT))


def python_lines(text):
    """The page with everything blank but its Python, so that a line keeps its number."""
    lines, indent, language = [], None, ""
    before = ""  # the last line of prose that is not blank
    for line in text.splitlines():
        fence = FENCE.match(line)
        kept = ""
        if fence and indent is None:
            indent = fence.group(1)
            language = "" if before == SKIPPED else fence.group(2)
        elif fence:
            indent, before = None, ""
        elif indent is None:
            before = line.strip() or before
        elif language == "python":
            kept = line.removeprefix(indent)
        lines.append(kept)
    return "\n".join(lines)


EXECUTED = [path for path in PAGES if python_lines(path.read_text(encoding="utf-8")).strip()]


def test_blocks_are_found_and_skipped():
    """Of a small page, the second Python block is left out, and the rest keeps its lines."""
    page = "A\n```python\na = 1\n```\n" + SKIPPED + "\n\n```python\nb\n```\n```text\nc\n```\n"
    assert python_lines(page).split("\n") == ["", "", "a = 1", *[""] * 9]
    assert python_lines("- A\n  ```python\n  if a:\n      b\n  ```").strip() == "if a:\n    b"


@pytest.mark.parametrize("path", EXECUTED, ids=_name)
def test_code_runs(path, tmp_path):
    """The blocks of a page, in order and in one namespace, in a process of their own."""
    code = tmp_path / "blocks.py"  # not code.py: a module of Python, which pdb imports
    code.write_text(python_lines(path.read_text(encoding="utf-8")), encoding="utf-8")
    # Compiled under the page's name: a traceback then points to the line of the page.
    command = (
        "import sys; code, page = sys.argv[1:];"
        " exec(compile(open(code, encoding='utf-8').read(), page, 'exec'), {'__name__': 'page'})"
    )
    finished = subprocess.run(
        [sys.executable, "-c", command, str(code), str(path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr


def links(text):
    """Where a page's links lead; what stands in code is no link."""
    text = re.sub(r"^(\s*)```.*?^\s*```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)", text)
    defined = re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, flags=re.MULTILINE)
    return inline + defined


@pytest.mark.parametrize("path", LINKING, ids=_name)
def test_relative_links_exist(path):
    """Every link that is not an address points to a file or folder of this repository."""
    for link in links(path.read_text(encoding="utf-8")):
        target = link.split("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            continue
        found = (path.parent / target).resolve()
        assert found.is_relative_to(ROOT), f"{link} leaves the repository"
        assert found.exists(), f"{link} does not exist"


def test_links_are_found():
    """Inline links, images and definitions; not those in code."""
    page = "[a](b.md#c) ![d](e.png) `[f](g)`\n```text\n[h](i)\n```\n[j]: k.md\n"
    assert links(page) == ["b.md#c", "e.png", "k.md"]
