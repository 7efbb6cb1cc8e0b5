import pytest

from anyorder.data.line_problems import LineNote, LineReport, clean_line, is_empty, is_too_long, join_notes, refuse
from anyorder.errors import InputError


@pytest.mark.parametrize(
    ("line", "clean", "note"),
    [
        ("plain\ttext\u2028 ", "plain\ttext\u2028 ", ""),
        ("a\x00b\x1b[31m\x85", "a b [31m ", "control characters in source became spaces"),
        ("T\ufffdr", "T\ufffdr", "invalid UTF-8 in source became U+FFFD"),
        ("T\ud800r\x07", "T\ufffdr ", "invalid UTF-8 in source became U+FFFD; control characters in source became spaces"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_replaced_and_said(line: str, clean: str, note: str) -> None:
    text, problems = clean_line(line)
    assert (text, join_notes(problems)) == (clean, note)
    assert clean.encode()


def test_the_first_problem_is_an_error_where_none_is_allowed() -> None:
    problems = [is_too_long("reference", "length clipped", 90, 62), is_empty("source")]
    with pytest.raises(InputError, match=r"^a\.en, line 7: 90 subwords, the model has room for 62$"):
        refuse(problems, 7, {"source": "a.de", "reference": "a.en"})
    refuse([], 7, {})


def test_a_report_counts_kinds_and_names_the_first_lines() -> None:
    report = LineReport()
    assert report.summary("translated") == ""
    report.add(LineNote(3, "source split into 2 parts; control characters in source became spaces"))
    assert report.summary("translated") == (
        "1 line was not translated as it is (1 control characters, 1 source split): "
        "line 3 (source split into 2 parts; control characters in source became spaces)"
    )
    for line in range(11, 18):
        report.add(LineNote(line, "empty source", scored=False))
    assert report.summary("scored") == (
        "8 lines were not scored as they are (1 control characters, 7 empty source, 1 source split): "
        "line 3 (source split into 2 parts; control characters in source became spaces), "
        "line 11 (empty source, left out), line 12 (empty source, left out), line 13 (empty source, left out), "
        "line 14 (empty source, left out) and 3 more"
    )
