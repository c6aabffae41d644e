"""Packages that a config asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import Config
from engine.extras import EXTRAS, client_of, is_here, missing
from engine.keys import with_values


def test_nothing_is_missing_where_nothing_is_asked_for() -> None:
    assert missing(Config(), is_here=lambda _: False) == ()


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.package)
def test_what_is_asked_for_and_not_there_is_missing(extra) -> None:  # type: ignore[no-untyped-def]
    asked = with_values(Config(), {extra.key: True if extra.value is None else extra.value})
    assert missing(asked, is_here=lambda package: package != extra.package) == (extra,)
    assert missing(asked, is_here=lambda _: True) == ()


def test_a_folder_that_has_the_name_of_a_package_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left_by_a_run").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [is_here(package) for package in ("left_by_a_run", "not_there", "json")] == [False, False, True]


def test_what_reaches_a_url_is_known_by_its_scheme() -> None:
    s3 = client_of("s3")
    assert s3 is not None
    assert (s3.modules, s3.pip) == (("upath", "s3fs"), "python -m pip install 'titan-train[remote]' s3fs")
    assert client_of("memory") is not None
    assert client_of("gibberish") is None
