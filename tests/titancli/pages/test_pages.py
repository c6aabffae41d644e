"""The pages beside the source are those that the source writes today."""

from __future__ import annotations

import re

import pytest

from titancli.pages import FOLDER, pages
from titancli.pages.findings import FILE, findings_json
from titancli.pages.pictures import PICTURES

WRITTEN = pages()


@pytest.mark.parametrize("name", WRITTEN)
def test_page_is_what_is_written_today(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == WRITTEN[name], "write them anew: python -m titancli.pages"


def test_the_table_of_findings_is_what_the_source_says_today() -> None:
    assert FILE.read_text("utf-8") == findings_json(), "write it anew: python -m titancli.pages"


def test_no_page_and_no_picture_is_left_of_what_is_gone() -> None:
    kept = {path.name for path in FOLDER.iterdir() if path.suffix in (".md", ".svg")}
    assert kept == WRITTEN.keys() | {f"{picture.name}.svg" for picture in PICTURES}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_link_leads_somewhere(name: str) -> None:
    places = {match[1] for match in re.finditer(r"\]\(([^)]+)\)", WRITTEN[name])}
    for file, _, heading in (place.partition("#") for place in places):
        assert (FOLDER / file).is_file()
        assert not heading or f"\n### {heading.upper()}\n" in WRITTEN[file]
