"""YAML 1.2's JSON schema and nothing that could surprise (CASES K8-01 to K8-03)."""

import pytest

from extproc.routes.plain_tree import TEXT_CHARACTERS_MAX, number_of, read_tree, whole
from extproc.routes.problems import PolicyError


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", None),
        ("# only a comment\n", None),
        (
            "a: off\nb: yes\nc: 0123\nd: 1_000\ne: 12:30:45\nf: 2001-01-01",
            {
                "a": "off",
                "b": "yes",
                "c": "0123",
                "d": "1_000",
                "e": "12:30:45",
                "f": "2001-01-01",
            },
        ),
        ("a: true\nb: false\nc: null\nd: ~\ne:", {"a": True, "b": False, "c": None, "d": None, "e": None}),
        ("a: 'true'\nb: \"3\"", {"a": "true", "b": "3"}),
        ("a: [1, -2, 0.5, 1e2]", {"a": [1, -2, 0.5, 100]}),
        ("a: {b: {c: [{d: 1}]}}", {"a": {"b": {"c": [{"d": 1}]}}}),
        ('{"a":\t[1.0, "\\u0041"], "b": {}}', {"a": [1, "A"], "b": {}}),
        ("%YAML 1.1\n---\na: off", {"a": "off"}),
        ("1: one\ntrue: two", {"1": "one", "true": "two"}),
    ],
)
def test_text_is_read_without_guessing(text: str, tree: object) -> None:
    assert read_tree(text) == tree


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "a: given twice"),
        ("a: {b: 1, b: 2}", "a.b: given twice"),
        ("a: &x 1", "a: YAML anchors"),
        ("a: 1\nb: *a", "b: YAML anchors"),
        ("a: !!int 3", "a: the YAML tag"),
        ("a: !!python/object:os.system x", "a: the YAML tag"),
        ("a: 1\n---\nb: 2", "document: more than one document"),
        ("? [1, 2]\n: 3", "document: a key that is no plain word"),
        ("{", "document: not YAML or JSON in line 1, column 2"),
        ("a: \x07", "document: not YAML or JSON: "),
        ("[" * 1000, "[0][0]"),
        ("a: " * 20_000, "document: not YAML or JSON in line 1"),
        ("x" * (TEXT_CHARACTERS_MAX + 1), "document: 65537 characters"),
        ('"a b": &x 1', '"a b": YAML anchors'),
    ],
)
def test_what_could_surprise_is_refused_with_its_path(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_tree(text)
    assert str(caught.value.problems[0]).startswith(problem)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-7", -7),
        ("1048576", 1_048_576),
        ("1.048576e+06", 1_048_576),
        ("5.0", 5),
        ("0.25", 0.25),
        ("9" * 40, int("9" * 40)),
    ],
)
def test_k8_02_whole_numbers_are_integers_in_every_form(text: str, number: float) -> None:
    assert number_of(text) == number
    assert type(number_of(text)) is type(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "5s",
        "0123",
        "+5",
        "1_000",
        "٣",
        "0x10",
        "1e",
        ".5",
        "5.",
        "1e999",
        " 5",
        "1,5",
        "9" * 500,
    ],
)
def test_k8_03_what_is_no_number_is_never_one(text: str) -> None:
    assert number_of(text) is None


def test_a_float_beyond_exactness_stays_a_float() -> None:
    assert type(whole(1e300)) is float
    assert type(whole(3.0)) is int
