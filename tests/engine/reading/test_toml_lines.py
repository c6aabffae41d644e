"""Every key that tomllib reads is found on the line where it was written."""

import itertools
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.reading.toml_lines import key_lines

EXAMPLE = '''\
# seq_len = 1
top = 1
[model] # name = 2
name = "llama3"
shape.dim = 3
"quoted" = """
name = "not a key"
[training]
"""
'li.teral' = \'\'\'
# still text \\\'\'\'
after = [ # one
  1, {inner = [
    {deep = "]}"}]},
  "a # b",
]
[ a . "b.c" ]
x = {y = {z = 1}, w.v = 2}
[[list]]
n = 1
[[list]]
n = 2
[list.sub]
m = 3
[[list.more]]
k = 4
'''


def paths_of(value, path=()):
    """Every path that tomllib gives, with positions in lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (*path, name)
        yield from paths_of(item, (*path, name))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("model",), 3),
        (("model", "name"), 4),
        (("model", "shape"), 5),
        (("model", "shape", "dim"), 5),
        (("model", "quoted"), 6),
        (("model", "li.teral"), 10),
        (("model", "after"), 12),
        (("model", "after", 0), 13),
        (("model", "after", 1, "inner"), 13),
        (("model", "after", 1, "inner", 0, "deep"), 14),
        (("model", "after", 2), 15),
        (("a",), 17),
        (("a", "b.c"), 17),
        (("a", "b.c", "x", "y", "z"), 18),
        (("a", "b.c", "x", "w", "v"), 18),
        (("list",), 19),
        (("list", 0, "n"), 20),
        (("list", 1), 21),
        (("list", 1, "n"), 22),
        (("list", 1, "sub", "m"), 24),
        (("list", 1, "more", 0, "k"), 26),
    ],
)
def test_a_key_is_found_on_its_line(path, line, newline):
    assert key_lines(EXAMPLE.replace("\n", newline))[path] == line


def test_the_keys_found_are_those_that_tomllib_reads():
    assert key_lines(EXAMPLE).keys() == set(paths_of(tomllib.loads(EXAMPLE)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "\n\n",
        'a = """"quote at the start"""',
        'a = """quote at the end""""',
        'a = """two""\\"""""',
        "a = \"\"\"\"\"\"\nb = \"\"\nc = ''\nd = ''''''",
        'a = "\\\\"\nb = "\\""',
        "a = '\\'\nb = 1",
        'a = """\\\n  b = 1 \\\n """\nc = 2',
        "a = 1979-05-27 07:32:00 # b\nc = 07:32:00",
        "a = []\nb = {}\nc = [[], [{}], [1, ], ]",
        '"" = 1',
        '"\\u0061\\"" = 1',
        "1.2 = 3",
        "true = false",
        "a = {b = 'x, y}', c = \"]\"}",
        "[[a.b]]\n[[a.b]]\nc.d = 1\n[a.b.e]\nf = 1",
        "a = [\n# ]\n'#', # '\n]\nb = inf",
    ],
)
def test_hard_texts_give_the_keys_that_tomllib_reads(text):
    assert key_lines(text).keys() == set(paths_of(tomllib.loads(text)))


class Writer:
    """Writes a document of drawn parts and notes on which line each key was put."""

    def __init__(self, draw):
        self.draw = draw
        self.text = ""
        self.lines = {}
        self.numbers = itertools.count()

    def put(self, text):
        self.text += text

    def note(self, path):
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def name(self):
        """A new name, and how it is written."""
        name = f"{self.draw(st.sampled_from(['k', 'a.b', 'x y', '#', '[t]', 'é', '=', '-1_']))}{next(self.numbers)}"
        bare = all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in name)
        forms = [f'"{name}"', f"'{name}'", *([name] if bare else [])]
        return name, self.draw(st.sampled_from(forms))

    def key(self, table):
        """A key of one part or several, noted."""
        path, written = table, []
        for _ in range(self.draw(st.integers(1, 3))):
            name, form = self.name()
            path = (*path, name)
            self.note(path)
            written.append(form)
        self.put(self.draw(st.sampled_from([".", " . "])).join(written))
        return path

    def blanks(self):
        self.put(self.draw(st.sampled_from(["", " ", "\n", "\n# no = 1 ]}\n", "\n\t\n"])))

    def value(self, path, depth):
        simple = ["1", "'#'", '"]}\\""', "1979-05-27", "true", '"""\nq = 1\n[r]\n"\n"""', "'''\n'' # \\\n'''", '""']
        kind = self.draw(st.sampled_from(["simple", "list", "table"] if depth else ["simple"]))
        if kind == "simple":
            self.put(self.draw(st.sampled_from(simple)))
        elif kind == "list":
            self.put("[")
            for position in range(self.draw(st.integers(0, 3))):
                self.blanks()
                self.note((*path, position))
                self.value((*path, position), depth - 1)
                self.blanks()
                self.put(",")
            self.blanks()
            self.put("]")
        else:
            self.put("{")
            for position in range(self.draw(st.integers(0, 3))):
                self.put(", " if position else " ")
                self.pair(path, depth - 1)
            self.put(" }")

    def pair(self, table, depth):
        path = self.key(table)
        self.put(self.draw(st.sampled_from(["=", " = ", "\t=  "])))
        self.value(path, depth)

    def header(self):
        if self.draw(st.booleans()):
            name, form = self.name()
            for position in range(self.draw(st.integers(1, 2))):
                self.note((name,))
                self.note((name, position))
                self.put(f"[[{form}]]")
                self.pairs((name, position))
        else:
            self.put("[ ")
            path = self.key(())
            self.put(" ]")
            self.pairs(path)

    def pairs(self, table):
        self.put(self.draw(st.sampled_from(["\n", " # c = 1\n", "\n\n"])))
        for _ in range(self.draw(st.integers(0, 3))):
            self.pair(table, 2)
            self.put(self.draw(st.sampled_from(["\n", "  # c = 1\n", "\n\n# d = 2\n"])))


@st.composite
def documents(draw):
    writer = Writer(draw)
    writer.pairs(())
    for _ in range(draw(st.integers(0, 3))):
        writer.header()
    return writer.text, writer.lines


@settings(deadline=None, max_examples=200)
@given(documents(), st.booleans())
def test_every_key_of_any_document_is_found_where_it_was_written(document, windows):
    text, lines = document
    written = text.replace("\n", "\r\n") if windows else text
    assert set(paths_of(tomllib.loads(written))) == lines.keys()
    assert key_lines(written) == lines
