"""Pages whose tables are written by scripts, between `<!-- name -->` and `<!-- /name -->`."""

import pathlib
import re


def fill(path: pathlib.Path, parts: dict[str, str]) -> None:
    """Writes the parts of a page anew; each must stand in it once."""
    page = path.read_text(encoding="utf-8")
    for name, text in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page, count = re.subn(
            pattern, lambda m, t=text: f"{m[1]}{t}\n{m[2]}", page, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"{path} must hold one pair of marks named {name}, got {count}.")
    path.write_text(page, encoding="utf-8")
