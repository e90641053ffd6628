"""A finished audit as one page."""

import re

from audit import run
from audit.report import __main__ as command


def test_page_of_a_finished_audit_stands_alone(tmp_path, capsys):
    out = str(tmp_path / "audit")
    options = ["--threat", "ETCV", "--canary", "dirac", "--trials", "60", "--epsilon", "2"]
    assert run.main([*options, "--repeats", "1", "--repetitions", "fixed:2", "--out", out]) == 0
    capsys.readouterr()
    assert command.main([out]) == 0
    text = (tmp_path / "audit" / "report.html").read_text()
    assert capsys.readouterr().out.endswith("report.html\n")
    assert text.count("data:image/png;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<td>tight</td>" in text
    assert "<td>lambda_a</td>" in text


def test_a_folder_without_an_audit_is_one_line(tmp_path, capsys):
    assert command.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "folders must hold finished audits" in error
    assert error.count("\n") == 1
