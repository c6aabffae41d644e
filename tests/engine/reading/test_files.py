"""Files and presets: their text, or a finding that says why there is none."""

import os

import pytest

from engine.errors import TitanError
from engine.reading.files import file_text, preset_names, preset_text


def refusal(path):
    with pytest.raises(TitanError) as error:
        file_text(path)
    (finding,) = error.value.findings
    assert error.value.exit_code == 2
    return finding


def test_a_file_is_read_as_utf8(tmp_path):
    (tmp_path / "a.toml").write_bytes("é = 1\r\n".encode())
    assert file_text(tmp_path / "a.toml") == "é = 1\r\n"


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1")
    assert file_text(tmp_path / "a.toml") == "a = 1"


def test_a_missing_file_leads_to_the_nearest_in_its_folder(tmp_path):
    (tmp_path / "llama-8b.toml").touch()
    (tmp_path / "notes.txt").touch()
    path = tmp_path / "lama8b.toml"
    finding = refusal(path)
    assert (finding.rule, finding.file, finding.line) == ("S104", str(path), None)
    assert finding.message == f"there is no file {path}"
    assert finding.fix == f"write {tmp_path / 'llama-8b.toml'}"


def test_a_missing_file_in_a_missing_folder_says_so(tmp_path):
    assert f"no folder {tmp_path / 'gone'}" in refusal(tmp_path / "gone" / "a.toml").fix


@pytest.mark.parametrize("name", ["quickstart", "quickstart.toml"])
def test_a_preset_given_as_a_file_leads_to_the_preset(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(name).fix == "write --preset quickstart"


def test_a_missing_file_that_resembles_nothing_still_has_a_way_out(tmp_path):
    (tmp_path / "y.toml").touch()
    assert refusal(tmp_path / "zzz.toml").fix == "give the path of a TOML file, or --preset NAME"


def test_a_folder_is_refused_as_one(tmp_path):
    assert refusal(tmp_path).message == f"{tmp_path} is a folder"


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b"])
def test_a_path_that_cannot_exist_is_refused(name, tmp_path):
    finding = refusal(tmp_path / name)
    assert finding.rule == "S104"
    assert "cannot be read" in finding.message


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "a.toml").touch()
    assert "not a directory" in refusal(tmp_path / "a.toml" / "b.toml").message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    (tmp_path / "a.toml").touch(mode=0o000)
    assert "permission denied" in refusal(tmp_path / "a.toml").message


@pytest.mark.parametrize(
    ("raw", "line", "byte"),
    [(b"a = 1\n\n# \xff\n", 3, "0xff"), ("a = 1\n".encode("utf-16"), 1, "0xff"), (b"\xe9", 1, "0xe9")],
)
def test_bytes_that_are_not_utf8_are_placed(raw, line, byte, tmp_path):
    (tmp_path / "a.toml").write_bytes(raw)
    finding = refusal(tmp_path / "a.toml")
    assert (finding.rule, finding.line, finding.message) == ("S103", line, f"byte {byte} is not UTF-8 text")


def test_the_presets_of_the_mission_are_there():
    assert {"quickstart", "fsdp-8b", "2d-70b", "3d-405b", "4d-405b-long"} <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_text(name):
    assert "[cluster]" in preset_text(name)


@pytest.mark.parametrize(
    ("name", "fix"),
    [("quick-start", "write --preset quickstart"), ("zzz", "choose one of 2d-70b, 3d-405b, "), ("../x", "choose")],
)
def test_an_unknown_preset_leads_to_the_nearest(name, fix):
    with pytest.raises(TitanError) as error:
        preset_text(name)
    (finding,) = error.value.findings
    assert (finding.rule, finding.message, finding.source) == ("S104", f"there is no preset {name}", f"preset {name}")
    assert finding.fix.startswith(fix)


def test_a_file_larger_than_any_config_is_not_read_to_its_end(tmp_path):
    (tmp_path / "big.toml").write_bytes(b"#" * ((4 << 20) + 1))
    for path in (tmp_path / "big.toml", "/dev/zero"):
        assert refusal(path).message == f"{path} is larger than any config (4 MiB)"


def test_a_file_of_just_that_size_is_read(tmp_path):
    (tmp_path / "big.toml").write_bytes(b"#" * (4 << 20))
    assert len(file_text(tmp_path / "big.toml")) == 4 << 20


def test_a_link_to_nothing_is_told_as_one(tmp_path):
    (tmp_path / "run.toml").symlink_to("gone.toml")
    assert (
        refusal(tmp_path / "run.toml").message == f"{tmp_path / 'run.toml'} is a link to gone.toml, which is not there"
    )


def test_a_preset_named_as_its_findings_name_it_leads_to_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("presets/quickstart.toml").fix == "write --preset quickstart"
