"""Remarks about the progress of long work."""

import pytest

from audit import console


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "1 seconds"),
        (89.0, "89 seconds"),
        (90.0, "2 minutes"),
        (5399.0, "90 minutes"),
        (5400.0, "2 hours"),
        (200_000.0, "2 days"),
    ],
)
def test_durations_have_one_unit(seconds: float, words: str) -> None:
    assert console.duration(seconds) == words


def test_progress_without_a_terminal_says_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 20.0, 21.0])
    monkeypatch.setattr("audit.console.time.monotonic", clock.__next__)
    with console.progress(total=100, done=50) as update:
        update(5)  # 10 s: too early for a remark
        update(5)  # 20 s for 10 trials, and 40 are left
        update(5)
    assert capsys.readouterr().out == "60 of 100 trials, about 80 seconds left\n"
