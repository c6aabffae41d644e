"""The pictures show what the commands write today."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from titancli.app import parsed
from titancli.pages import FOLDER
from titancli.pages.pictures import PICTURES, Picture, transcript

QUICK = [picture for picture in PICTURES if not picture.takes_seconds]


def letters_of(svg: str) -> str:
    """All that is written in a picture, from top to bottom, without spaces and without its frame."""
    texts = [each for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]
    return "".join("".join(str(each.text).split()) for each in texts if "clip-path" in each.attrib)


@pytest.mark.parametrize("picture", QUICK, ids=lambda picture: picture.name)
def test_picture_shows_what_the_command_writes_today(picture: Picture) -> None:
    told = "".join(transcript(picture).plain.split())
    kept = letters_of((FOLDER / f"{picture.name}.svg").read_text("utf-8"))
    assert kept == told, "draw them anew: python -m titancli.pages"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_picture_names_its_command_line_and_asks_no_other_host(picture: Picture) -> None:
    svg = (FOLDER / f"{picture.name}.svg").read_text("utf-8")
    assert "url(http" not in svg
    titles = [str(each.text) for each in ElementTree.fromstring(svg).iter() if "-title" in each.get("class", "")]
    assert [title.split() for title in titles] == [picture.line.split()]
    assert picture.words[0] == picture.command in parsed().commands


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_picture_shows_no_figure_that_the_next_run_would_not(picture: Picture) -> None:
    assert "judgedin" not in letters_of((FOLDER / f"{picture.name}.svg").read_text("utf-8"))
