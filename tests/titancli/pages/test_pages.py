"""The pages beside the source are those that the source writes today."""

from __future__ import annotations

import re

import pytest

from titancli.pages import FOLDER, pages
from titancli.pages.findings import FILE, findings_json
from titancli.pages.pictures import PICTURES

# They are written once a test asks for them: that takes seconds. That none is missing is a test of its own.
NAMES = sorted(path.name for path in FOLDER.glob("*.md"))


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """Every page as the source writes it, by its file."""
    return pages()


@pytest.mark.parametrize("name", NAMES)
def test_page_is_what_is_written_today(name: str, written: dict[str, str]) -> None:
    assert (FOLDER / name).read_text("utf-8") == written.get(name), "write them anew: python -m titancli.pages"


def test_the_table_of_findings_is_what_the_source_says_today() -> None:
    assert FILE.read_text("utf-8") == findings_json(), "write it anew: python -m titancli.pages"


def test_no_page_and_no_picture_is_left_of_what_is_gone(written: dict[str, str]) -> None:
    kept = {path.name for path in FOLDER.iterdir() if path.suffix in (".md", ".svg")}
    assert kept == written.keys() | {f"{picture.name}.svg" for picture in PICTURES}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str, written: dict[str, str]) -> None:
    places = {match[1] for match in re.finditer(r"\]\(([^)]+)\)", written[name])}
    for file, _, heading in (place.partition("#") for place in places):
        assert (FOLDER / file).is_file()
        assert not heading or f"\n### {heading.upper()}\n" in written[file]
