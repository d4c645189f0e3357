"""Whole screens stay as they are kept in ``screens.txt``; after a change that is meant, ``python tests/cli/screens.py`` writes them."""

from contextlib import chdir
from pathlib import Path

import pytest
import screens

KEPT = screens.kept()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("screens")
    with chdir(made):
        screens.files()
    return made


@pytest.mark.parametrize("command", screens.SCREENS)
def test_a_screen_is_as_kept(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOSIM_CACHE", str(folder / "cache"))
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"):
        monkeypatch.delenv(name, raising=False)
    assert screens.screen(command) == KEPT[command]


def test_no_screen_is_kept_that_nothing_shows() -> None:
    assert tuple(KEPT) == screens.SCREENS
