"""How values get into the files that scripts and manifests are made from."""

from __future__ import annotations

import pytest

from titancli.launch.template import filled


def test_several_values_stand_on_lines_of_their_own_as_far_in_as_the_name_stood() -> None:
    text = filled("volumes.yaml", {"configmap": "c", "claims": ["- name: a", "  emptyDir: {}"]})
    assert text.splitlines()[2:3] + text.splitlines()[-2:] == ["    name: c", "- name: a", "  emptyDir: {}"]


def test_no_values_leave_no_line() -> None:
    assert filled("mounts.yaml", {"claims": []}).endswith("  mountPath: /dev/shm\n")


def test_a_template_is_given_what_it_names_and_nothing_else() -> None:
    with pytest.raises(AssertionError, match="names other values than it is given"):
        filled("claim.yaml", {"volume": "a"})
